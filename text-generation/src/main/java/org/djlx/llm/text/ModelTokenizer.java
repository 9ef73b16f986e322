// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.stream.JsonReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import org.djlx.nativeops.ContextLoader;

/** A tokenizer from {@code tokenizer.json}, with Hugging Face's tokenizers library. */
public final class ModelTokenizer implements TextTokenizer {

    private final HuggingFaceTokenizer tokenizer;
    private final Set<String> specialTokens;
    private final Set<String> addedTokens;
    private final LongestToken longestToken = new LongestToken();
    private final int letter; // a token to decode others after
    private final String letterText; // empty if the texts of tokens depend on tokens before them
    private final Map<Integer, String> addedTexts = new ConcurrentHashMap<>(); // of tokens
    private final Path file;
    // close() takes the write lock, because native memory must not be freed during a call.
    private final ReadWriteLock lock = new ReentrantReadWriteLock();
    private boolean closed;

    private ModelTokenizer(HuggingFaceTokenizer tokenizer, Path file) throws IOException {
        this.tokenizer = tokenizer;
        this.file = file;
        // Reads what the library has no methods for.
        Set<String> special = new HashSet<>();
        Set<String> added = new HashSet<>();
        boolean concatenates = false;
        try (JsonReader reader = new JsonReader(Files.newBufferedReader(file))) {
            reader.beginObject();
            while (reader.hasNext()) {
                switch (reader.nextName()) {
                    case "model" -> longestToken.readModel(reader);
                    case "normalizer" -> longestToken.setNormalizer(JsonParser.parseReader(reader));
                    case "pre_tokenizer" ->
                            longestToken.setPreTokenizer(JsonParser.parseReader(reader));
                    case "added_tokens" -> {
                        for (JsonElement element :
                                JsonParser.parseReader(reader).getAsJsonArray()) {
                            JsonObject token = element.getAsJsonObject();
                            String content = token.get("content").getAsString();
                            added.add(content);
                            longestToken.addToken(token);
                            TokenBytes.checkId(token.get("id").getAsLong(), content);
                            if (token.get("special").getAsBoolean()) {
                                special.add(content);
                            }
                        }
                    }
                    case "decoder" -> concatenates = concatenates(JsonParser.parseReader(reader));
                    default -> reader.skipValue(); // Not parsed, because the vocabulary is large.
                }
            }
        }
        specialTokens = Set.copyOf(special);
        addedTokens = Set.copyOf(added);
        int[] letters = concatenates ? encode("a", false) : new int[0];
        letter = letters.length == 0 ? 0 : letters[letters.length - 1];
        letterText = letters.length == 0 ? "" : decode(new int[] {letter});
    }

    /**
     * Returns whether a decoder writes the texts of tokens one after the other, except at the
     * beginning of a text and if a character is divided among tokens.
     */
    private static boolean concatenates(JsonElement decoder) {
        if (!decoder.isJsonObject()) {
            return false; // Without a decoder, there are blanks between tokens.
        }
        JsonObject json = decoder.getAsJsonObject();
        return switch (json.get("type").getAsString()) {
            case "ByteLevel", "ByteFallback", "Fuse", "Metaspace" -> true;
            case "Replace" -> {
                JsonElement text = json.getAsJsonObject("pattern").get("String");
                yield text != null && text.getAsString().length() == 1;
            }
            case "Strip" -> json.get("stop").getAsInt() == 0;
            case "Sequence" -> {
                boolean all = true;
                for (JsonElement part : json.getAsJsonArray("decoders")) {
                    all &= concatenates(part);
                }
                yield all;
            }
            default -> false;
        };
    }

    /**
     * Reads a {@code tokenizer.json}; the caller closes the tokenizer.
     *
     * @throws IllegalArgumentException if the file is not a tokenizer
     */
    public static ModelTokenizer read(Path file) throws IOException {
        try {
            // No truncation: a prompt that is too long is an error.
            Map<String, String> options =
                    Map.of("truncation", "do_not_truncate", "padding", "false");
            return ContextLoader.of(
                    ModelTokenizer.class,
                    () ->
                            new ModelTokenizer(
                                    HuggingFaceTokenizer.newInstance(file, options), file));
        } catch (RuntimeException e) { // The library throws no other type.
            throw new IllegalArgumentException(
                    file + " is not a valid tokenizer: " + e.getMessage(), e);
        }
    }

    @Override
    public Set<String> specialTokens() {
        return specialTokens;
    }

    @Override
    public Set<String> addedTokens() {
        return addedTokens;
    }

    @Override
    public int[] encode(String text, boolean specialTokens) {
        lock.readLock().lock();
        try {
            checkOpen();
            long[] ids = tokenizer.encode(text, specialTokens, false).getIds();
            return Arrays.stream(ids).mapToInt(Math::toIntExact).toArray();
        } finally {
            lock.readLock().unlock();
        }
    }

    @Override
    public long leastTokens(String text) {
        return longestToken.leastTokens(text);
    }

    @Override
    public String decode(int[] tokens) {
        lock.readLock().lock();
        try {
            checkOpen();
            return tokenizer.decode(Arrays.stream(tokens).asLongStream().toArray(), true);
        } finally {
            lock.readLock().unlock();
        }
    }

    @Override
    public String addedText(int token) {
        if (letterText.isEmpty()) {
            return null;
        }
        String text = addedTexts.get(token);
        if (text == null) {
            text = decode(new int[] {letter, token}).substring(letterText.length());
            addedTexts.put(token, text);
        }
        return text.indexOf('\uFFFD') < 0 ? text : null;
    }

    @Override
    public List<byte[]> tokenBytes() {
        try {
            return TokenBytes.read(file);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private void checkOpen() {
        if (closed) {
            throw new IllegalStateException("the tokenizer is closed, because its generator is");
        }
    }

    @Override
    public void close() {
        lock.writeLock().lock();
        try {
            closed = true;
            tokenizer.close();
        } finally {
            lock.writeLock().unlock();
        }
    }
}

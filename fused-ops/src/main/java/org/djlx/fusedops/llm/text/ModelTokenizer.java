// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text;

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

/** A tokenizer from {@code tokenizer.json}, with Hugging Face's tokenizers library. */
public final class ModelTokenizer implements TextTokenizer {

    private final HuggingFaceTokenizer tokenizer;
    private final Set<String> specialTokens;
    private final boolean byteLevel;
    private final Map<Integer, String> texts = new ConcurrentHashMap<>(); // of single tokens
    private final Path file;
    // close() takes the write lock, because native memory must not be freed during a call.
    private final ReadWriteLock lock = new ReentrantReadWriteLock();
    private boolean closed;

    private ModelTokenizer(HuggingFaceTokenizer tokenizer, Path file) throws IOException {
        this.tokenizer = tokenizer;
        this.file = file;
        // Reads what the library has no methods for.
        Set<String> special = new HashSet<>();
        boolean decodesBytes = false;
        try (JsonReader reader = new JsonReader(Files.newBufferedReader(file))) {
            reader.beginObject();
            while (reader.hasNext()) {
                switch (reader.nextName()) {
                    case "added_tokens" -> {
                        for (JsonElement element :
                                JsonParser.parseReader(reader).getAsJsonArray()) {
                            JsonObject token = element.getAsJsonObject();
                            if (token.get("special").getAsBoolean()) {
                                special.add(token.get("content").getAsString());
                            }
                        }
                    }
                    case "decoder" -> {
                        JsonElement decoder = JsonParser.parseReader(reader);
                        decodesBytes = decoder.toString().contains("\"type\":\"ByteLevel\"");
                        decodesBytes &= !decoder.toString().contains("\"Sequence\"");
                    }
                    default -> reader.skipValue(); // Not parsed, because the vocabulary is large.
                }
            }
        }
        specialTokens = Set.copyOf(special);
        byteLevel = decodesBytes;
    }

    /**
     * Reads a tokenizer.
     *
     * @param file the {@code tokenizer.json}
     * @return the tokenizer; the caller closes it
     * @throws IOException if the file cannot be read
     * @throws IllegalArgumentException if the file is not a tokenizer
     */
    public static ModelTokenizer read(Path file) throws IOException {
        try {
            // No truncation: a prompt that is too long is an error.
            return new ModelTokenizer(
                    HuggingFaceTokenizer.newInstance(
                            file, Map.of("truncation", "do_not_truncate", "padding", "false")),
                    file);
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
    public String decode(int[] tokens) {
        lock.readLock().lock();
        try {
            checkOpen();
            return tokens.length == 1
                    ? texts.computeIfAbsent(tokens[0], token -> decodeAll(token))
                    : decodeAll(tokens);
        } finally {
            lock.readLock().unlock();
        }
    }

    private String decodeAll(int... tokens) {
        return tokenizer.decode(Arrays.stream(tokens).asLongStream().toArray(), true);
    }

    @Override
    public boolean isByteLevel() {
        return byteLevel;
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

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
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;

/** A tokenizer from {@code tokenizer.json}, with Hugging Face's tokenizers library. */
public final class ModelTokenizer implements TextTokenizer {

    private final HuggingFaceTokenizer tokenizer;
    private final Set<String> specialTokens;
    private final Path file;
    // close() takes the write lock, because native memory must not be freed during a call.
    private final ReadWriteLock lock = new ReentrantReadWriteLock();
    private boolean closed;

    private ModelTokenizer(HuggingFaceTokenizer tokenizer, Set<String> specialTokens, Path file) {
        this.tokenizer = tokenizer;
        this.file = file;
        this.specialTokens = specialTokens;
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
                    specialTokens(file),
                    file);
        } catch (RuntimeException e) { // The library throws no other type.
            throw new IllegalArgumentException(
                    file + " is not a valid tokenizer: " + e.getMessage(), e);
        }
    }

    /** Reads the special tokens from the file, because the library has no method for them. */
    private static Set<String> specialTokens(Path file) throws IOException {
        Set<String> special = new HashSet<>();
        try (JsonReader reader = new JsonReader(Files.newBufferedReader(file))) {
            reader.beginObject();
            while (reader.hasNext()) {
                if (!reader.nextName().equals("added_tokens")) {
                    reader.skipValue(); // Not parsed, because the vocabulary is large.
                    continue;
                }
                for (JsonElement element : JsonParser.parseReader(reader).getAsJsonArray()) {
                    JsonObject token = element.getAsJsonObject();
                    if (token.get("special").getAsBoolean()) {
                        special.add(token.get("content").getAsString());
                    }
                }
            }
        }
        return Set.copyOf(special);
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
            return tokenizer.decode(Arrays.stream(tokens).asLongStream().toArray(), true);
        } finally {
            lock.readLock().unlock();
        }
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

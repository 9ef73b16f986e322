/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.text;

import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.stream.JsonReader;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;

/** The {@code tokenizer.json} of a model directory, through Hugging Face's library. */
public final class ModelTokenizer implements TextTokenizer {

    private final HuggingFaceTokenizer tokenizer;
    private final Set<String> specialTokens;
    // The library's memory must not go while another thread is in it.
    private final ReadWriteLock lock = new ReentrantReadWriteLock();
    private boolean closed;

    private ModelTokenizer(HuggingFaceTokenizer tokenizer, Set<String> specialTokens) {
        this.tokenizer = tokenizer;
        this.specialTokens = specialTokens;
    }

    /**
     * Reads a tokenizer.
     *
     * @throws IllegalArgumentException if it cannot be read
     */
    public static ModelTokenizer read(Path file) throws IOException {
        try {
            // A prompt that is too long is refused, not cut off.
            return new ModelTokenizer(
                    HuggingFaceTokenizer.newInstance(
                            file, Map.of("truncation", "do_not_truncate", "padding", "false")),
                    specialTokens(file));
        } catch (RuntimeException e) { // What the library throws.
            throw new IllegalArgumentException(
                    file + " is no tokenizer that can be read: " + e.getMessage(), e);
        }
    }

    /** Reads the special tokens, which the library does not tell, from a file that it has read. */
    private static Set<String> specialTokens(Path file) throws IOException {
        Set<String> special = new HashSet<>();
        try (JsonReader reader = new JsonReader(Files.newBufferedReader(file))) {
            reader.beginObject();
            while (reader.hasNext()) {
                if (!reader.nextName().equals("added_tokens")) {
                    reader.skipValue(); // The vocabulary, which is large.
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

    private void checkOpen() {
        if (closed) {
            throw new IllegalStateException("the tokenizer is closed, with its generator");
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

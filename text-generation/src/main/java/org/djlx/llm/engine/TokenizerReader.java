// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.djlx.llm.text.ModelTokenizer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Reads a model's tokenizer on a thread of its own, while the model is loaded. A tokenizer of
 * 128,000 tokens takes about half a second. Waiting for it cannot be interrupted: it must be
 * closed.
 */
final class TokenizerReader {

    // Of the caller's thread: slf4j drops what is logged while another thread starts it.
    private static final Logger LOG = LoggerFactory.getLogger(TokenizerReader.class);

    private final CompletableFuture<ModelTokenizer> tokenizer; // of null if there is no file

    TokenizerReader(Path directory) {
        String name = "tokenizer-" + directory.getFileName();
        Path file = directory.resolve("tokenizer.json");
        tokenizer =
                CompletableFuture.supplyAsync(
                        () -> read(file), task -> new Thread(task, name).start());
    }

    private static ModelTokenizer read(Path file) {
        long start = System.nanoTime();
        try {
            ModelTokenizer tokenizer = Files.exists(file) ? ModelTokenizer.read(file) : null;
            double seconds = (System.nanoTime() - start) / 1e9;
            LOG.info("{}: read the tokenizer in {} s", file, String.format("%.2f", seconds));
            return tokenizer;
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Waits for the tokenizer. Returns null if the model has none. */
    ModelTokenizer tokenizer() throws IOException {
        try {
            return tokenizer.join();
        } catch (CompletionException e) {
            if (e.getCause() instanceof UncheckedIOException failure) {
                throw failure.getCause();
            }
            if (e.getCause() instanceof Error failure) { // such as a missing native library
                throw failure;
            }
            throw (RuntimeException) e.getCause();
        }
    }

    /** Waits for the tokenizer, and closes it. The thread then ends. */
    void close() {
        ModelTokenizer read = tokenizer.exceptionally(e -> null).join();
        if (read != null) {
            read.close();
        }
    }
}

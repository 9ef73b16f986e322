// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.djlx.llm.text.ModelTokenizer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Reads a model's tokenizer on a thread of its own, while the model is loaded. A tokenizer of
 * 128,000 tokens takes about half a second.
 */
final class TokenizerReader extends Thread {

    // Of the caller's thread: slf4j drops what is logged while another thread starts it.
    private static final Logger LOG = LoggerFactory.getLogger(TokenizerReader.class);

    private final Path file;
    private ModelTokenizer tokenizer; // null if there is no file
    private Throwable failure; // null if there is none

    TokenizerReader(Path directory) {
        super("tokenizer-" + directory.getFileName());
        file = directory.resolve("tokenizer.json");
        start();
    }

    @Override
    public void run() {
        long start = System.nanoTime();
        try {
            tokenizer = Files.exists(file) ? ModelTokenizer.read(file) : null;
            LOG.info(
                    "{}: read the tokenizer in {} s",
                    file,
                    String.format("%.2f", (System.nanoTime() - start) / 1e9));
        } catch (IOException | RuntimeException | Error e) {
            failure = e;
        }
    }

    /** Waits for the tokenizer. Returns null if the model has none. */
    ModelTokenizer tokenizer() throws IOException {
        await();
        if (failure instanceof IOException e) {
            throw e;
        }
        if (failure instanceof RuntimeException e) {
            throw e;
        }
        if (failure instanceof Error e) {
            throw e;
        }
        return tokenizer;
    }

    /** Waits for the thread, and closes the tokenizer. */
    void close() {
        await();
        if (tokenizer != null) {
            tokenizer.close();
        }
    }

    private void await() {
        boolean interrupted = false;
        while (isAlive()) {
            try {
                join();
            } catch (InterruptedException e) {
                interrupted = true; // Keeps waiting: the tokenizer must be closed.
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}

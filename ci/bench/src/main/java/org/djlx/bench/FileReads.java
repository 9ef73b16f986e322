/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Stream;

/** Measures how fast a model's files are read, the limit of loading. */
final class FileReads {

    private static final int CHUNK = 1 << 24;

    private FileReads() {}

    /** Returns the files of weights. */
    static List<Path> weights(Path directory) throws IOException {
        try (Stream<Path> files = Files.list(directory)) {
            return files.filter(file -> file.toString().endsWith(".safetensors")).toList();
        }
    }

    /**
     * Reads files in parallel, one thread a file.
     *
     * @return the seconds
     */
    static double seconds(List<Path> files, int threads)
            throws InterruptedException, ExecutionException {
        ExecutorService readers = Executors.newFixedThreadPool(threads);
        try {
            List<Callable<Void>> reads = files.stream().map(FileReads::read).toList();
            long start = System.nanoTime();
            for (Future<Void> read : readers.invokeAll(reads)) {
                read.get();
            }
            return (System.nanoTime() - start) / 1e9;
        } finally {
            readers.shutdownNow();
        }
    }

    private static Callable<Void> read(Path file) {
        return () -> {
            ByteBuffer chunk = ByteBuffer.allocateDirect(CHUNK);
            try (FileChannel channel = FileChannel.open(file)) {
                while (channel.read(chunk) >= 0) {
                    chunk.clear();
                }
            }
            return null;
        };
    }
}

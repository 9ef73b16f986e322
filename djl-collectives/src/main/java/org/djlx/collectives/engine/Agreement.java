/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.engine;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.djlx.collectives.ProcessGroup;

/**
 * Runs code in which one rank may fail alone, such as reading a file: all ranks hear of it and
 * fail, so that none goes on and waits for one that does not.
 */
final class Agreement {

    private static final int BYTES = 1024; // of what a rank says; more is cut off
    private static final byte DONE = 1;
    private static final byte FAILED = 2;

    /** The code. */
    interface Body {
        /** Returns what the other ranks are told. */
        String run() throws IOException;
    }

    private Agreement() {}

    /**
     * Runs code on all ranks, which must return the same.
     *
     * @param group the ranks; null for one alone
     * @param operation what is done, for errors
     */
    static void run(ProcessGroup group, NDManager manager, String operation, Body body)
            throws IOException {
        List<String> said = exchange(group, manager, operation, body);
        if (said.stream().distinct().count() > 1) {
            throw new IOException(
                    String.format("%s: the ranks differ; in their order: %s", operation, said));
        }
    }

    /** Runs code on all ranks, and returns what it returned on each. */
    static List<String> exchange(ProcessGroup group, NDManager manager, String operation, Body body)
            throws IOException {
        if (group == null) {
            return List.of(body.run());
        }
        String own = null;
        Throwable failure = null;
        try {
            own = body.run();
        } catch (IOException | RuntimeException | Error e) {
            failure = e;
        }
        List<byte[]> messages = gather(group, manager, message(own, failure));
        if (failure instanceof IOException e) {
            throw e;
        } else if (failure instanceof RuntimeException e) {
            throw e;
        } else if (failure instanceof Error e) {
            throw e;
        }
        List<String> said = new ArrayList<>();
        for (int rank = 0; rank < messages.size(); rank++) {
            byte[] message = messages.get(rank);
            String text = new String(message, 1, message.length - 1, StandardCharsets.UTF_8).trim();
            if (message[0] == FAILED) {
                throw new IOException(
                        String.format("%s: rank %d has failed: %s", operation, rank, text));
            }
            said.add(text);
        }
        return said;
    }

    private static byte[] message(String own, Throwable failure) {
        String text = failure == null ? own : failure.toString();
        byte[] utf8 = text.getBytes(StandardCharsets.UTF_8);
        byte[] message = new byte[BYTES];
        message[0] = failure == null ? DONE : FAILED;
        System.arraycopy(utf8, 0, message, 1, Math.min(utf8.length, BYTES - 1));
        return message;
    }

    private static List<byte[]> gather(ProcessGroup group, NDManager manager, byte[] message) {
        try (NDManager temporary = manager.newSubManager()) {
            NDArray own =
                    temporary.create(ByteBuffer.wrap(message), new Shape(BYTES), DataType.INT8);
            int ranks = group.worldSize();
            NDArray all = temporary.zeros(new Shape((long) ranks * BYTES), DataType.INT8);
            group.allGatherIntoTensor(all, own).await();
            byte[] bytes = all.toByteArray();
            List<byte[]> messages = new ArrayList<>();
            for (int rank = 0; rank < ranks; rank++) {
                messages.add(Arrays.copyOfRange(bytes, rank * BYTES, (rank + 1) * BYTES));
            }
            return messages;
        }
    }
}

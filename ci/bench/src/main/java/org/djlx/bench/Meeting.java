/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;

/**
 * Synchronizes the hosts of all ranks, threads or processes, and exchanges their results. It uses a
 * separate group, because operations of the measured group would be measured, too. The group stays
 * the caller's; if a rank fails and destroys it, the other ranks fail.
 *
 * @param control a group of the same ranks with backend {@code shm}
 */
record Meeting(ProcessGroup control) {

    int rank() {
        return control.rank();
    }

    /** Waits for all ranks. */
    void await() {
        control.barrier().await();
    }

    /**
     * Exchanges a message, without the character 0, among all ranks.
     *
     * @return the message of each rank, in rank order
     */
    List<String> exchange(String message) {
        byte[] bytes = message.getBytes(StandardCharsets.UTF_8);
        try (NDManager manager = NDManager.newBaseManager(control.device(), "PyTorch")) {
            NDArray length = manager.create(new long[] {bytes.length + 1L});
            control.allReduce(length, ReduceOp.MAX).await();
            int longest = Math.toIntExact(length.getLong());
            NDArray all =
                    manager.zeros(new Shape((long) longest * control.worldSize()), DataType.INT8);
            NDArray own = manager.create(Arrays.copyOf(bytes, longest));
            control.allGatherIntoTensor(all, own).await();
            byte[] received = all.toByteArray();
            List<String> messages = new ArrayList<>();
            for (int i = 0; i < control.worldSize(); i++) {
                String padded = new String(received, i * longest, longest, StandardCharsets.UTF_8);
                messages.add(padded.substring(0, padded.indexOf('\0')));
            }
            return messages;
        }
    }

    /**
     * Exchanges whether a rank failed in a step that all ranks must do together.
     *
     * @param own the cause of this rank's failure; empty for none
     * @return the cause of the first failed rank; empty if none failed
     */
    String failureOfAny(String own) {
        return exchange(own).stream().filter(failure -> !failure.isEmpty()).findFirst().orElse("");
    }
}

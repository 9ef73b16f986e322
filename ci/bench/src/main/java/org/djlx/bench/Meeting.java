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
 * Where ranks, threads or processes, wait for each other and tell each other what they have found,
 * on the host: an operation of the group that is measured would be measured too. The group stays
 * the caller's; one whose rank has failed lets the others fail.
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
     * Tells all ranks something, without the character 0.
     *
     * @return what each of them said, in rank order
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
     * Tells all ranks whether this one has failed in something that they can do only together.
     *
     * @param own why; empty if it has not
     * @return what the first has failed with; empty if none has
     */
    String failureOfAny(String own) {
        return exchange(own).stream().filter(failure -> !failure.isEmpty()).findFirst().orElse("");
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.List;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.ShmOptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What is kept for a group does not keep the group, nor the view through which it was made. */
@Timeout(120)
class GroupPlansTest {

    private static final Duration PATIENCE = Duration.ofSeconds(60);

    private static List<ProcessGroup> groups(int worldSize) {
        return ProcessGroups.local(
                "shm",
                worldSize,
                ShmOptions.builder().optTimeout(PATIENCE).optBufferSize(1 << 20).build());
    }

    private static void callAll(ProcessGroup group) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                UsageCounter counter = FusedOps.countUsage()) {
            NDArray a = manager.ones(new Shape(2, 3));
            FusedOps.allGatherMatmul(a, List.of(manager.ones(new Shape(3, 5))), 0, group);
            NDArray whole = manager.ones(new Shape(4, 3));
            NDArray b = manager.ones(new Shape(3, 5));
            FusedOps.matmulReduceScatter(whole, b, ReduceOp.SUM, 0, group);
            LowContention.allGather(group, whole, a).await();
            LowContention.reduceScatter(group, a, whole, ReduceOp.SUM).await();
            assertTrue(counter.pipelined() > 0);
        }
    }

    /** Uses fused operators, and forgets the group. */
    private static String forget() {
        List<ProcessGroup> groups = groups(2);
        ProcessGroups.run(
                groups,
                group -> {
                    callAll(group);
                    return null;
                });
        return groups.get(0).name();
    }

    @Test
    void aForgottenGroupIsFreed() throws InterruptedException {
        String threads = "shm-" + forget() + "-";
        long start = System.nanoTime();
        while (Thread.getAllStackTraces().keySet().stream()
                .anyMatch(thread -> thread.getName().startsWith(threads))) {
            assertTrue(System.nanoTime() - start < PATIENCE.toNanos(), threads);
            System.gc();
            Thread.sleep(10);
        }
    }

    @Test
    void aPlanHasTheTimeoutOfTheCall() {
        List<ProcessGroup> groups = groups(2);
        LocalRanks.run(
                groups,
                group -> {
                    callAll(group);
                    if (group.rank() == 0) {
                        ProcessGroup hasty = group.withTimeout(Duration.ofMillis(300));
                        CollectiveTimeoutException e =
                                assertThrows(
                                        CollectiveTimeoutException.class, () -> callAll(hasty));
                        assertEquals(List.of(1), e.missingRanks());
                        assertTrue(e.getMessage().contains("PT0.3S"), e::getMessage);
                    }
                });
    }
}

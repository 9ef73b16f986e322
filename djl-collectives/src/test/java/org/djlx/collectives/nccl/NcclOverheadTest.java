/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.nccl;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.nativeops.CudaDevice;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What operations cost the host. */
@Tag("gpu")
@Timeout(120)
class NcclOverheadTest {

    @BeforeAll
    static void requireGpus() {
        NcclCases.require(2);
    }

    /** Prints what issuing an operation costs the host. */
    @Test
    void hostOverhead() {
        Device[] devices =
                IntStream.range(0, CudaDevice.count()).mapToObj(Device::gpu).toArray(Device[]::new);
        List<ProcessGroup> groups =
                ProcessGroups.local(
                        "nccl",
                        CudaDevice.count(),
                        NcclOptions.builder().optDevices(devices).build());
        ProcessGroups.run(
                groups,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device())) {
                        NDArray tensor = manager.ones(new Shape(256));
                        for (int round = 0; round < 6; round++) {
                            int count = 1000;
                            long[] nanos = new long[count];
                            for (int i = 0; i < count; i++) {
                                long start = System.nanoTime();
                                Work work = group.allReduce(tensor, ReduceOp.MAX);
                                nanos[i] = System.nanoTime() - start;
                                if (i % 50 == 49) {
                                    work.await();
                                }
                            }
                            long begin = System.nanoTime();
                            for (int i = 0; i < count; i++) {
                                group.allReduce(tensor, ReduceOp.MAX).await();
                            }
                            long each = (System.nanoTime() - begin) / count;
                            Arrays.sort(nanos);
                            System.out.printf(
                                    "host overhead, rank %d, round %d: issue %d ns median, %d ns"
                                            + " p95; issue and await %d ns%n",
                                    group.rank(), round, nanos[count / 2], nanos[950], each);
                        }
                    }
                    return null;
                });
        groups.forEach(ProcessGroup::destroy);
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.shm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.ShmOptions;

/**
 * One rank of {@link ShmFailureTest}: reduces without end, says so, and expects that another rank
 * dies.
 */
public final class VictimMain {

    private VictimMain() {}

    public static void main(String[] args) throws Exception {
        ShmOptions options = ShmOptions.builder().optTimeout(Duration.ofMinutes(10)).build();
        try (ProcessGroup group = ProcessGroups.init("shm", options);
                NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray tensor = manager.zeros(new Shape(3_000_000));
            for (long i = 0; ; i++) {
                try {
                    group.allReduce(tensor, ReduceOp.SUM).await();
                } catch (CollectiveException e) {
                    System.out.println("failed: " + e.getMessage());
                    try {
                        group.barrier().await();
                    } catch (CollectiveException later) {
                        System.out.println("later: " + later.getMessage());
                    }
                    group.destroy();
                    // Nothing of the group is left in this process.
                    String maps = Files.readString(Path.of("/proc/self/maps"));
                    System.out.println("mapped: " + maps.contains("djlx-"));
                    return;
                }
                if (i == 20) {
                    System.out.println("running");
                }
            }
        }
    }
}

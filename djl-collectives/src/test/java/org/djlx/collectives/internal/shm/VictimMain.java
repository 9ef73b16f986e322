// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.ShmOptions;

/**
 * One rank of {@link ShmFailureTest}: reduces without end, says so, and expects that rank 1 dies.
 * Then goes on without it.
 */
public final class VictimMain {

    private VictimMain() {}

    /** The others go on without the dead rank, in the same processes. */
    private static void shrink(ProcessGroup group, NDManager manager) {
        try (ProcessGroup rest = group.shrink(List.of(1))) {
            NDArray tensor = manager.full(new Shape(1), group.rank() + 1f);
            rest.allReduce(tensor, ReduceOp.SUM).await();
            System.out.printf(
                    "rank %d of %d now: %s%n",
                    rest.rank(), rest.worldSize(), tensor.toFloatArray()[0]);
        }
    }

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
                    shrink(group, manager);
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

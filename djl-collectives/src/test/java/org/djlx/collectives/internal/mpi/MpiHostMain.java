// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.mpi;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.spi.BackendOptions;

/**
 * One rank of {@link MpiProcessesTest}, each on a host of its own: the last host stops during a
 * collective. The others print how it ends.
 */
public final class MpiHostMain {

    private MpiHostMain() {}

    public static void main(String[] args) throws Exception {
        ProcessGroup group = ProcessGroups.init("mpi", new BackendOptions(Duration.ofSeconds(100)));
        NDManager manager = NDManager.newBaseManager("PyTorch");
        NDArray tensor = manager.ones(new Shape(1_000_000));
        group.allReduce(tensor, ReduceOp.SUM).await();
        if (group.rank() == group.worldSize() - 1) {
            new ProcessBuilder("sh", "-c", "kill -STOP $PPID").start().waitFor();
        }
        long begin = System.nanoTime();
        try {
            group.allReduce(tensor, ReduceOp.SUM).await();
        } catch (CollectiveException e) {
            long seconds = (System.nanoTime() - begin) / 1_000_000_000;
            System.out.println(
                    "rank " + group.rank() + " after " + seconds + " s: " + e.getMessage());
            // The other rank prints, too, before mpirun ends all.
            Thread.sleep(5000);
        }
        Runtime.getRuntime().halt(3);
    }
}

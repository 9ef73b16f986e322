// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.spi.BackendOptions;

/**
 * One rank of {@link MpiHostsTest}, each on a host of its own: the host of the rank that the first
 * argument names stops during a collective of the backend of the second, {@code mpi} or {@code
 * nccl}. The others print how it ends, and leave the group.
 */
public final class MpiHostMain {

    private MpiHostMain() {}

    public static void main(String[] args) throws Exception {
        String backend = args.length > 1 ? args[1] : "mpi";
        BackendOptions options =
                backend.equals("nccl")
                        ? NcclOptions.builder().optTimeout(Duration.ofSeconds(100)).build()
                        : new BackendOptions(Duration.ofSeconds(100));
        ProcessGroup group = ProcessGroups.init(backend, options);
        NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
        NDArray tensor = manager.ones(new Shape(1_000_000));
        group.allReduce(tensor, ReduceOp.SUM).await();
        tensor.getFloat(0); // Waits for a GPU.
        if (group.rank() == Integer.parseInt(args[0])) {
            new ProcessBuilder("sh", "-c", "kill -STOP $PPID").start().waitFor();
        }
        long begin = System.nanoTime();
        try {
            group.allReduce(tensor, ReduceOp.SUM).await();
            tensor.getFloat(0);
            group.barrier().await();
        } catch (CollectiveException e) {
            long seconds = (System.nanoTime() - begin) / 1_000_000_000;
            System.out.println(
                    "rank " + group.rank() + " after " + seconds + " s: " + e.getMessage());
            begin = System.nanoTime();
            group.destroy();
            seconds = (System.nanoTime() - begin) / 1_000_000_000;
            System.out.println("rank " + group.rank() + " left after " + seconds + " s");
            // The other rank prints, too, before mpirun ends all.
            Thread.sleep(5000);
        }
        Runtime.getRuntime().halt(3);
    }
}

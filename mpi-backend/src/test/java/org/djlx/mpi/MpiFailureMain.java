// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.BackendOptions;

/** One rank of {@link MpiProcessesTest}: breaks a group, and prints how its calls end. */
public final class MpiFailureMain {

    private MpiFailureMain() {}

    public static void main(String[] args) throws InterruptedException {
        ProcessGroup group = ProcessGroups.init("mpi", new BackendOptions(Duration.ofSeconds(60)));
        int rank = group.rank();
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray tensor = manager.ones(new Shape(1_000_000));
            group.allReduce(tensor, ReduceOp.SUM).await();
            if (rank == 0) {
                Work late =
                        group.withTimeout(Duration.ofMillis(200)).allReduce(tensor, ReduceOp.SUM);
                report(rank, late);
            } else {
                Thread.sleep(1000); // Rank 0 has given up; its call has arrived.
                report(rank, group.allReduce(tensor, ReduceOp.SUM));
            }
            try {
                group.barrier().await();
            } catch (CollectiveException e) {
                System.out.println("rank " + rank + ": broken");
            }
        }
        // The group is not destroyed.
    }

    private static void report(int rank, Work work) {
        try {
            work.await();
            System.out.println("rank " + rank + ": passed");
        } catch (CollectiveTimeoutException e) {
            System.out.println("rank " + rank + ": CollectiveTimeoutException " + e.missingRanks());
        } catch (CollectiveException e) {
            System.out.println("rank " + rank + ": " + e.getClass().getSimpleName());
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.spi.BackendOptions;

/**
 * One rank of {@link MpiProcessesTest}: two threads create groups at the same time, whose names
 * have the same hash code modulo 32768.
 */
public final class MpiGroupsMain {

    private static final int ROUNDS = 100;

    private MpiGroupsMain() {}

    public static void main(String[] args) {
        Executor threads = task -> new Thread(task).start();
        try (ProcessGroup first =
                        ProcessGroups.init("mpi", new BackendOptions(Duration.ofSeconds(20)));
                ProcessGroup second = first.newGroup(List.of(0, 1), "second")) {
            for (int round = 0; round < ROUNDS; round++) {
                String name = "a" + round;
                String other = collidingName(second.name() + ".b", hash(first.name() + "." + name));
                CompletableFuture<Void> one =
                        CompletableFuture.runAsync(() -> use(first, name, 1), threads);
                CompletableFuture<Void> two =
                        CompletableFuture.runAsync(() -> use(second, "b" + other, 10), threads);
                CompletableFuture.allOf(one, two).join();
            }
            System.out.println("rank " + first.rank() + ": equal sums");
        }
    }

    private static int hash(String name) {
        return name.hashCode() & 32767;
    }

    /** Returns letters that, after a prefix, lead to a hash code. */
    private static String collidingName(String prefix, int hash) {
        for (int i = 0; ; i++) {
            if (hash(prefix + i) == hash) {
                return "" + i;
            }
        }
    }

    private static void use(ProcessGroup parent, String name, int value) {
        try (ProcessGroup group = parent.newGroup(List.of(0, 1), name);
                NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray tensor = manager.create(new float[] {value});
            group.allReduce(tensor, ReduceOp.SUM).await();
            if (tensor.getFloat(0) != 2 * value) {
                throw new AssertionError("2 x " + value + " is " + tensor.getFloat(0));
            }
        }
    }
}

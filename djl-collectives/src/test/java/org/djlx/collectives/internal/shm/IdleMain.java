// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;

/**
 * One rank of {@link ShmIdleTest}: prints the CPU time, in milliseconds, that this process takes
 * while it waits in a barrier, while it waits for a message, and while it does nothing.
 */
public final class IdleMain {

    /** How long each of these lasts. */
    static final Duration TIME = Duration.ofSeconds(4);

    private IdleMain() {}

    private static void measure(String what, Runnable action) {
        Duration before = cpuTime();
        action.run();
        System.out.println(what + ": " + cpuTime().minus(before).toMillis());
    }

    private static Duration cpuTime() {
        return ProcessHandle.current().info().totalCpuDuration().orElseThrow();
    }

    private static void sleep(Duration time) {
        try {
            Thread.sleep(time.toMillis());
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    public static void main(String[] args) {
        try (ProcessGroup group = ProcessGroups.init("shm");
                NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray tensor = manager.ones(new Shape(1000));
            boolean late = group.rank() == group.worldSize() - 1;
            // Everything has run once, and the JVM has come to rest.
            for (int i = 0; i < 100; i++) {
                group.allReduce(tensor, ReduceOp.MAX).await();
                exchange(group, tensor, late);
            }
            sleep(Duration.ofSeconds(1));
            group.barrier().await();

            measure(
                    "barrier",
                    () -> {
                        if (late) {
                            sleep(TIME);
                        }
                        group.barrier().await();
                    });
            measure(
                    "message",
                    () -> {
                        if (late) {
                            sleep(TIME);
                        }
                        exchange(group, tensor, late);
                    });
            measure("idle", () -> sleep(TIME));
            group.barrier().await();
        }
    }

    /** The last rank sends to all others. */
    private static void exchange(ProcessGroup group, NDArray tensor, boolean sends) {
        int last = group.worldSize() - 1;
        if (sends) {
            for (int peer = 0; peer < last; peer++) {
                group.send(tensor, peer, 0).await();
            }
        } else {
            group.recv(tensor, last, 0).await();
        }
    }
}

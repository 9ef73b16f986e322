// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.concurrent.locks.LockSupport;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.store.HashStore;

/**
 * One rank of {@link NcclFailureTest}: rank 1 is killed, the other rank detects it and continues.
 */
public final class NcclVictimMain {

    private NcclVictimMain() {}

    public static void main(String[] args) {
        NcclOptions options = NcclOptions.builder().optTimeout(Duration.ofSeconds(60)).build();
        Device own = Device.gpu(Integer.parseInt(System.getenv("LOCAL_RANK")));
        NcclOptions eager =
                NcclOptions.builder().optTimeout(options.timeout()).optDevices(own).build();
        boolean isEager = args[0].startsWith("eager");
        ProcessGroup group = ProcessGroups.init("nccl", isEager ? eager : options);
        try (NDManager manager = NDManager.newBaseManager(group.device())) {
            NDArray tensor = manager.ones(new Shape(1 << 20));
            boolean messages = args[0].endsWith("messages");
            operation(group, tensor, messages).await();
            if (group.rank() == 1) {
                System.out.println("ready");
                LockSupport.park();
            }
            Work work = operation(group, tensor, messages);
            System.out.println("ready");
            try {
                work.await();
                throw new AssertionError("the operation ended well");
            } catch (CollectiveException e) {
                System.out.println("failed: " + e.getMessage());
            }
            long start = System.nanoTime();
            group.destroy();
            System.out.println("destroyed in " + (System.nanoTime() - start) / 1_000_000 + " ms");
            goOn(manager, options);
        }
    }

    private static Work operation(ProcessGroup group, NDArray tensor, boolean message) {
        if (!message) {
            return group.allReduce(tensor, ReduceOp.SUM);
        }
        return group.rank() == 0 ? group.recv(tensor, 1, 0) : group.send(tensor, 0, 0);
    }

    /** A group of the survivor alone, on the same GPU. */
    private static void goOn(NDManager manager, NcclOptions options) {
        try (ProcessGroup alone =
                ProcessGroups.init("nccl", new HashStore(), "alone", 0, 1, options)) {
            NDArray tensor = manager.ones(new Shape(1000));
            alone.allReduce(tensor, ReduceOp.SUM).await();
            System.out.println("goes on: " + tensor.toFloatArray()[999]);
        }
    }
}

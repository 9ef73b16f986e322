// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.nativeops.cuda.GpuTopology;

/** One rank of {@link CudaP2pProcessesTest} or {@link CudaP2pMeshTest}. */
public final class CudaP2pRankMain {

    private CudaP2pRankMain() {}

    public static void main(String[] args) {
        if (args.length > 0) {
            if (args[0].equals("exit")) {
                exit();
            } else {
                mesh();
            }
            return;
        }
        CudaP2pOptions options = P2pRanks.options().optBufferSize(1 << 20).build();
        try (ProcessGroup group = ProcessGroups.init("cuda_p2p", options);
                NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            assertTrue(group.isP2pAvailable());
            AllReduceCases.check(group, manager);
            System.out.println("passed all");
        }
    }

    /** Rank 0 exits after a call that the other ranks have not made. */
    private static void exit() {
        ProcessGroup group = ProcessGroups.init("cuda_p2p", P2pRanks.options().build());
        NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
        NDArray tensor = manager.ones(new Shape(1000));
        NDArray pid = manager.zeros(new Shape(1)); // exact, as it is less than 2^24
        if (group.rank() == 0) {
            pid.addi(ProcessHandle.current().pid());
        }
        group.allReduce(pid, ReduceOp.SUM).await();
        long first = (long) pid.getFloat();
        if (group.rank() == 0) {
            group.allReduce(tensor, ReduceOp.SUM);
            System.out.println("passed all");
            System.exit(0);
        }
        ProcessHandle.of(first).ifPresent(process -> process.onExit().join());
        String message =
                assertThrows(
                                CollectiveException.class,
                                () -> group.allReduce(tensor, ReduceOp.SUM).await())
                        .getMessage();
        assertTrue(message.contains("its process exits within operations"), message);
        group.destroy();
        System.out.println("passed all");
    }

    /** One rank of {@link CudaP2pMeshTest}. */
    private static void mesh() {
        CudaP2pOptions options =
                P2pRanks.unlinkedOptions().optTopology(GpuTopology.Kind.HYBRID_CUBE_MESH).build();
        try (ProcessGroup group = ProcessGroups.init("cuda_p2p", options);
                NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            AllReduceCases.checkMesh(
                    group, manager, List.of(0, 1, 2, 3), List.of(4, 5, 6, 7), () -> {});
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.cudap2p.Survivors;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** One rank of {@link FusedOpsFailureTest}. The argument is the first round, 0 by default. */
public final class FusedVictimMain {

    private FusedVictimMain() {}

    public static void main(String[] args) throws InterruptedException {
        int first = args.length == 0 ? 0 : Integer.parseInt(args[0]);
        Survivors.run(false, (round, group, manager) -> run(first + round, group, manager));
    }

    /** The model chooses the path, in float32; in each third round it is FUSED, in bfloat16. */
    @SuppressWarnings("try") // the scope is not named in the body
    private static void run(int round, ProcessGroup group, NDManager manager) {
        boolean fused = round % 3 == 2;
        ScalarType type = fused ? ScalarType.BFLOAT16 : ScalarType.FLOAT32;
        try (FusedOps.Scope forced = fused ? FusedOps.force(Path.FUSED) : () -> {};
                NDManager scope = manager.newSubManager()) {
            NDArray a = Torch.cast(scope.ones(new Shape(256, 256)), type);
            NDArray b = Torch.cast(scope.ones(new Shape(256, 256)), type);
            NDArray sum = a;
            for (int i = 0; i < 5; i++) {
                NDArray product =
                        FusedOps.allGatherMatmul(a, List.of(b), 0, group, false).outputs().get(0);
                sum = FusedOps.matmulReduceScatter(product, b, ReduceOp.AVG, 0, group);
            }
            // Waits for the GPU. The next call throws the failure.
            Torch.cast(sum, ScalarType.FLOAT32).toFloatArray();
        }
    }
}

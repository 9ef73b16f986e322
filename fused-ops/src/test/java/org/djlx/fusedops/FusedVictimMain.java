// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.cudap2p.Survivors;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * One rank of {@link FusedOpsFailureTest}. The argument is the forced path, in bfloat16. Without an
 * argument, operators use float32 and the model chooses.
 */
public final class FusedVictimMain {

    private FusedVictimMain() {}

    @SuppressWarnings("try") // the scope is not named in the body
    public static void main(String[] args) throws InterruptedException {
        if (args.length == 0) {
            run(ScalarType.FLOAT32);
            return;
        }
        try (FusedOps.Scope scope = FusedOps.force(Path.valueOf(args[0]))) {
            run(ScalarType.BFLOAT16);
        }
    }

    private static void run(ScalarType type) throws InterruptedException {
        Survivors.run(
                false,
                (group, manager) -> {
                    try (NDManager scope = manager.newSubManager()) {
                        NDArray a = Torch.cast(scope.ones(new Shape(256, 256)), type);
                        NDArray b = Torch.cast(scope.ones(new Shape(256, 256)), type);
                        NDArray sum = a;
                        for (int i = 0; i < 5; i++) {
                            NDArray product =
                                    FusedOps.allGatherMatmul(a, List.of(b), 0, group, false)
                                            .outputs()
                                            .get(0);
                            sum = FusedOps.matmulReduceScatter(product, b, ReduceOp.AVG, 0, group);
                        }
                        // Waits for the GPU. The next call throws the failure.
                        Torch.cast(sum, ScalarType.FLOAT32).toFloatArray();
                    }
                });
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import org.djlx.collectives.ReduceOp;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** One rank of {@link CudaP2pFailureTest}. */
public final class CudaP2pVictimMain {

    private CudaP2pVictimMain() {}

    public static void main(String[] args) throws InterruptedException {
        Survivors.run(
                args[0].equals("between"),
                (round, group, manager) -> {
                    // Many at once, so that the GPU waits, not only the host.
                    try (NDArray tensor =
                            Torch.empty(manager, new Shape(100_000), ScalarType.BFLOAT16)) {
                        for (int i = 0; i < 20; i++) {
                            group.allReduce(tensor, ReduceOp.AVG);
                        }
                        group.allReduce(tensor, ReduceOp.AVG)
                                .await(group.timeout().plusSeconds(10));
                    }
                });
    }
}

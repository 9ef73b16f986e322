/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.cudap2p.Survivors;

/** One rank of {@link FusedOpsFailureTest}. */
public final class FusedVictimMain {

    private FusedVictimMain() {}

    public static void main(String[] args) throws InterruptedException {
        Survivors.run(
                false,
                (group, manager) -> {
                    try (NDManager scope = manager.newSubManager()) {
                        NDArray a = scope.ones(new Shape(256, 256));
                        NDArray b = scope.ones(new Shape(256, 256));
                        NDArray sum = a;
                        for (int i = 0; i < 5; i++) {
                            NDArray product =
                                    FusedOps.allGatherMatmul(a, List.of(b), 0, group, false)
                                            .outputs()
                                            .get(0);
                            sum = FusedOps.matmulReduceScatter(product, b, ReduceOp.AVG, 0, group);
                        }
                        sum.toFloatArray(); // Waits for the GPU; the next call tells what failed.
                    }
                });
    }
}

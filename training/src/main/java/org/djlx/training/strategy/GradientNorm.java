// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import java.util.Collection;
import java.util.function.IntUnaryOperator;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.training.internal.Replica;

/** The 2-norm of gradients that ranks have parts of. */
final class GradientNorm {

    private GradientNorm() {}

    /**
     * Returns the norm over all ranks; {@code group} is null if this rank has all gradients. {@code
     * copies} is, by index, how many ranks of the group have the same gradient.
     */
    static double of(
            Replica replica,
            Collection<NDArray> gradients,
            IntUnaryOperator copies,
            ProcessGroup group) {
        try (NDManager temporary = replica.manager().newSubManager()) {
            NDList norms = new NDList();
            for (NDArray gradient : gradients) {
                NDArray norm = gradient.norm();
                norm.attach(temporary);
                norms.add(norm.toType(DataType.FLOAT64, false));
            }
            CurrentStreams.await(replica.device());
            double squares = 0;
            if (!norms.isEmpty()) {
                double[] values = NDArrays.stack(norms).toDoubleArray();
                for (int i = 0; i < values.length; i++) {
                    squares += values[i] * values[i] / copies.applyAsInt(i);
                }
            }
            if (group != null && group.worldSize() > 1) {
                NDArray sum = temporary.create(new double[] {squares});
                group.allReduce(sum, ReduceOp.SUM).await();
                CurrentStreams.await(replica.device());
                squares = sum.toDoubleArray()[0];
            }
            return Math.sqrt(squares);
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import java.util.Arrays;
import java.util.Collection;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.function.Function;
import java.util.function.IntUnaryOperator;
import java.util.function.ToIntFunction;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.engine.DividedBlock;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.training.internal.Replica;

/** The 2-norm of gradients that ranks have parts of. */
final class GradientNorm {

    private GradientNorm() {}

    /**
     * Returns, by array, how many ranks of a block's {@link DividedBlock} group have the same
     * parameter.
     */
    static ToIntFunction<NDArray> copies(Block block, Function<Parameter, NDArray> arrays) {
        ProcessGroup parts = DividedBlock.groupOf(block);
        int whole = parts == null ? 1 : parts.worldSize();
        Map<NDArray, Integer> copies = new IdentityHashMap<>();
        collectCopies(block, arrays, whole, copies);
        return array -> copies.getOrDefault(array, whole);
    }

    private static void collectCopies(
            Block block,
            Function<Parameter, NDArray> arrays,
            int whole,
            Map<NDArray, Integer> copies) {
        for (Parameter parameter : block.getDirectParameters().values()) {
            int count = block instanceof DividedBlock own ? own.copies(parameter) : whole;
            copies.putIfAbsent(arrays.apply(parameter), count);
        }
        block.getChildren().values().forEach(child -> collectCopies(child, arrays, whole, copies));
    }

    /**
     * Returns the norm over all ranks of groups, of which null has this rank only. {@code copies}
     * is, by index, how many ranks of the groups have the same gradient.
     */
    static double of(
            Replica replica,
            Collection<NDArray> gradients,
            IntUnaryOperator copies,
            ProcessGroup... groups) {
        try (NDManager temporary = replica.manager().newSubManager()) {
            NDList norms = new NDList();
            for (NDArray gradient : gradients) {
                NDArray norm = gradient.norm();
                norm.attach(temporary);
                norms.add(norm.toType(DataType.FLOAT64, false).toDevice(replica.device(), false));
            }
            CurrentStreams.await(replica.device());
            double squares = 0;
            if (!norms.isEmpty()) {
                double[] values = NDArrays.stack(norms).toDoubleArray();
                for (int i = 0; i < values.length; i++) {
                    squares += values[i] * values[i] / copies.applyAsInt(i);
                }
            }
            for (ProcessGroup group : groups) {
                if (group != null && group.worldSize() > 1) {
                    NDArray own = temporary.create(new double[] {squares});
                    NDArray all = temporary.zeros(new Shape(group.worldSize()), DataType.FLOAT64);
                    // Kernels of cuda_p2p gather float64; only NCCL reduces it.
                    group.allGatherIntoTensor(all, own).await();
                    CurrentStreams.await(replica.device());
                    squares = Arrays.stream(all.toDoubleArray()).sum();
                }
            }
            return Math.sqrt(squares);
        }
    }
}

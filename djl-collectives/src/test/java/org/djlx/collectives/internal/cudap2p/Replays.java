// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.concurrent.CountDownLatch;
import java.util.function.ToDoubleBiFunction;
import java.util.function.UnaryOperator;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.TestArrays;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaGraph;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** Captures an operation into a CUDA graph, and replays it with new inputs each time. */
public final class Replays {

    private static final int ROUNDS = 1000;
    private static final int VALUES = 50;
    private static final int STEP = 7919; // in an output, to where the next round looks

    private Replays() {}

    /**
     * Checks one rank, in float32. In a round the input of rank r has the value {@code (round % 50
     * + r)} in all elements, so all elements of the output are the same; two are looked at, in each
     * round others.
     *
     * @param group the group
     * @param shape the input's shape
     * @param operation issues the operation on an input; returns its output
     * @param expected the value of the output, from the round and the number of ranks
     */
    public static void check(
            ProcessGroup group,
            Shape shape,
            UnaryOperator<NDArray> operation,
            ToDoubleBiFunction<Integer, Integer> expected) {
        check(group, ScalarType.FLOAT32, shape, operation, expected);
    }

    /**
     * As above, in another element type: what is expected is rounded to it, once.
     *
     * @param group the group
     * @param type the type of input and output
     * @param shape the input's shape
     * @param operation issues the operation on an input; returns its output
     * @param expected the value of the output, from the round and the number of ranks
     */
    public static void check(
            ProcessGroup group,
            ScalarType type,
            Shape shape,
            UnaryOperator<NDArray> operation,
            ToDoubleBiFunction<Integer, Integer> expected) {
        check(group, type, shape, operation, expected, ROUNDS);
    }

    /** As above, so many rounds. */
    static void check(
            ProcessGroup group,
            ScalarType type,
            Shape shape,
            UnaryOperator<NDArray> operation,
            ToDoubleBiFunction<Integer, Integer> expected,
            int rounds) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
                CudaDevice device = CudaDevice.open(group.device());
                CudaStream stream = CudaStream.create(device)) {
            CudaStreamGuard guard = Torch.cudaStreamGuard(group.device(), stream.handle());
            try {
                NDArray input = Torch.empty(manager, shape, type);
                NDArray column = manager.arange((float) VALUES).add(group.rank());
                NDArray values =
                        Torch.cast(column.reshape(VALUES, 1), type).repeat(1, shape.size());
                NDArray outputs = Torch.cast(manager.zeros(new Shape(rounds, 2)), type);
                // What libtorch takes from the driver and loads, it does now; the graph keeps its
                // own.
                for (int i = 0; i < 3; i++) {
                    try (NDArray kept = operation.apply(input)) {
                        kept.getShape();
                        once(operation, input);
                    }
                }
                stream.synchronize();
                NDArray[] output = new NDArray[1];
                try (CudaGraph graph =
                        CudaGraph.capture(stream, () -> output[0] = operation.apply(input))) {
                    for (int round = 0; round < rounds; round++) {
                        copy(stream, input, 0, values, round % VALUES * shape.size(), shape.size());
                        graph.launch(stream);
                        long last = output[0].size() - 1;
                        long place = (long) STEP * round % (last + 1);
                        copy(stream, outputs, 2L * round, output[0], place, 1);
                        copy(stream, outputs, 2L * round + 1, output[0], last - place, 1);
                        if (round % VALUES == VALUES - 1) {
                            once(operation, input);
                        }
                    }
                    float[] all =
                            TestArrays.awaited(Torch.cast(outputs, ScalarType.FLOAT32))
                                    .toFloatArray();
                    float[] wanted = new float[VALUES];
                    for (int value = 0; value < VALUES; value++) {
                        wanted[value] = (float) expected.applyAsDouble(value, group.worldSize());
                    }
                    NDArray rounded = Torch.cast(manager.create(wanted), type);
                    wanted =
                            TestArrays.awaited(Torch.cast(rounded, ScalarType.FLOAT32))
                                    .toFloatArray();
                    for (int i = 0; i < all.length; i++) {
                        int round = i / 2;
                        float want = wanted[round % VALUES];
                        assertEquals(want, all[i], 1e-5 * Math.abs(want), "round " + round);
                    }
                    stream.synchronize();
                }
            } finally {
                guard.close();
            }
        }
    }

    /** Waits for another rank of this process. */
    public static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    /** An operation between replays, on a copy of the input. */
    private static void once(UnaryOperator<NDArray> operation, NDArray input) {
        try (NDArray copy = Torch.cast(input, Torch.scalarType(input));
                NDArray output = operation.apply(copy)) {
            output.getShape();
        }
    }

    /** Copies elements, without libtorch, which might take memory. */
    private static void copy(
            CudaStream stream, NDArray to, long toIndex, NDArray from, long fromIndex, long count) {
        long itemSize = Torch.scalarType(to).itemSize();
        stream.copyAsync(
                Torch.dataPointer(to) + toIndex * itemSize,
                Torch.dataPointer(from) + fromIndex * itemSize,
                count * itemSize);
    }
}

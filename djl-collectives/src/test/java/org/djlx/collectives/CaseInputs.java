// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** Inputs of the cases, the same on all ranks, and their expected results. */
public final class CaseInputs {

    static final List<ScalarType> REDUCED =
            List.of(
                    ScalarType.FLOAT32,
                    ScalarType.FLOAT64,
                    ScalarType.FLOAT16,
                    ScalarType.BFLOAT16,
                    ScalarType.INT8,
                    ScalarType.UINT8,
                    ScalarType.INT32,
                    ScalarType.INT64,
                    ScalarType.BOOL);
    static final List<ScalarType> MOVED =
            List.of(
                    ScalarType.FLOAT32,
                    ScalarType.BFLOAT16,
                    ScalarType.FLOAT8_E4M3FN,
                    ScalarType.INT64,
                    ScalarType.BOOL);
    public static final List<ReduceOp> OPS =
            Stream.concat(
                            ReduceOp.constants().stream(),
                            Stream.of(ReduceOp.premulSum(0.3), ReduceOp.premulSum(-2)))
                    .toList();

    /** None, one, odd, and more than fits into a staging half of the test's groups. */
    static final int[] COUNTS = {0, 1, 7, 1000, 100_003};

    /** The parameters of an input. */
    private record Input(ScalarType type, Shape shape, long seed) {}

    private static final int KEPT = 16;

    /** The latest inputs, of two operations of 8 ranks. */
    private static final Map<Input, FutureTask<double[]>> LATEST =
            Collections.synchronizedMap(
                    new LinkedHashMap<>() {
                        private static final long serialVersionUID = 1L;

                        @Override
                        protected boolean removeEldestEntry(
                                Map.Entry<Input, FutureTask<double[]>> eldest) {
                            return size() > KEPT;
                        }
                    });

    private CaseInputs() {}

    static long seed(int rank, int salt) {
        return 1000L * salt + rank;
    }

    /**
     * Returns the elements of all ranks' inputs, as {@code [rank][element]}; do not modify. Ranks
     * that are threads share them: each creates its own and reads those of the others. Otherwise 8
     * ranks would create the inputs of 8 ranks each.
     */
    static double[][] inputs(
            ProcessGroup group, NDManager manager, ScalarType type, Shape shape, int salt) {
        double[][] inputs = new double[group.worldSize()][];
        for (int i = 0; i < inputs.length; i++) {
            int rank = (group.rank() + i) % inputs.length;
            inputs[rank] = values(manager, new Input(type, shape, seed(rank, salt)));
        }
        return inputs;
    }

    private static double[] values(NDManager manager, Input input) {
        FutureTask<double[]> task =
                new FutureTask<>(
                        () -> {
                            try (NDArray array =
                                    TestArrays.random(
                                            manager, input.type, input.shape, input.seed)) {
                                return TestArrays.values(array);
                            }
                        });
        FutureTask<double[]> earlier = LATEST.putIfAbsent(input, task);
        if (earlier == null) {
            task.run();
        }
        try {
            return (earlier == null ? task : earlier).get();
        } catch (InterruptedException | ExecutionException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Compares a result with double precision, and bit for bit with the contract's definition. */
    public static void assertReduced(
            double[][] inputs, int from, NDArray result, ReduceOp op, ScalarType elements) {
        ScalarType type = elements.real();
        double[] actual = TestArrays.values(result);
        boolean inRankOrder = !Torch.device(result).isGpu();
        for (int i = 0; i < actual.length; i++) {
            int element = from + i;
            double[] parts = new double[inputs.length];
            for (int rank = 0; rank < parts.length; rank++) {
                parts[rank] = inputs[rank][element];
            }
            Supplier<String> place = () -> op + " " + type + " [" + element + "]";
            if (inRankOrder || !type.isFloatingPoint()) {
                assertEquals(RankOrder.rounded(parts, op, type), actual[i], place);
            }
            if (type.isFloatingPoint()) {
                double exact = RankOrder.exact(parts, op);
                double magnitude = 0;
                for (double part : parts) {
                    magnitude += Math.abs(part * op.factor());
                }
                // No partial sum is larger; of products of such numbers, the last counts.
                magnitude = Math.max(magnitude, Math.abs(exact));
                ScalarType between = type == ScalarType.FLOAT64 ? type : ScalarType.FLOAT32;
                double tolerance =
                        epsilon(type) * Math.abs(exact)
                                + (parts.length + 1) * epsilon(between) * magnitude;
                if (!inRankOrder) {
                    // NCCL rounds to the element type at every rank, and the factor as well.
                    tolerance += (parts.length + 1) * epsilon(type) * magnitude;
                }
                assertEquals(exact, actual[i], tolerance + smallest(type), place);
            }
        }
    }

    /** Half a unit of the subnormal numbers: the rounding error near zero. */
    private static double smallest(ScalarType type) {
        return switch (type) {
            case FLOAT64 -> Double.MIN_VALUE;
            case FLOAT16 -> 0x1p-25;
            default -> Float.MIN_VALUE;
        };
    }

    private static double epsilon(ScalarType type) {
        return switch (type) {
            case FLOAT64 -> 0x1p-53;
            case FLOAT32 -> 0x1p-24;
            case FLOAT16 -> 0x1p-11;
            case BFLOAT16 -> 0x1p-8;
            default -> 0;
        };
    }

    static List<NDArray> empty(NDManager manager, ScalarType type, Shape shape, int n) {
        return IntStream.range(0, n).mapToObj(i -> Torch.empty(manager, shape, type)).toList();
    }

    static double[] concatenated(double[][] parts) {
        return Arrays.stream(parts).flatMapToDouble(Arrays::stream).toArray();
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.util.Arrays;
import java.util.Random;
import java.util.stream.IntStream;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Sums of contributions. {@code MpiSumsMain} checks those of MPI in the same way. */
public class JavaSumsTest {

    private static final double[] SPECIAL = {
        0.0,
        -0.0,
        1e-45,
        -1e-45,
        1e-310,
        3.4e38,
        1e308,
        -1e308,
        Double.POSITIVE_INFINITY,
        Double.NEGATIVE_INFINITY,
        Double.NaN
    };

    @ParameterizedTest
    @CsvSource({"1, -1", "1000, -1", "4096, 0", "4097, 1", "16384, 2"})
    void addsToTheSameBitsAsLibtorch(int count, int place) {
        addsToTheSameBitsAsLibtorch(new JavaSums(), count, ScalarType.FLOAT32, place);
    }

    /**
     * Checks a sum.
     *
     * @param place the rank whose contribution the result overwrites; -1 for none
     */
    public static void addsToTheSameBitsAsLibtorch(
            Reducer.Sums sums, int count, ScalarType type, int place) {
        assertTrue(sums.canAdd(count, type));
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray[] parts = new NDArray[3];
            for (int rank = 0; rank < parts.length; rank++) {
                parts[rank] = Torch.cast(manager.create(values(count, rank)), type);
            }
            NDArray expected = Torch.cast(parts[0], type);
            TorchInPlace.add(expected, parts[1]);
            TorchInPlace.add(expected, parts[2]);

            NDArray result = place < 0 ? Torch.cast(parts[0], type) : parts[place];
            long[] addresses = Arrays.stream(parts).mapToLong(Torch::dataPointer).toArray();
            sums.add(Torch.dataPointer(result), addresses, count, type);
            assertArrayEquals(expected.toByteBuffer().array(), result.toByteBuffer().array());
        }
    }

    /** Numbers whose sum depends on the order, and all pairs of special ones. */
    private static double[] values(int count, int rank) {
        Random random = new Random(rank);
        return IntStream.range(0, count)
                .mapToDouble(
                        i -> {
                            int row = rank == 0 ? i % SPECIAL.length : i / SPECIAL.length;
                            return rank < 2 && row < SPECIAL.length
                                    ? SPECIAL[row]
                                    : random.nextGaussian() * Math.pow(10, random.nextInt(6));
                        })
                .toArray();
    }

    @ParameterizedTest
    @CsvSource({"16385, FLOAT32", "1, FLOAT64", "1, FLOAT16", "1, INT32", "1, BFLOAT16"})
    void refusesOtherTypesAndLargeSums(int count, ScalarType type) {
        assertFalse(new JavaSums().canAdd(count, type));
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import com.sun.jna.Pointer;
import java.nio.charset.StandardCharsets;
import java.util.Optional;
import java.util.Random;
import java.util.function.Supplier;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The matmul and memory rates of a GPU model. They are measured once and kept in the {@link
 * KernelCache}. Delete the file {@code rates-*} there to measure again, for example if another
 * program used the GPU during the measurement.
 *
 * @param gpu the product's name, for example {@code NVIDIA H200}
 * @param teraflops the rate of a matmul of 4096 × 8192 by 8192 × 8192 random numbers in bfloat16,
 *     or float16 if the GPU has no bfloat16, in 10^12 operations a second
 * @param gigabytesPerSecond the rate of reading and writing memory together, in a copy of 256 MiB
 */
public record GpuRates(
        String gpu, int multiprocessors, double teraflops, double gigabytesPerSecond) {

    private static final Logger LOGGER = LoggerFactory.getLogger(GpuRates.class);

    private static final int ROWS = 4096;
    private static final int SIZE = 8192; // of B, a square matrix
    private static final long A_BYTES = 2L * ROWS * SIZE;
    private static final long B_BYTES = 2L * SIZE * SIZE;
    private static final long BYTES = 2 * A_BYTES + B_BYTES; // A, B and the product
    private static final int PATTERN_BYTES = 4 << 20;
    private static final int RUNS = 10;

    /**
     * Returns the rates of a GPU, from the user's cache or measured.
     *
     * @return the rates; empty if they cannot be measured, because cuBLASLt is not available or 512
     *     MiB of memory are not free
     */
    public static Optional<GpuRates> of(CudaDevice device) {
        try {
            return Optional.of(
                    cached(
                            KernelCache.user(),
                            device.name(),
                            device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT),
                            () -> measure(device)));
        } catch (CudaException | UnsatisfiedLinkError e) {
            LOGGER.info("cannot measure the rates of {}: {}", device, e.toString());
            return Optional.empty();
        }
    }

    /** Returns the rates from a cache; measures them if the cache has none. */
    static GpuRates cached(
            KernelCache cache, String gpu, int multiprocessors, Supplier<double[]> measure) {
        byte[] content =
                cache.get(
                        KernelCache.name("rates-", gpu + " " + multiprocessors),
                        () -> {
                            double[] rates = measure.get();
                            return (rates[0] + " " + rates[1]).getBytes(StandardCharsets.UTF_8);
                        });
        String[] rates = new String(content, StandardCharsets.UTF_8).split(" ");
        return new GpuRates(
                gpu, multiprocessors, Double.parseDouble(rates[0]), Double.parseDouble(rates[1]));
    }

    private static double[] measure(CudaDevice device) {
        ScalarType type = device.hasBfloat16() ? ScalarType.BFLOAT16 : ScalarType.FLOAT16;
        MatrixLayout a = MatrixLayout.contiguous(ROWS, SIZE);
        MatrixLayout b = MatrixLayout.contiguous(SIZE, SIZE);
        try (CublasLt cublas = CublasLt.create(device);
                CublasLtMatmul matmul =
                        cublas.plan(type, type, a, a, b, 256)
                                .orElseThrow(
                                        () ->
                                                new UnsatisfiedLinkError(
                                                        "cuBLASLt has no matmul of " + type));
                NativeMemory numbers = CudaMemory.allocate(device, BYTES);
                NativeMemory copy = CudaMemory.allocate(device, BYTES);
                CudaStream stream = CudaStream.create(device)) {
            fill(device, stream, numbers, type);
            long from = numbers.address();
            double copied = seconds(stream, () -> stream.copyAsync(copy.address(), from, BYTES));
            double multiplied =
                    seconds(
                            stream,
                            () ->
                                    matmul.run(
                                            stream,
                                            from + A_BYTES + B_BYTES,
                                            from,
                                            from + A_BYTES));
            double operations = 2.0 * ROWS * SIZE * SIZE;
            return new double[] {operations / multiplied / 1e12, 2.0 * BYTES / copied / 1e9};
        }
    }

    /** Fills memory with random numbers: GPUs multiply zeros at a higher clock. */
    private static void fill(
            CudaDevice device, CudaStream stream, NativeMemory memory, ScalarType type) {
        try (NativeMemory pattern = CudaMemory.allocatePinned(device, PATTERN_BYTES)) {
            short[] numbers = new short[PATTERN_BYTES / Short.BYTES];
            Random random = new Random(1);
            for (int i = 0; i < numbers.length; i++) {
                int bits = random.nextInt();
                // A sign, an exponent for magnitudes from 0.5 to 1, and a random mantissa.
                numbers[i] =
                        type == ScalarType.BFLOAT16
                                ? (short) (bits & 0x807f | 0x3f00)
                                : (short) (bits & 0x83ff | 0x3800);
            }
            new Pointer(pattern.address()).write(0, numbers, 0, numbers.length);
            for (long at = 0; at < memory.byteSize(); at += PATTERN_BYTES) {
                stream.copyAsync(memory.address() + at, pattern.address(), PATTERN_BYTES);
            }
            stream.synchronize();
        }
    }

    /** Returns the seconds of the fastest of 10 runs on the GPU, after one warm-up run. */
    public static double seconds(CudaStream stream, Runnable work) {
        double fastest = Double.MAX_VALUE;
        try (CudaEvent begin = CudaEvent.createTiming(stream.device());
                CudaEvent end = CudaEvent.createTiming(stream.device())) {
            for (int run = 0; run <= RUNS; run++) {
                begin.record(stream);
                work.run();
                end.record(stream);
                end.synchronize();
                if (run > 0) {
                    fastest = Math.min(fastest, end.elapsedMillisSince(begin) / 1e3);
                }
            }
        }
        return fastest;
    }
}

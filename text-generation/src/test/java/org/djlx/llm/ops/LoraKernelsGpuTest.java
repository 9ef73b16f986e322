// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.TestArrays;
import org.djlx.llm.model.Quantization;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaGraph;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Matmuls with LoRA adapters, in a CUDA graph, compared with loops in float64. */
@Tag("gpu")
@Tag("beside")
@Timeout(120)
class LoraKernelsGpuTest {

    private static final int PROJECTIONS = 4; // of an adapter; the first one has no matrices
    private static final int[] SLICES = {1000, 136, 168};
    private static final int[] GATED_SLICES = {648, 648};

    /** An adapter in float64: for each slice A and B, or null. */
    private record Adapter(int rank, double[][] a, double[][] b) {}

    private final Random random = new Random(3);
    private int inputs;
    private NDManager manager;
    private ScalarType type;

    private double[] values(NDArray array) {
        return TestArrays.values(array);
    }

    private NDArray array(int rows, int columns, double[] values) {
        return TestArrays.of(manager, type, new Shape(rows, columns), values);
    }

    private double[] gaussian(int count, double scale) {
        double[] values = random.doubles(count).map(v -> scale * (2 * v - 1)).toArray();
        return values(array(1, count, values)); // rounded to the type
    }

    private Adapter adapter(int rank, int[] slices, boolean... present) {
        double[][] a = new double[slices.length][];
        double[][] b = new double[slices.length][];
        for (int i = 0; i < slices.length; i++) {
            if (present[i]) {
                a[i] = gaussian(rank * inputs, 0.1);
                b[i] = gaussian(slices[i] * rank, 1);
            }
        }
        return new Adapter(rank, a, b);
    }

    /** Writes an adapter as Adapters does: A stacked, B block-diagonal, ranks filled up. */
    private NDArray table(Adapter of, int[] slices) {
        int padded =
                (of.rank + LoraKernels.RANK_STEP - 1)
                        / LoraKernels.RANK_STEP
                        * LoraKernels.RANK_STEP;
        int depth = (int) IntStream.range(0, slices.length).filter(i -> of.a[i] != null).count();
        depth *= padded;
        int outputs = IntStream.of(slices).sum();
        double[] a = new double[depth * inputs];
        double[] b = new double[outputs * depth];
        List<Adapters.Outputs> all = new ArrayList<>();
        int column = 0;
        int end = 0;
        for (int i = 0; i < slices.length; i++) {
            boolean there = of.a[i] != null;
            for (int row = 0; there && row < slices[i]; row++) {
                int to = (end + row) * depth + column;
                System.arraycopy(of.b[i], row * of.rank, b, to, of.rank);
            }
            end += slices[i];
            all.add(new Adapters.Outputs(end, there ? column : -1));
            if (there) {
                System.arraycopy(of.a[i], 0, a, column * inputs, of.rank * inputs);
                column += padded;
            }
        }
        List<Adapters.LowRank> projections = new ArrayList<>();
        Adapters.LowRank matrices =
                depth == 0
                        ? null
                        : new Adapters.LowRank(
                                linear(array(depth, inputs, a)),
                                linear(array(outputs, depth, b)),
                                padded,
                                all);
        projections.add(null);
        while (projections.size() < PROJECTIONS) {
            projections.add(matrices);
        }
        return LoraKernels.table(manager, projections);
    }

    private static ModelWeights.Linear linear(NDArray matrix) {
        return new ModelWeights.Linear(matrix.transpose(), null);
    }

    /** A sum, and the sum of absolute values that bounds its error. */
    private record Sum(double value, double most) {}

    private static Sum dot(double[] a, int beginA, double[] b, int beginB, int count) {
        double value = 0;
        double most = 0;
        for (int i = 0; i < count; i++) {
            double product = a[beginA + i] * b[beginB + i];
            value += product;
            most += Math.abs(product);
        }
        return new Sum(value, most);
    }

    /** Returns what an adapter adds to each output of a row of x. */
    private Sum[] added(Adapter of, int[] slices, double[] x, int row) {
        Sum[] added = new Sum[IntStream.of(slices).sum()];
        int output = 0;
        for (int i = 0; i < slices.length; i++) {
            double[] low = new double[of.rank];
            double[] most = new double[of.rank];
            for (int r = 0; of.a[i] != null && r < of.rank; r++) {
                Sum sum = dot(of.a[i], r * inputs, x, row * inputs, inputs);
                low[r] = sum.value;
                most[r] = sum.most;
            }
            for (int n = 0; n < slices[i]; n++, output++) {
                double value = 0;
                double bound = 0;
                for (int r = 0; of.a[i] != null && r < of.rank; r++) {
                    double b = of.b[i][n * of.rank + r];
                    value += b * low[r];
                    bound += Math.abs(b) * most[r];
                }
                added[output] = new Sum(value, bound);
            }
        }
        return added;
    }

    private long[] groups(List<NDArray> tables, int[] mix) {
        ByteBuffer groups =
                ByteBuffer.allocate((LoraKernels.groupBytes(mix.length) + 7) / 8 * 8)
                        .order(ByteOrder.nativeOrder());
        LoraKernels.writeGroups(
                groups,
                IntStream.of(mix)
                        .mapToLong(i -> i < 0 ? 0 : Torch.dataPointer(tables.get(i)))
                        .toArray());
        long[] words = new long[groups.capacity() / Long.BYTES];
        groups.clear().asLongBuffer().get(words);
        return words;
    }

    @ParameterizedTest(name = "{0}, rank {1}, {2} rows of {3}")
    @CsvSource({
        "BFLOAT16, 1, 1, 2056",
        "FLOAT16, 8, 1, 2056",
        "BFLOAT16, 16, 1, 2056",
        "BFLOAT16, 64, 1, 2056",
        "FLOAT16, 1, 3, 2056",
        "BFLOAT16, 8, 3, 2056",
        "FLOAT16, 16, 3, 2056",
        "BFLOAT16, 64, 3, 2056",
        "BFLOAT16, 16, 100, 9232",
        "BFLOAT16, 1, 32, 2056",
        "FLOAT16, 8, 32, 2056",
        "BFLOAT16, 16, 32, 2056",
        "FLOAT16, 16, 32, 2056",
        "BFLOAT16, 64, 32, 2056",
        "BFLOAT16, 1, 256, 2056",
        "BFLOAT16, 8, 256, 2056",
        "FLOAT16, 16, 256, 2056",
        "BFLOAT16, 64, 256, 2056",
        "BFLOAT16, 256, 100, 2056",
        "FLOAT16, 16, 9, 8",
        "BFLOAT16, 24, 5, 1024",
        "BFLOAT16, 16, 3, 16384",
        "FLOAT16, 64, 3, 20008"
    })
    void rowsGetTheirAdapters(ScalarType elements, int rank, int rows, int inputs) {
        GpuTests.require(1, NativeLibrary.NVRTC);
        type = elements;
        this.inputs = inputs;
        KernelCompiler compiler = new KernelCompiler(KernelCache.user());
        try (NDManager arrays = NDManager.newBaseManager(Device.gpu(0));
                CudaDevice device = CudaDevice.open(Device.gpu(0));
                CudaStream stream = CudaStream.create(device);
                DecoderKernels kernels =
                        new DecoderKernels(
                                device,
                                compiler,
                                new DecoderKernels.Model(
                                        type,
                                        new WeightFormat(Quantization.NONE),
                                        DecoderKernels.MATMUL_ROWS,
                                        128,
                                        4,
                                        16,
                                        16));
                LoraKernels lora =
                        new LoraKernels(
                                device, type, arrays, DecoderKernels.MAX_ROWS, 1500, PROJECTIONS)) {
            manager = arrays;
            check(device, stream, kernels, lora, rank, rows, SLICES, false);
            check(device, stream, kernels, lora, rank, rows, GATED_SLICES, true);
        }
    }

    private void check(
            CudaDevice device,
            CudaStream stream,
            DecoderKernels kernels,
            LoraKernels lora,
            int rank,
            int rows,
            int[] slices,
            boolean gated) {
        int outputs = IntStream.of(slices).sum();
        int width = gated ? outputs / 2 : outputs;
        boolean third = slices.length == 3;
        List<Adapter> adapters =
                List.of(
                        adapter(rank, slices, true, true, third),
                        adapter(rank, slices, true, false, third),
                        adapter(3, slices, false, true, false),
                        adapter(rank, slices, false, false, false));
        List<NDArray> tables = adapters.stream().map(of -> table(of, slices)).toList();
        double[] x = gaussian(rows * inputs, 1);
        double[] weight = gaussian(outputs * inputs, 0.1);
        long xAddress = Torch.dataPointer(array(rows, inputs, x));
        long weightAddress = Torch.dataPointer(array(outputs, inputs, weight));
        double[] before = gaussian(rows * (outputs + 2), 5);
        NDArray product = array(rows, outputs + 2, before);
        NDArray few = Torch.empty(manager, new Shape(rows, width), type);
        NDArray wide = Torch.empty(manager, new Shape(rows, width), type);
        WideMatmul wideMatmul = kernels.wideMatmul(manager);
        boolean isWide = wideMatmul != null && rows <= WideMatmul.MAX_ROWS;
        QuantizeKernels.Matrix left = new QuantizeKernels.Matrix(16, xAddress, 0, rows, inputs);
        QuantizeKernels.Matrix right =
                new QuantizeKernels.Matrix(16, weightAddress, 0, outputs, inputs);
        MatmulChain.Link link =
                new MatmulChain.Link(
                        gated, Torch.dataPointer(few), width, xAddress, right, 0, null);
        // Adapters of rows: -1 for none.
        List<int[]> mixes =
                List.of(
                        IntStream.range(0, rows).map(i -> (i * 7 + 1) % 5 - 1).toArray(),
                        IntStream.range(0, rows).map(i -> i % 3 == 1 ? -1 : 0).toArray(),
                        IntStream.range(0, rows).map(i -> -1).toArray(),
                        IntStream.range(0, rows).map(i -> (i + 1) % 4).toArray());
        NDArray groups = manager.create(groups(tables, mixes.get(0)));
        device.synchronize();
        try (CudaGraph graph =
                CudaGraph.capture(
                        stream,
                        () -> {
                            LoraKernels.Step step =
                                    lora.begin(stream, rows, Torch.dataPointer(groups));
                            step.shrink(1, xAddress, inputs);
                            kernels.matmul(stream, rows, link, step.expand(outputs));
                            step.shrink(2, xAddress, inputs);
                            if (isWide) {
                                wideMatmul.launch(
                                        stream,
                                        gated,
                                        left,
                                        right,
                                        0,
                                        Torch.dataPointer(wide),
                                        width,
                                        step.expand(outputs));
                            }
                            step.shrink(3, xAddress, inputs);
                            step.expandInto(Torch.dataPointer(product), outputs, outputs + 2);
                        })) {
            List<List<double[]>> results = List.of(new ArrayList<>(), new ArrayList<>());
            for (int[] mix : mixes) {
                try (NDArray next = manager.create(groups(tables, mix));
                        NDArray fresh = array(rows, outputs + 2, before)) {
                    Torch.copy(groups, next);
                    Torch.copy(product, fresh);
                }
                device.synchronize();
                graph.launch(stream);
                device.synchronize();
                results.get(0).add(values(few));
                results.get(1).add(isWide ? values(wide) : values(few));
                requireNear(values(few), x, weight, adapters, mix, slices, gated);
                if (isWide) {
                    requireNear(values(wide), x, weight, adapters, mix, slices, gated);
                }
                requireAdded(values(product), before, x, adapters, mix, slices);
            }
            results.forEach(of -> requireSameRows(of, mixes, width));
        }
    }

    /** Requires that a row has the same bits whatever the others have. */
    private static void requireSameRows(List<double[]> results, List<int[]> mixes, int width) {
        double[] plain = results.get(2); // No row has an adapter.
        for (int m = 0; m < mixes.size(); m++) {
            for (int row = 0; row < mixes.get(m).length; row++) {
                int adapter = mixes.get(m)[row];
                double[] same =
                        adapter < 0 ? plain : adapter == mixes.get(0)[row] ? results.get(0) : null;
                if (same != null) {
                    assertArrayEquals(row(same, row, width), row(results.get(m), row, width));
                }
            }
        }
    }

    private static double[] row(double[] all, int row, int width) {
        return Arrays.copyOfRange(all, row * width, (row + 1) * width);
    }

    private void requireNear(
            double[] actual,
            double[] x,
            double[] weight,
            List<Adapter> adapters,
            int[] mix,
            int[] slices,
            boolean gated) {
        int outputs = IntStream.of(slices).sum();
        int width = gated ? outputs / 2 : outputs;
        for (int row = 0; row < mix.length; row++) {
            Sum[] sums = new Sum[outputs];
            Sum[] added = mix[row] < 0 ? null : added(adapters.get(mix[row]), slices, x, row);
            for (int n = 0; n < outputs; n++) {
                Sum sum = dot(x, row * inputs, weight, n * inputs, inputs);
                sums[n] =
                        added == null
                                ? sum
                                : new Sum(sum.value + added[n].value, sum.most + added[n].most);
            }
            for (int n = 0; n < width; n++) {
                double expected = sums[n].value;
                double most = sums[n].most;
                if (gated) {
                    Sum value = sums[width + n];
                    // The derivative of silu is at most 1.1.
                    most = 1.1 * most * Math.abs(value.value) + Math.abs(expected) * value.most;
                    expected *= value.value / (1 + Math.exp(-expected));
                }
                require(expected, most, actual[row * width + n], row, n);
            }
        }
    }

    private void requireAdded(
            double[] actual,
            double[] before,
            double[] x,
            List<Adapter> adapters,
            int[] mix,
            int[] slices) {
        int outputs = IntStream.of(slices).sum();
        int stride = outputs + 2;
        for (int row = 0; row < mix.length; row++) {
            Sum[] added = mix[row] < 0 ? null : added(adapters.get(mix[row]), slices, x, row);
            for (int n = 0; n < stride; n++) {
                int at = row * stride + n;
                if (added == null || n >= outputs) {
                    assertTrue(before[at] == actual[at], "row " + row + ", column " + n);
                } else {
                    require(before[at] + added[n].value, added[n].most, actual[at], row, n);
                }
            }
        }
    }

    private void require(double expected, double most, double actual, int row, int column) {
        double rounding = type == ScalarType.BFLOAT16 ? 0x1p-8 : 0x1p-11;
        double bound = rounding * Math.abs(expected) + 1e-5 * most + 1e-6;
        double error = Math.abs(actual - expected);
        assertTrue(error <= bound, error + " at " + row + ", " + column);
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import java.util.function.IntConsumer;
import java.util.stream.IntStream;
import org.djlx.collectives.GpuTests;
import org.djlx.fusedops.kernel.RmsNormKernels;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.model.QuantizedReference;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaGraph;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Matmuls of few rows, and attention, compared with loops in float64. The bits do not depend on the
 * number of rows.
 */
@Tag("gpu")
@Tag("beside")
@Timeout(120)
class DecoderKernelsGpuTest {

    private static final int GAP = 2; // elements between rows of the output, which stay as they are
    private static final float UNTOUCHED = 77;

    private CudaDevice device;
    private CurrentStreams streams;
    private NDManager manager;
    private WeightFormat format = new WeightFormat(Quantization.NONE);
    private int bits = 16; // of weights
    private WideMatmul wideMatmul; // multiplies in place of the kernels of few rows; or null
    private QuantizeKernels quantizer; // null if they are not quantized

    @BeforeEach
    void open() {
        GpuTests.require(1, NativeLibrary.NVRTC);
        device = CudaDevice.open(Device.gpu(0));
        streams = new CurrentStreams(device);
        manager = NDManager.newBaseManager(Device.gpu(0));
    }

    @AfterEach
    void close() {
        if (manager != null) {
            manager.close();
            streams.close();
            device.close();
        }
    }

    /** Widths for each variant of stripes, and depths that fill a stage only partly. */
    @ParameterizedTest(name = "{0}, gated: {1}, weights of {2} bits, groups of {3}")
    @CsvSource({
        "FLOAT16, false, 16, 0",
        "FLOAT16, true, 16, 0",
        "BFLOAT16, false, 16, 0",
        "BFLOAT16, true, 16, 0",
        "FLOAT16, false, 8, 0",
        "BFLOAT16, false, 8, 0",
        "BFLOAT16, true, 8, 0",
        "FLOAT16, false, 4, 0",
        "BFLOAT16, false, 4, 0",
        "BFLOAT16, true, 4, 0",
        "FLOAT16, false, 4, 32",
        "BFLOAT16, true, 4, 32",
        "BFLOAT16, false, 4, 64",
        "FLOAT16, true, 4, 128"
    })
    void productsDoNotDependOnTheNumberOfRows(
            ScalarType type, boolean gated, int weightBits, int group) {
        use(weightBits, group);
        int wave = device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT) * (gated ? 8 : 16);
        try (DecoderKernels kernels = kernels(type);
                QuantizeKernels quantize = new QuantizeKernels(Device.gpu(0), type, format)) {
            quantizer = quantize;
            check(kernels, type, gated, 40, group > 0 ? 2080 : bits == 8 ? 2064 : 2056);
            int shallow = group > 0 ? 96 : bits == 8 ? 80 : 72;
            int deep = group > 0 ? 544 : 528;
            check(kernels, type, gated, 2 * wave - 5, deep);
            check(kernels, type, gated, 3 * wave - 5, deep);
            check(kernels, type, gated, 4 * wave - 5, shallow);
            check(kernels, type, gated, 7 * wave - 5, shallow);
            check(
                    kernels,
                    type,
                    gated,
                    14 * wave - 5,
                    shallow); // Blocks have two groups of stripes.
        }
    }

    /**
     * Widths for each variant, not multiples of its tiles or of 8; depths that are not multiples of
     * k-blocks, or so small that only one block of a cluster has a k-block.
     */
    @ParameterizedTest(name = "{0}, gated: {1}, {2} bits")
    @CsvSource({
        "FLOAT16, false, 16",
        "FLOAT16, true, 16",
        "BFLOAT16, false, 16",
        "BFLOAT16, true, 16",
        "BFLOAT16, false, 8",
        "BFLOAT16, true, 8"
    })
    void wideProductsAreRightAndTheSameWhateverTheNumberOfRows(
            ScalarType type, boolean gated, int weightBits) {
        use(weightBits, 0);
        int one = gated ? 1 : 2; // a row of the weight, or a gate and a value
        try (DecoderKernels kernels = kernels(type);
                QuantizeKernels quantize = new QuantizeKernels(Device.gpu(0), type, format)) {
            quantizer = quantize;
            wideMatmul = kernels.wideMatmul(manager);
            assumeTrue(wideMatmul != null, "wide matmuls need a Hopper GPU");
            check(kernels, type, gated, 34, 2064);
            check(kernels, type, gated, 1002 * one, 1104);
            check(kernels, type, gated, 102 * one, 48);
            check(kernels, type, gated, 3002 * one, 528);
            check(kernels, type, gated, 7150 * one, 144);
            check(kernels, type, gated, 14300 * one, 144);
            // Two clusters share a tile.
            check(kernels, type, gated, 66 * one, weightBits == 8 ? 9232 : 4240);
            check(kernels, type, gated, 1502 * one, weightBits == 8 ? 6256 : 4112);
            assertFalse(wideMatmul.isFor(mostRows() + 1, 34, 36));
            assertFalse(wideMatmul.isFor(9, 33, 36));
            assertFalse(wideMatmul.isFor(9, 34, 35));
        }
    }

    /** A NaN and an infinity in rows of x change no other row. */
    @ParameterizedTest
    @ValueSource(ints = {16, 8})
    void wideProductsOfUnusualRowsStayInTheirRow(int weightBits) {
        use(weightBits, 0);
        ScalarType type = ScalarType.BFLOAT16;
        int width = 300;
        int depth = 272;
        try (DecoderKernels kernels = kernels(type);
                QuantizeKernels quantize = new QuantizeKernels(Device.gpu(0), type, format)) {
            quantizer = quantize;
            wideMatmul = kernels.wideMatmul(manager);
            assumeTrue(wideMatmul != null, "wide matmuls need a Hopper GPU");
            SplittableRandom random = new SplittableRandom(5);
            try (NDArray x = random(random, mostRows(), depth, type);
                    NDArray weight = random(random, 2 * width, depth, type);
                    NDArray nan = manager.full(new Shape(1), Float.NaN);
                    NDArray infinity = manager.full(new Shape(1), Float.POSITIVE_INFINITY)) {
                float[] usual = multiply(kernels, true, 20, x, weight, null, width);
                Torch.copy(x.get(new NDIndex("3, 70:71")), nan);
                Torch.copy(x.get(new NDIndex("17, 0:1")), infinity);
                float[] unusual = multiply(kernels, true, 20, x, weight, null, width);
                int stride = width + GAP;
                for (int i = 0; i < 20 * stride; i++) {
                    if (i % stride < width && (i / stride == 3 || i / stride == 17)) {
                        assertFalse(Float.isFinite(unusual[i]), "row " + i / stride);
                    } else {
                        assertEquals(usual[i], unusual[i], "row " + i / stride);
                    }
                }
            }
        }
    }

    /**
     * Launches of two models, whose clusters share tiles, have the bits of a launch that runs
     * alone.
     */
    @Test
    void wideProductsAtTheSameTimeAreThoseOfOneAlone() {
        use(16, 0);
        ScalarType type = ScalarType.BFLOAT16;
        int rows = 64;
        int width = 528;
        int depth = 16_384;
        int launches = 200;
        SplittableRandom random = new SplittableRandom(6);
        NDArray weight = random(random, width, depth, type);
        List<NDArray> outputs = new ArrayList<>(); // of each stream: a row for each launch
        List<CudaGraph> graphs = new ArrayList<>();
        try (DecoderKernels kernels = kernels(type);
                CudaStream first = CudaStream.create(device);
                CudaStream second = CudaStream.create(device)) {
            List<CudaStream> both = List.of(first, second);
            for (CudaStream stream : both) {
                WideMatmul matmul = kernels.wideMatmul(manager);
                assumeTrue(matmul != null, "wide matmuls need a Hopper GPU");
                assertTrue(matmul.sharesTiles(rows, stored(weight, manager)));
                NDArray x = random(random, rows, depth, type);
                NDArray output = Torch.empty(manager, new Shape(launches, rows * width), type);
                outputs.add(output);
                streams.get().synchronize();
                IntConsumer launch =
                        i ->
                                matmul.launch(
                                        stream,
                                        false,
                                        stored(x, manager),
                                        stored(weight, manager),
                                        0,
                                        Torch.dataPointer(output.get(i)),
                                        width,
                                        DecoderKernels.Addend.NONE);
                launch.accept(0);
                stream.synchronize();
                Runnable laterLaunches = () -> IntStream.range(1, launches).forEach(launch);
                graphs.add(CudaGraph.capture(stream, laterLaunches));
            }
            IntStream.range(0, 2).forEach(i -> graphs.get(i).launch(both.get(i)));
            both.forEach(CudaStream::synchronize);
            graphs.forEach(CudaGraph::close);
        }
        for (NDArray output : outputs) {
            float[] all = floats(output);
            for (int i = 0; i < all.length; i++) {
                int at = i;
                assertEquals(
                        all[i % (rows * width)],
                        all[i],
                        () -> "launch " + at / (rows * width) + ", " + at % (rows * width));
            }
        }
    }

    private void use(int weightBits, int group) {
        bits = weightBits;
        format =
                new WeightFormat(
                        bits == 16
                                ? Quantization.NONE
                                : bits == 8 ? Quantization.FP8 : Quantization.INT4,
                        group);
    }

    private int mostRows() {
        if (wideMatmul == null) {
            return DecoderKernels.MATMUL_ROWS;
        }
        return bits == 8 ? WideMatmul.MAX_E4M3_ROWS : WideMatmul.MAX_ROWS;
    }

    private DecoderKernels kernels(ScalarType type) {
        KernelCompiler compiler = new KernelCompiler(KernelCache.user());
        int rows = bits == 16 ? DecoderKernels.MATMUL_ROWS : DecoderKernels.QUANTIZED_ROWS;
        return new DecoderKernels(
                device, compiler, new DecoderKernels.Model(type, format, rows, 128, 4, 16, 16));
    }

    private void check(
            DecoderKernels kernels, ScalarType type, boolean gated, int width, int depth) {
        int most = mostRows();
        SplittableRandom random = new SplittableRandom(width);
        try (NDArray x = random(random, most, depth, type);
                NDArray weight = random(random, gated ? 2 * width : width, depth, type);
                NDArray bias = random(random, 1, gated ? 2 * width : width, type)) {
            float[] all = multiply(kernels, gated, most, x, weight, bias, width);
            double[] values = doubles(weight);
            values =
                    switch (bits) {
                        case 8 -> QuantizedReference.fp8(values, depth);
                        case 4 ->
                                format.isOfFiles()
                                        ? Int4Blocks.of(values, depth, format.group()).values()
                                        : QuantizedReference.int4(values, depth);
                        default -> values;
                    };
            boolean roundsX = wideMatmul != null && bits == 8;
            double[] left = roundsX ? QuantizedReference.fp8(doubles(x), depth) : doubles(x);
            requireNear(left, values, floats(bias), all, gated, width, depth, type);
            for (int rows : new int[] {1, 8, 13, 16, 29, 32, 50, most / 2, most / 2 + 1}) {
                float[] expected = all.clone();
                Arrays.fill(expected, rows * (width + GAP), expected.length, UNTOUCHED);
                float[] few = multiply(kernels, gated, rows, x, weight, bias, width);
                assertArrayEquals(expected, few, rows + " rows, width " + width);
            }
        }
    }

    /**
     * A layer's matmuls: x is normed and multiplied; the product is multiplied with gates; that to
     * the size of x; its sum with the residual is normed and multiplied. Rows of 1 to 18 segments,
     * in one window or two; fewer tiles than blocks, and more.
     */
    @ParameterizedTest
    @CsvSource({
        "BFLOAT16, 16, 0, 1, 72, 40",
        "FLOAT16, 16, 0, 1, 1032, 2056",
        "BFLOAT16, 16, 0, 1, 2056, 9224",
        "BFLOAT16, 8, 0, 1, 4096, 5008",
        "BFLOAT16, 8, 0, 3, 80, 48",
        "BFLOAT16, 8, 0, 4, 1040, 9232",
        "BFLOAT16, 8, 0, 8, 4096, 9232",
        "BFLOAT16, 4, 0, 1, 4096, 5120",
        "FLOAT16, 4, 0, 2, 1024, 512",
        "BFLOAT16, 4, 0, 4, 1000, 9216",
        "BFLOAT16, 4, 0, 8, 4096, 9216",
        "BFLOAT16, 4, 32, 3, 992, 9216",
        "FLOAT16, 4, 64, 1, 4096, 5120",
        "BFLOAT16, 4, 128, 8, 4096, 5120"
    })
    void aChainHasTheBitsOfItsMatmuls(
            ScalarType type, int weightBits, int group, int rows, int hidden, int inner) {
        use(weightBits, group);
        KernelCompiler compiler = new KernelCompiler(KernelCache.user());
        try (DecoderKernels kernels = kernels(type);
                QuantizeKernels quantize = new QuantizeKernels(Device.gpu(0), type, format);
                RmsNormKernels norms = new RmsNormKernels(device, streams, compiler, 1);
                NDManager buffers = manager.newSubManager();
                NDArray arrivals = manager.zeros(new Shape(1), DataType.INT32)) {
            quantizer = quantize;
            MatmulChain chain = kernels.chain(hidden, inner, 512);
            assumeTrue(chain != null, "a chain needs a Hopper GPU");
            assertTrue(chain.isFor(rows));
            SplittableRandom random = new SplittableRandom(hidden);
            int narrow = 512;
            int[][] shapes = {{inner, hidden}, {2 * narrow, inner}, {hidden, narrow}, {40, hidden}};
            List<QuantizeKernels.Matrix> weights = new ArrayList<>();
            for (int[] shape : shapes) {
                NDArray weight = random(random, shape[0], shape[1], type);
                weight.attach(buffers);
                weights.add(stored(weight, buffers));
            }
            long x = Torch.dataPointer(random(random, rows, hidden, type));
            long residual = Torch.dataPointer(random(random, rows, hidden, type));
            long factors = Torch.dataPointer(random(random, 1, hidden, type));
            long bias = Torch.dataPointer(random(random, 1, inner, type));
            List<List<float[]>> results = new ArrayList<>();
            for (int round = 0; round < 4; round++) {
                List<NDArray> arrays = new ArrayList<>();
                for (int width : new int[] {inner, narrow, hidden, 40, hidden, hidden}) {
                    arrays.add(random(random, rows, width, type));
                }
                long[] to = arrays.stream().mapToLong(Torch::dataPointer).toArray();
                MatmulChain.Norm first = new MatmulChain.Norm(factors, residual, to[4], 1e-5f);
                MatmulChain.Norm second = new MatmulChain.Norm(factors, to[4], to[5], 1e-5f);
                List<MatmulChain.Link> links =
                        List.of(
                                link(weights.get(0), false, x, to[0], bias, first),
                                link(weights.get(1), true, to[0], to[1], 0, null),
                                link(weights.get(2), false, to[1], to[2], 0, null),
                                link(weights.get(3), false, to[2], to[3], 0, second));
                if (round == 0) {
                    links.forEach(link -> multiplyAlone(kernels, norms, type, rows, link));
                } else {
                    chain.launch(streams.get(), rows, Torch.dataPointer(arrivals), links);
                }
                results.add(arrays.stream().map(DecoderKernelsGpuTest::floats).toList());
                for (int i = 0; i < arrays.size(); i++) {
                    assertArrayEquals(results.get(0).get(i), results.get(round).get(i));
                }
            }
        }
    }

    private static MatmulChain.Link link(
            QuantizeKernels.Matrix weight,
            boolean gated,
            long x,
            long output,
            long bias,
            MatmulChain.Norm norm) {
        long width = weight.rows() / (gated ? 2 : 1);
        return new MatmulChain.Link(gated, output, width, x, weight, bias, norm);
    }

    private void multiplyAlone(
            DecoderKernels kernels,
            RmsNormKernels norms,
            ScalarType type,
            int rows,
            MatmulChain.Link link) {
        try (NDArray normed = Torch.empty(manager, new Shape(rows, link.weight().depth()), type)) {
            long x = link.x();
            if (link.norm() != null) {
                x = Torch.dataPointer(normed);
                norms.add(
                        new RmsNormKernels.Rows(
                                link.norm().newResidual(),
                                x,
                                link.x(),
                                link.norm().residual(),
                                link.norm().weight(),
                                type,
                                rows,
                                link.weight().depth()),
                        link.norm().epsilon());
            }
            kernels.matmul(
                    streams.get(),
                    rows,
                    new MatmulChain.Link(
                            link.gated(),
                            link.output(),
                            link.stride(),
                            x,
                            link.weight(),
                            link.bias(),
                            null),
                    DecoderKernels.Addend.NONE);
            device.synchronize();
        }
    }

    /**
     * Sequences whose cache blocks lie apart, after tokens of earlier sequences: NaN, in e4m3 480.
     * So are the new tokens' slots before each call. Values have magnitudes of 1 to 0.001.
     */
    @ParameterizedTest(name = "{0}, cache of {1} bits, heads of {2}, {3} in a group, window {4}")
    @CsvSource({
        "BFLOAT16, 16, 128, 4, 0",
        "FLOAT16, 16, 80, 1, 100",
        "BFLOAT16, 8, 128, 4, 0",
        "FLOAT16, 8, 128, 8, 0",
        "BFLOAT16, 8, 64, 7, 100",
        "FLOAT16, 8, 80, 1, 0",
        "BFLOAT16, 8, 112, 2, 0",
        "FLOAT16, 8, 16, 3, 0"
    })
    void attentionIsThatOfKeysAndValuesAsTheyAreStored(
            ScalarType type, int cacheBits, int headSize, int groupSize, int window) {
        int[] some = {1, 2, 15, 16, 17, 100, 127, 128, 129, 257, 300, 700};
        int processors = device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
        int rows = Math.max(140, processors);
        int[] lengths = IntStream.range(0, rows).map(i -> some[i % some.length]).toArray();
        lengths[20] = 3000;
        lengths[21] = 2049;
        KernelCompiler compiler = new KernelCompiler(KernelCache.user());
        DecoderKernels.Model model =
                new DecoderKernels.Model(type, format, 8, headSize, groupSize, 16, cacheBits);
        try (DecoderKernels kernels = new DecoderKernels(device, compiler, model);
                AttentionCase all = new AttentionCase(kernels, model, window, lengths)) {
            float[] actual = all.attend(false, true, 0, rows);
            all.requireNear(actual);
            assertArrayEquals(actual, all.attend(true, true, 0, rows));
            // Spans in several waves, by few warps in one, and by many in one; chunks.
            int[] counts = {rows, processors * 3 / 5, processors / 2, some.length};
            for (int count : counts) {
                all.requireNear(all.attend(false, false, 0, count));
            }
            int row = some.length * groupSize * 2 * headSize; // of that many sequences
            float[] few = Arrays.copyOfRange(actual, row, 2 * row);
            assertArrayEquals(few, all.attend(false, true, some.length, 2 * some.length));
        }
    }

    /** Prompts in the KV cache, and the next token of each. */
    private final class AttentionCase implements AutoCloseable {

        private static final int HEADS = 2; // of keys
        private static final int BLOCK = 16;
        private static final int STRIDE = 256; // of the block table
        private static final float[] COSINES = {1, 0, -1, 0}; // of quarter turns
        private static final float[] SINES = {0, 1, 0, -1};

        private final DecoderKernels kernels;
        private final DecoderKernels.Model model;
        private final int window;
        private final int[] lengths;
        private final NDManager buffers = manager.newSubManager();
        private final NDArray[] cached; // keys, values and the scales of both
        private final NDArray[] prompts; // what `cached` has before the new tokens
        private final DecoderKernels.Cache cache;
        private final int[] turns; // quarter turns of each position and pair; rotation is exact
        private final NDArray cosines;
        private final NDArray sines;
        private final NDArray qkv; // of the new tokens
        private final double[] rotated; // the new tokens with queries and keys rotated
        private final int[][] slots; // of each sequence
        private final double[][][] stored = new double[2][][]; // keys and values of each sequence

        AttentionCase(
                DecoderKernels kernels, DecoderKernels.Model model, int window, int... lengths) {
            this.kernels = kernels;
            this.model = model;
            this.window = window;
            this.lengths = lengths;
            int size = model.headSize();
            int blocks = Arrays.stream(lengths).map(length -> (length + BLOCK - 1) / BLOCK).sum();
            long elements = (long) blocks * BLOCK * HEADS * size;
            long scales = (long) blocks * BLOCK * HEADS;
            cached =
                    new NDArray[] {
                        garbage(elements * model.cacheBits() / 8),
                        garbage(elements * model.cacheBits() / 8),
                        garbage(scales * Float.BYTES),
                        garbage(scales * Float.BYTES)
                    };
            cache =
                    new DecoderKernels.Cache(
                            Torch.dataPointer(cached[0]),
                            Torch.dataPointer(cached[1]),
                            Torch.dataPointer(cached[2]),
                            Torch.dataPointer(cached[3]));
            SplittableRandom random = new SplittableRandom(5);
            turns = random.ints(STRIDE * BLOCK * size / 2, 0, 4).toArray();
            cosines = table(COSINES);
            sines = table(SINES);
            slots = new int[lengths.length][];
            int next = blocks;
            for (int row = 0; row < lengths.length; row++) {
                slots[row] = new int[lengths[row]];
                for (int i = 0; i < lengths[row]; i++) {
                    next -= i % BLOCK == 0 ? 1 : 0;
                    slots[row][i] = next * BLOCK + i % BLOCK;
                }
            }
            qkv = tokens(random, lengths.length, model.groupSize() * HEADS, 1);
            stored[0] = new double[lengths.length][];
            stored[1] = new double[lengths.length][];
            rotated = doubles(qkv);
            for (int row = 0; row < lengths.length; row++) {
                int heads = (model.groupSize() + 1) * HEADS; // of queries and keys
                rotate(rotated, row * (heads + HEADS) * size, heads, lengths[row] - 1);
                store(random, row);
            }
            prompts = Arrays.stream(cached).map(NDArray::duplicate).toArray(NDArray[]::new);
        }

        private NDArray garbage(long bytes) {
            return buffers.full(new Shape(bytes), 255, DataType.UINT8);
        }

        /** Returns an entry of {@code ofTurns} for each position and pair. */
        private NDArray table(float... ofTurns) {
            float[] values = new float[turns.length];
            for (int i = 0; i < values.length; i++) {
                values[i] = ofTurns[turns[i]];
            }
            return buffers.create(values, new Shape(STRIDE * BLOCK, model.headSize() / 2));
        }

        /** Rotates heads of a token. */
        private void rotate(double[] all, int begin, int heads, int position) {
            int half = model.headSize() / 2;
            for (int head = 0; head < heads; head++) {
                for (int pair = 0; pair < half; pair++) {
                    int turn = turns[position * half + pair];
                    int i = begin + head * 2 * half + pair;
                    double first = all[i];
                    double second = all[i + half];
                    all[i] = first * COSINES[turn] - second * SINES[turn];
                    all[i + half] = second * COSINES[turn] + first * SINES[turn];
                }
            }
        }

        /** Returns heads of queries, keys and values of tokens. */
        private NDArray tokens(SplittableRandom random, int count, int queries, float magnitude) {
            int size = model.headSize();
            int width = (queries + 2 * HEADS) * size;
            float[] values = new float[count * width];
            for (int i = 0; i < values.length; i++) {
                boolean isValue = i % width >= width - HEADS * size;
                values[i] = (float) random.nextGaussian() * (isValue ? magnitude : 1);
            }
            try (NDArray floats = manager.create(values, new Shape(count, width))) {
                NDArray tokens = Torch.cast(floats, model.type());
                tokens.attach(buffers);
                return tokens;
            }
        }

        /** Stores the prompt of a row, and checks what can be gathered from the cache. */
        private void store(SplittableRandom random, int row) {
            int size = model.headSize();
            int count = lengths[row] - 1;
            float magnitude = (float) Math.pow(10, -(row % 4));
            NDArray prompt = tokens(random, Math.max(1, count), 0, magnitude);
            double[] all = Arrays.copyOf(doubles(prompt), lengths[row] * 2 * HEADS * size);
            for (int token = 0; token < count; token++) {
                rotate(all, token * 2 * HEADS * size, HEADS, token);
            }
            if (count > 0) { // rotates the prompt's keys in place
                kernels.rotateAndCache(
                        streams.get(),
                        count,
                        to -> {
                            cache.putTo(to);
                            int[] positions = IntStream.range(0, count).toArray();
                            to.put("qkv", Torch.dataPointer(prompt))
                                    .put("slots", Torch.dataPointer(buffers.create(slots[row])))
                                    .put("positions", Torch.dataPointer(buffers.create(positions)))
                                    .put("cosines", Torch.dataPointer(cosines))
                                    .put("sines", Torch.dataPointer(sines))
                                    .put("queries", 0)
                                    .put("heads", HEADS);
                        });
            }
            int width = rotated.length / lengths.length;
            System.arraycopy(
                    rotated,
                    (row + 1) * width - 2 * HEADS * size,
                    all,
                    count * 2 * HEADS * size,
                    2 * HEADS * size);
            if (model.cacheBits() == 8) {
                all = QuantizedReference.fp8(all, size);
            }
            for (int i = 0; i < 2; i++) {
                stored[i][row] = new double[lengths[row] * HEADS * size];
                for (int token = 0; token < lengths[row]; token++) {
                    System.arraycopy(
                            all,
                            (2 * token + i) * HEADS * size,
                            stored[i][row],
                            token * HEADS * size,
                            HEADS * size);
                }
            }
            if (count > 0) {
                requireGathered(row, count);
            }
        }

        private void requireGathered(int row, int count) {
            Shape shape = new Shape(count, HEADS * model.headSize());
            long[] from = Arrays.stream(slots[row]).limit(count).asLongStream().toArray();
            try (NDArray keys = Torch.empty(manager, shape, model.type());
                    NDArray values = Torch.empty(manager, shape, model.type());
                    NDArray all = manager.create(from)) {
                kernels.gather(
                        streams.get(),
                        count,
                        to -> {
                            cache.putTo(to);
                            to.put("keys", Torch.dataPointer(keys))
                                    .put("values", Torch.dataPointer(values))
                                    .put("slots", Torch.dataPointer(all))
                                    .put("heads", HEADS);
                        });
                String of = " of row " + row;
                assertArrayEquals(rounded(stored[0][row], count), floats(keys), "keys" + of);
                assertArrayEquals(rounded(stored[1][row], count), floats(values), "values" + of);
            }
        }

        /** Returns heads of some tokens in the model's type. */
        private float[] rounded(double[] heads, int count) {
            float[] some = new float[count * HEADS * model.headSize()];
            for (int i = 0; i < some.length; i++) {
                some[i] = (float) heads[i];
            }
            try (NDArray array = manager.create(some);
                    NDArray narrow = Torch.cast(array, model.type())) {
                return floats(narrow);
            }
        }

        /**
         * Returns the attention of the new tokens of some rows. Checks that the cache then has
         * their keys and values, which it lacks before.
         */
        float[] attend(boolean sharesSequences, boolean keepsOrder, int from, int to) {
            int rows = to - from;
            int size = model.headSize();
            int queries = model.groupSize() * HEADS;
            int[] positions = new int[rows];
            int[] firstChunks = new int[rows + 1];
            int[] table = new int[rows * STRIDE];
            int mostChunks = 0;
            for (int i = 0; i < rows; i++) {
                int length = lengths[from + i];
                int chunks = (length - 1) / DecoderKernels.CHUNK + 1;
                mostChunks = Math.max(mostChunks, chunks);
                positions[i] = length - 1;
                firstChunks[i + 1] = firstChunks[i] + chunks;
                for (int block = 0; block * BLOCK < length; block++) {
                    table[i * STRIDE + block] = slots[from + i][block * BLOCK];
                }
            }
            for (int i = 0; i < cached.length; i++) {
                prompts[i].copyTo(cached[i]);
            }
            // A copy, because the queries and keys of shared sequences are rotated in place.
            try (NDArray own = qkv.get(new NDIndex().addSliceDim(from, to)).duplicate();
                    NDManager step = buffers.newSubManager()) {
                NDArray output = Torch.empty(step, new Shape(rows, queries * size), model.type());
                int chunkSize = queries * (size + DecoderKernels.CHUNK_EXTRA);
                NDArray ended = step.zeros(new Shape(rows, HEADS), DataType.INT32);
                NDArray chunks = step.full(new Shape(firstChunks[rows], chunkSize), Float.NaN);
                kernels.attend(
                        streams.get(),
                        new DecoderKernels.AttentionSize(
                                rows, HEADS, mostChunks, sharesSequences, keepsOrder, false),
                        all -> {
                            cache.putTo(all);
                            all.put("output", Torch.dataPointer(output))
                                    .put("qkv", Torch.dataPointer(own))
                                    .put("positions", Torch.dataPointer(step.create(positions)))
                                    .put("table", Torch.dataPointer(step.create(table)))
                                    .put("cosines", Torch.dataPointer(cosines))
                                    .put("sines", Torch.dataPointer(sines))
                                    .put(
                                            "first_chunks",
                                            Torch.dataPointer(step.create(firstChunks)))
                                    .put("chunks", Torch.dataPointer(chunks))
                                    .put("chunks_ended", Torch.dataPointer(ended))
                                    .put("window", window == 0 ? Integer.MAX_VALUE : window)
                                    .put("table_stride", STRIDE)
                                    .put("heads", HEADS);
                        });
                for (int row = from; row < to; row++) {
                    requireGathered(row, lengths[row]);
                }
                assertArrayEquals(new int[rows * HEADS], ended.toIntArray());
                return floats(output);
            }
        }

        /** Compares the attention of the first rows with loops. */
        void requireNear(float[] actual) {
            int size = model.headSize();
            int queries = model.groupSize() * HEADS;
            int width = rotated.length / lengths.length;
            double rounding = model.type() == ScalarType.BFLOAT16 ? 0x1p-8 : 0x1p-11;
            for (int row = 0; row * queries * size < actual.length; row++) {
                int first = window == 0 ? 0 : Math.max(0, lengths[row] - window);
                for (int query = 0; query < queries; query++) {
                    int head = query / model.groupSize();
                    double[] weights = new double[lengths[row]];
                    double sum = 0;
                    for (int token = first; token < lengths[row]; token++) {
                        int key = (token * HEADS + head) * size;
                        int own = row * width + query * size;
                        double[] score = dot(rotated, own, stored[0][row], key, size);
                        weights[token] = Math.exp(score[0] / Math.sqrt(size));
                        sum += weights[token];
                    }
                    for (int i = 0; i < size; i++) {
                        double expected = 0;
                        double most = 0;
                        for (int token = first; token < lengths[row]; token++) {
                            double value = stored[1][row][(token * HEADS + head) * size + i];
                            expected += weights[token] / sum * value;
                            most += weights[token] / sum * Math.abs(value);
                        }
                        double error =
                                Math.abs(actual[(row * queries + query) * size + i] - expected);
                        // Weights have an error of 1e-5 from their scores.
                        double bound = rounding * Math.abs(expected) + 5e-5 * most + 1e-7;
                        if (!(error <= bound)) {
                            fail(
                                    error
                                            + " of "
                                            + expected
                                            + " at row "
                                            + row
                                            + ", "
                                            + query
                                            + ", "
                                            + i);
                        }
                    }
                }
            }
        }

        @Override
        public void close() {
            buffers.close();
        }
    }

    private NDArray random(SplittableRandom random, int rows, int columns, ScalarType type) {
        float[] values = new float[rows * columns];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        try (NDArray floats = manager.create(values, new Shape(rows, columns))) {
            return Torch.cast(floats, type);
        }
    }

    private static float[] floats(NDArray array) {
        try (NDArray floats = Torch.cast(array, ScalarType.FLOAT32)) {
            return floats.toFloatArray();
        }
    }

    private static double[] doubles(NDArray array) {
        float[] values = floats(array);
        return IntStream.range(0, values.length).mapToDouble(i -> values[i]).toArray();
    }

    /** Returns the weight, quantized if {@link #bits} says so, and its scales. */
    private QuantizeKernels.Matrix stored(NDArray weight, NDManager buffers) {
        long rows = weight.getShape().get(0);
        long depth = weight.getShape().get(1);
        if (bits == 16) {
            return new QuantizeKernels.Matrix(bits, Torch.dataPointer(weight), 0, rows, depth);
        }
        Shape bytes = new Shape(rows, format.rowBytes(depth));
        Shape scales = new Shape(rows, format.rowScales(depth));
        QuantizeKernels.Matrix matrix =
                new QuantizeKernels.Matrix(
                        bits,
                        Torch.dataPointer(Torch.empty(buffers, bytes, ScalarType.UINT8)),
                        Torch.dataPointer(Torch.empty(buffers, scales, ScalarType.FLOAT32)),
                        rows,
                        depth);
        if (format.isOfFiles()) {
            int[] blocks = Int4Blocks.of(doubles(weight), (int) depth, format.group()).words();
            NDArray words = buffers.create(blocks);
            quantizer.pack(Torch.dataPointer(words), matrix);
        } else {
            quantizer.quantize(Torch.dataPointer(weight), matrix);
        }
        streams.get().synchronize(); // Matmuls read weights before the kernel before has ended.
        return matrix;
    }

    private float[] multiply(
            DecoderKernels kernels,
            boolean gated,
            int rows,
            NDArray x,
            NDArray weight,
            NDArray bias,
            int width) {
        Shape shape = new Shape(mostRows(), width + GAP);
        try (NDArray floats = manager.full(shape, UNTOUCHED);
                NDArray output = Torch.cast(floats, Torch.scalarType(x));
                NDManager buffers = manager.newSubManager()) {
            long to = Torch.dataPointer(output);
            long from = Torch.dataPointer(x);
            long added = bias == null ? 0 : Torch.dataPointer(bias);
            long depth = x.getShape().get(1);
            int stride = width + GAP;
            CudaStream stream = streams.get();
            QuantizeKernels.Matrix stored = stored(weight, buffers);
            if (wideMatmul != null) {
                assertTrue(wideMatmul.isFor(rows, width, stride));
                try (NDArray used = x.get(new NDIndex().addSliceDim(0, rows))) {
                    QuantizeKernels.Matrix left = stored(used, buffers);
                    wideMatmul.launch(
                            stream,
                            gated,
                            left,
                            stored,
                            added,
                            to,
                            stride,
                            DecoderKernels.Addend.NONE);
                }
                return floats(output);
            }
            kernels.matmul(
                    stream,
                    rows,
                    new MatmulChain.Link(gated, to, stride, from, stored, added, null),
                    DecoderKernels.Addend.NONE);
            return floats(output);
        }
    }

    private void requireNear(
            double[] x,
            double[] weight,
            float[] bias,
            float[] actual,
            boolean gated,
            int width,
            int depth,
            ScalarType type) {
        double rounding = type == ScalarType.BFLOAT16 ? 0x1p-8 : 0x1p-11;
        // Tensor cores keep 13 bits of a product of e4m3 (hopper.cuh).
        double ofSums = wideMatmul != null && bits == 8 ? 0x1p-12 : 1e-5;
        IntStream.range(0, mostRows())
                .parallel()
                .forEach(
                        row -> {
                            for (int n = 0; n < width; n++) {
                                double[] sum = dot(x, row * depth, weight, n * depth, depth);
                                double expected = sum[0] + bias[n];
                                double most = sum[1];
                                if (gated) {
                                    int valueRow = (width + n) * depth;
                                    double[] value = dot(x, row * depth, weight, valueRow, depth);
                                    value[0] += bias[width + n];
                                    double sigmoid = 1 / (1 + Math.exp(-expected));
                                    // The derivative of silu is at most 1.1.
                                    most =
                                            1.1 * most * Math.abs(value[0])
                                                    + Math.abs(expected) * value[1];
                                    expected *= sigmoid * value[0];
                                }
                                double bound = rounding * Math.abs(expected) + ofSums * most + 1e-6;
                                double error = Math.abs(actual[row * (width + GAP) + n] - expected);
                                if (!(error <= bound)) {
                                    fail(error + " at " + row + ", " + n + ", width " + width);
                                }
                            }
                            for (int n = width; n < width + GAP; n++) {
                                assertEquals(UNTOUCHED, actual[row * (width + GAP) + n]);
                            }
                        });
    }

    /** Returns the sum of products, and the sum of their absolute values. */
    private static double[] dot(double[] a, int beginA, double[] b, int beginB, int count) {
        double sum = 0;
        double most = 0;
        for (int i = 0; i < count; i++) {
            double product = a[beginA + i] * b[beginB + i];
            sum += product;
            most += Math.abs(product);
        }
        return new double[] {sum, most};
    }
}

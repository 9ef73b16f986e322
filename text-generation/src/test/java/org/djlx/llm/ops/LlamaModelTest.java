// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDManager;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.pool.RankPool;
import org.djlx.collectives.pool.RankWorker;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.UsageCounter;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.LlamaReference;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.sampling.Logits;
import org.djlx.llm.sampling.SamplingParameters;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

/** Logits of a small Llama, on several ranks and with a cache, against loops in float64. */
public class LlamaModelTest {

    public static final int BLOCKS = 40;
    private static final int BLOCK_TOKENS = 16;

    @TempDir private Path directory;

    static Stream<Arguments> cases() {
        return Stream.of(1, 2, 4, 8)
                .flatMap(
                        ranks ->
                                Stream.of(
                                        Arguments.of(ranks, ScalarType.FLOAT32, false),
                                        Arguments.of(ranks, ScalarType.FLOAT32, true),
                                        Arguments.of(ranks, ScalarType.BFLOAT16, false),
                                        Arguments.of(ranks, ScalarType.FLOAT16, true)));
    }

    /** Returns the slots of adjacent blocks. */
    public static int[] slots(int firstBlock, int tokens) {
        int blocks = (tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
        return IntStream.range(firstBlock * BLOCK_TOKENS, (firstBlock + blocks) * BLOCK_TOKENS)
                .toArray();
    }

    /** A sequence, and how many of its tokens are in the cache. */
    private static final class Sequence {

        final int[] tokens;
        final int[] slots;
        final double[][] expected;
        int done;

        Sequence(int length, int seed, int firstBlock, LlamaReference reference) {
            tokens = new Random(seed).ints(length, 0, 203).toArray();
            slots = slots(firstBlock, length);
            expected = reference.logits(tokens);
        }

        TokenBatch.Chunk next(int count, boolean needsLogits) {
            int start = done;
            done += count;
            return new TokenBatch.Chunk(
                    slots[0] / BLOCK_TOKENS,
                    Arrays.copyOfRange(tokens, start, done),
                    start,
                    slots,
                    needsLogits,
                    SamplingParameters.GREEDY,
                    0);
        }
    }

    private static TokenBatch.Chunk chunk(int tokens, int start, int... slots) {
        int[] ids = IntStream.range(0, tokens).map(i -> 3 + start + i).toArray();
        return new TokenBatch.Chunk(0, ids, start, slots, true, SamplingParameters.GREEDY, 0);
    }

    @Test
    void promptsArePaddedWithTheLastToken() {
        TokenBatch.Chunk first = chunk(2, 0, 1, 2, 3);
        TokenBatch.Chunk later = chunk(3, 2, 9, 8, 7, 6, 5, 4);
        try (NDManager manager = NDManager.newBaseManager()) {
            ModelKernels.PrefillInputs prompts =
                    ModelKernels.inputs(manager, List.of(first, later), 7);
            assertArrayEquals(
                    new int[] {
                        3, 4, 5, 6, 7, 7, 7, // tokens
                        1, 2, 7, 6, 5, 0, 0, // slots
                        0, 1, 2, 3, 4, 0, 0 // positions
                    },
                    prompts.inputs().toIntArray());
            assertEquals(5, prompts.tokens());
        }
    }

    /** The attention of a prefill: first chunks, then later ones with at most 12 keys a call. */
    @Test
    void attentionIsDividedByTheCopiesOfKeys() {
        List<TokenBatch.Chunk> chunks =
                List.of(
                        chunk(20, 0, IntStream.range(0, 20).toArray()),
                        chunk(2, 0, 30, 31),
                        chunk(2, 1, 40, 41, 42, 43),
                        chunk(3, 6, IntStream.range(50, 60).toArray()),
                        chunk(2, 3, 60, 61, 62, 63, 64),
                        chunk(13, 1, IntStream.range(70, 84).toArray()));
        try (NDManager manager = NDManager.newBaseManager()) {
            ModelKernels.PrefillInputs inputs = ModelKernels.inputs(manager, chunks, 44);
            List<CudaAttention.Packed> packed =
                    CudaAttention.metadata(manager, chunks, inputs, 12).packed();
            assertEquals(
                    List.of("0 22 2", "22 5 2", "27 2 1", "29 15 1"),
                    packed.stream()
                            .map(of -> of.first() + " " + of.rows() + " " + of.sequences().count())
                            .toList());
            assertNull(packed.get(0).slots());
            assertArrayEquals(
                    new long[] {40, 41, 42, 50, 51, 52, 53, 54, 55, 56, 57, 58},
                    packed.get(1).slots().toLongArray());
            long[] last = packed.get(3).slots().toLongArray(); // of two padding tokens, too
            assertEquals(1 + 13 + 2, last.length);
            assertArrayEquals(
                    IntStream.range(70, 84).asLongStream().toArray(), Arrays.copyOf(last, 14));
            // Any slot of the sequence, whose values are finite.
            Arrays.stream(last, 14, 16).forEach(slot -> assertTrue(slot >= 70 && slot < 84));
        }
    }

    @Test
    void fewTokensOfPromptsAreRowsOfTheDecodeStep() {
        TokenBatch.Chunk one = chunk(1, 0, 0);
        TokenBatch.Chunk first = chunk(40, 0, new int[40]);
        TokenBatch.Chunk later = chunk(24, 16, new int[40]);
        TokenBatch.Chunk more = chunk(2, 8, new int[10]);
        TokenBatch.Chunk longer = chunk(65, 0, new int[65]);
        for (boolean together : new boolean[] {false, true}) {
            assertEquals(List.of(), new TokenBatch(List.of(one, later, first)).prefills(together));
            assertEquals(List.of(List.of(longer)), prefills(together, one, longer));
        }
        assertEquals(
                List.of(List.of(first, later, more)), prefills(true, one, one, later, more, first));
        assertEquals(List.of(List.of(longer, first, later)), prefills(true, later, longer, first));
        assertEquals(List.of(), prefills(false, one, later, more, first));
        assertEquals(
                List.of(List.of(longer), List.of(longer)), prefills(false, longer, more, longer));
    }

    private static List<List<TokenBatch.Chunk>> prefills(
            boolean together, TokenBatch.Chunk... chunks) {
        return new TokenBatch(List.of(chunks)).prefills(together);
    }

    @Test
    void fillsPromptsUpToFewNumbersOfRows() {
        for (int ranks : new int[] {1, 2, 3, 8}) {
            Set<Integer> all = new HashSet<>();
            for (int tokens = 1; tokens <= 8192; tokens++) {
                int rows = CudaModel.paddedRows(tokens, ranks);
                int most = Math.max(64, tokens / 16) - 1 + ranks - 1;
                assertTrue(rows >= tokens && rows - tokens <= most, tokens + ": " + rows);
                assertEquals(0, rows % ranks);
                all.add(rows);
            }
            assertEquals(4 * 16, all.size());
        }
        assertEquals(4096, CudaModel.paddedRows(4096, 1));
    }

    /** Kernels would write past their buffers. */
    @Test
    void aSequenceThatIsTooLongIsRefused() throws IOException {
        LlamaFiles.write(directory, LlamaFiles.config(ScalarType.FLOAT32, true), 1);
        ModelConfig config = ModelConfig.read(directory);
        int most = config.maxLength();
        List<ProcessGroup> groups = ProcessGroups.local(1);
        try (Safetensors files = Safetensors.open(directory);
                TransformerModel model = model(config, groups.get(0), files);
                NDManager manager = NDManager.newBaseManager()) {
            TokenBatch batch =
                    new TokenBatch(
                            List.of(
                                    new TokenBatch.Chunk(
                                            0,
                                            new int[] {1},
                                            most,
                                            new int[most + 1],
                                            true,
                                            SamplingParameters.GREEDY,
                                            0)));
            String message =
                    assertThrows(
                                    IllegalArgumentException.class,
                                    () -> model.forward(batch, manager))
                            .getMessage();
            assertEquals(
                    "a sequence has %d tokens, and the model at most %d".formatted(most + 1, most),
                    message);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @ParameterizedTest(name = "{0} ranks, {1}, tied {2}")
    @MethodSource("cases")
    void hasTheScoresOfAWholeModel(int ranks, ScalarType type, boolean tied)
            throws IOException, InterruptedException, ExecutionException {
        LlamaFiles.write(directory, LlamaFiles.config(type, tied), 1);
        compare(directory, ProcessGroups.local(ranks), false);
    }

    /**
     * Compares the logits of a model on the ranks of a group, which is destroyed.
     *
     * @param decodes whether the model has a decoder
     */
    public static void compare(Path directory, List<ProcessGroup> groups, boolean decodes)
            throws IOException, InterruptedException, ExecutionException {
        int ranks = groups.size();
        ModelConfig config = ModelConfig.read(directory);
        LlamaReference reference = new LlamaReference(directory);
        // No sequence begins at block 0, so that slots and positions differ.
        Sequence a = new Sequence(10, 1, 4, reference);
        Sequence b = new Sequence(50, 2, 5, reference);
        Sequence c = new Sequence(150, 3, 9, reference);
        Sequence d = new Sequence(240, 4, 19, reference);
        Sequence e = new Sequence(90, 5, 34, reference);
        double tolerance = tolerance(config);
        try (Safetensors files = Safetensors.open(directory);
                RankPool<Reading, Void> pool =
                        RankPool.start(
                                "llama",
                                groups,
                                group ->
                                        onOwnStream(
                                                group, () -> rank(config, group, files, decodes)));
                UsageCounter counter = FusedOps.countUsage()) {
            check(pool, tolerance, a, a.next(5, true));
            check(pool, tolerance, b, b.next(20, false));
            check(pool, tolerance, List.of(a, b), List.of(a.next(1, true), b.next(25, true)));
            long before = counter.calls();
            check(pool, tolerance, c, c.next(140, true)); // Of 8 ranks, four have a token more.
            long fused = counter.calls() - before;
            boolean wide = Float32Matmul.isUsed(groups.get(0).device(), config.type());
            // One rank with kernels calls none.
            long ofLayer = ranks > 1 ? (wide ? 0 : 4) : decodes ? 0 : 2;
            // The last token's last layer and what comes before it: three sums, which a graph has.
            long ofLast = decodes && ranks > 1 ? 4 : ofLayer;
            assertEquals((ofLayer * (config.layers() - 1) + ofLast) * ranks, fused);
            check(pool, tolerance, d, d.next(100, false));
            check(pool, tolerance, List.of(a, d), List.of(a.next(1, true), d.next(100, true)));
            check(pool, tolerance, List.of(b, d), List.of(b.next(1, true), d.next(40, true)));
            for (int i = 0; i < 3; i++) {
                check(
                        pool,
                        tolerance,
                        List.of(c, a, b),
                        List.of(c.next(1, true), a.next(1, true), b.next(1, true)));
            }
            // Again from their beginnings, in steps of 52, 96 and 145 tokens: single ones, then
            // prompts.
            for (int more : new int[] {1, 30, 63}) {
                List.of(b, c, d).forEach(sequence -> sequence.done = 0);
                List<Sequence> rows = new ArrayList<>(Collections.nCopies(20, b));
                rows.addAll(Collections.nCopies(more + 1, c));
                rows.addAll(Collections.nCopies(30 + more / 2, d));
                check(pool, tolerance, rows, rows.stream().map(row -> row.next(1, true)).toList());
                List.of(b, c, d).forEach(sequence -> sequence.done = 0);
                check(
                        pool,
                        tolerance,
                        List.of(b, c, d),
                        List.of(
                                b.next(20, true),
                                c.next(more + 1, true),
                                d.next(30 + more / 2, true)));
            }
            // Prompts together: their beginnings, then parts with more keys than the maximum
            // length, then some of both.
            List.of(b, c, d, e).forEach(sequence -> sequence.done = 0);
            check(
                    pool,
                    tolerance,
                    List.of(c, b, d, e),
                    List.of(
                            c.next(90, true),
                            b.next(40, false),
                            d.next(130, true),
                            e.next(30, true)));
            a.done--;
            check(
                    pool,
                    tolerance,
                    List.of(a, c, b, d, e),
                    List.of(
                            a.next(1, true),
                            c.next(60, true),
                            b.next(10, true),
                            d.next(110, false),
                            e.next(60, true)));
            b.done = 0;
            d.done = 130;
            e.done = 0;
            check(
                    pool,
                    tolerance,
                    List.of(d, b, e),
                    List.of(d.next(110, true), b.next(50, true), e.next(90, true)));
            c.done--;
            check(pool, tolerance, c, c.next(1, true));
        }
    }

    /**
     * What a type's arithmetic allows. In a layer 15 results are rounded one after the other: the
     * normalisation, queries and keys, their rotation, their product, the softmax, its product with
     * the values, a rank's part of the output, the sum of the parts, the residual; and the
     * normalisation, gate and up, the activation, a rank's part of down, the sum, the residual.
     * Behind the layers it is the normalisation and the score. Each rounding is by half of the last
     * bit at most, 2^-11 of a value in float16 and 2^-8 in bfloat16, and by 1/sqrt(3) of that in
     * the root mean square. The rows of all matrices have a norm of about 1, so that values, and
     * errors with them, keep their size from one end to the other, which is about 1; and errors
     * that do not depend on each other add up as their squares. Of thousands of logits the worst is
     * then four times as far off; twice that allows for what is larger than 1 on the way. In
     * float32 most comes of the sums within products, whose order is the library's.
     */
    static double tolerance(ModelConfig config) {
        int bits =
                switch (config.type()) {
                    case FLOAT16 -> 11;
                    case BFLOAT16 -> 8;
                    default -> 0;
                };
        int roundings = 15 * config.layers() + 2;
        return bits == 0 ? 1e-4 : 8 * Math.sqrt(roundings / 3.0) / (1 << bits);
    }

    /**
     * A request to the ranks.
     *
     * @param batch the tokens to compute
     * @param logits receives the logits of each rank
     */
    private record Reading(TokenBatch batch, float[][] logits) {}

    private static float[][] read(RankPool<Reading, Void> pool, TokenBatch batch)
            throws InterruptedException, ExecutionException {
        float[][] logits = new float[pool.size()][];
        pool.submit(new Reading(batch, logits)).get();
        return logits;
    }

    private static RankWorker<Reading, Void> rank(
            ModelConfig config, ProcessGroup group, Safetensors files, boolean decodes) {
        TransformerModel model = model(config, group, files);
        assertEquals(decodes, model.hasDecoder());
        return new RankWorker<>() {
            @Override
            public Void serve(Reading reading) {
                reading.logits[group.rank()] = LlamaModelTest.logits(model, reading.batch);
                return null;
            }

            @Override
            public void close() {
                model.close();
            }
        };
    }

    /** Runs a rank's worker on a stream of its own, as ranks that share a GPU must. */
    public static <Q, R> RankWorker<Q, R> onOwnStream(
            ProcessGroup group, Supplier<RankWorker<Q, R>> load) {
        if (!group.device().isGpu()) {
            return load.get();
        }
        CudaDevice device = CudaDevice.open(group.device());
        CudaStream stream = CudaStream.create(device);
        CudaStreamGuard loading = Torch.cudaStreamGuard(group.device(), stream.handle());
        RankWorker<Q, R> worker;
        try {
            worker = load.get();
            stream.synchronize();
        } finally {
            loading.close();
        }
        return new RankWorker<>() {
            @Override
            public R serve(Q request) throws Exception {
                CudaStreamGuard guard = Torch.cudaStreamGuard(group.device(), stream.handle());
                try {
                    return worker.serve(request);
                } finally {
                    guard.close();
                }
            }

            @Override
            public void close() {
                worker.close();
                stream.close();
                device.close();
            }
        };
    }

    public static TransformerModel model(
            ModelConfig config, ProcessGroup group, Safetensors files) {
        return model(config, group, files, Quantization.NONE);
    }

    public static TransformerModel model(
            ModelConfig config, ProcessGroup group, Safetensors files, Quantization quantization) {
        int ranks = group.worldSize();
        ModelWeights weights =
                ModelWeights.read(
                        config,
                        group.rank(),
                        ranks,
                        group.device(),
                        new WeightFormat(quantization),
                        files,
                        true,
                        bytes -> {});
        KvCache cache = new KvCache(config, ranks, BLOCKS * BLOCK_TOKENS, group.device());
        TransformerModel model =
                TransformerModel.create(config, group, weights, cache, config.maxLength(), false);
        model.keepLogits();
        return model;
    }

    /** A model and tokens of which PyTorch has computed the logits, and the file that has them. */
    enum OfPyTorch {
        FEW_TOKENS(
                "pytorch-logits.txt",
                LlamaFiles.config(ScalarType.FLOAT32, false),
                5,
                81,
                7,
                200,
                33,
                150,
                2,
                99,
                14,
                120),
        /** Divided among up to 8 ranks; two angles are between those kept and those divided. */
        MANY_TOKENS(
                "pytorch-logits-long.txt",
                LlamaFiles.decodable(ScalarType.FLOAT32, true, 16),
                IntStream.range(0, 140).map(i -> (37 * i + 11) % 203).toArray());

        private final String file;
        private final ModelConfig config;
        private final int[] tokens;

        OfPyTorch(String file, ModelConfig config, int... tokens) {
            this.file = file;
            this.config = config;
            this.tokens = tokens;
        }
    }

    /**
     * The logits are those that {@code src/test/peer/LlamaPeer.java} printed for these tokens and
     * the directory that {@link LlamaFiles} writes here.
     */
    @ParameterizedTest
    @CsvSource({
        "1, FEW_TOKENS", "2, FEW_TOKENS", "4, FEW_TOKENS", "8, FEW_TOKENS",
        "1, MANY_TOKENS", "2, MANY_TOKENS", "4, MANY_TOKENS", "8, MANY_TOKENS"
    })
    void hasTheScoresOfPyTorch(int ranks, OfPyTorch of) throws Exception {
        LlamaFiles.write(directory, of.config, 1);
        ModelConfig config = ModelConfig.read(directory);
        String text;
        try (InputStream in = getClass().getResourceAsStream(of.file)) {
            text = new String(in.readAllBytes(), StandardCharsets.US_ASCII);
        }
        double[] expected = text.lines().mapToDouble(Double::parseDouble).toArray();
        int[] tokens = of.tokens;
        int[] slots = slots(0, tokens.length);
        TokenBatch batch =
                new TokenBatch(
                        List.of(
                                new TokenBatch.Chunk(
                                        0, tokens, 0, slots, true, SamplingParameters.GREEDY, 0)));
        try (Safetensors files = Safetensors.open(directory);
                RankPool<Reading, Void> pool =
                        RankPool.start(
                                "llama",
                                ProcessGroups.local(ranks),
                                group -> rank(config, group, files, false))) {
            float[] logits = read(pool, batch)[0];
            assertEquals(expected.length, logits.length);
            for (int i = 0; i < logits.length; i++) {
                assertEquals(expected[i], logits[i], 1e-4, "score " + i);
            }
        }
    }

    private static void check(
            RankPool<Reading, Void> pool,
            double tolerance,
            Sequence sequence,
            TokenBatch.Chunk chunk)
            throws InterruptedException, ExecutionException {
        check(pool, tolerance, List.of(sequence), List.of(chunk));
    }

    private static void check(
            RankPool<Reading, Void> pool,
            double tolerance,
            List<Sequence> sequences,
            List<TokenBatch.Chunk> chunks)
            throws InterruptedException, ExecutionException {
        TokenBatch batch = new TokenBatch(chunks);
        float[][] logits = read(pool, batch);
        List<double[]> expected = new ArrayList<>();
        for (int i = 0; i < chunks.size(); i++) {
            if (chunks.get(i).needsLogits()) {
                expected.add(sequences.get(i).expected[chunks.get(i).length() - 1]);
            }
        }
        for (float[] ofRank : logits) {
            if (expected.isEmpty()) {
                assertNull(ofRank);
                continue;
            }
            int vocabulary = expected.get(0).length;
            assertEquals(expected.size() * vocabulary, ofRank.length);
            // The worst of n errors is about sqrt(2 ln n) times the root mean square: 4 of 3,000.
            double most = tolerance * Math.max(1, Math.sqrt(2 * Math.log(ofRank.length)) / 4);
            double squares = 0;
            for (int i = 0; i < ofRank.length; i++) {
                double value = expected.get(i / vocabulary)[i % vocabulary];
                assertEquals(value, ofRank[i], most, "score " + i);
                squares += Math.pow(value - ofRank[i], 2);
            }
            // Twice the root mean square from which the tolerance of single scores follows.
            assertEquals(0, Math.sqrt(squares / ofRank.length), tolerance / 4, "root mean square");
        }
    }

    private static float[] logits(TransformerModel model, TokenBatch batch) {
        try (NDManager manager = NDManager.newBaseManager()) {
            Logits logits = model.forward(batch, manager);
            if (logits.count() == 0) {
                return null;
            }
            int count = logits.deviceTokens().size();
            float[][] all = new float[count][];
            for (int i = 0; i < count; i++) {
                all[i] = logits.toArray(i);
                checkToken(all[i], logits.deviceTokens().get(i));
            }
            int width = all[0].length;
            float[] joined = new float[count * width];
            for (int i = 0; i < count; i++) {
                System.arraycopy(all[i], 0, joined, i * width, width);
            }
            return joined;
        }
    }

    private static void checkToken(float[] logits, Logits.DeviceToken onDevice) {
        int token = 0;
        for (int i = 1; i < logits.length; i++) {
            token = logits[i] > logits[token] ? i : token;
        }
        double sum = 0;
        for (float score : logits) {
            sum += Math.exp(score - (double) logits[token]);
        }
        assertEquals(token, onDevice.token());
        assertEquals(logits[token], onDevice.logit());
        assertEquals(logits[token] + Math.log(sum), onDevice.logSumExp(), 1e-4);
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.types.DataType;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.djlx.collectives.GpuTests;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.model.AdapterFiles;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.Quantization;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** LoRA adapters beside requests that run on the decode kernels. */
@Tag("gpu")
@Tag("beside")
@Timeout(300)
class AdaptersGpuTest {

    private static final Duration LONG = Duration.ofMinutes(1);
    private static final int COUNT = 3; // of adapters
    @TempDir private Path directory;

    private static GenerationRequest request(int seed, int length, String adapter, int tokens) {
        int[] prompt = new Random(seed).ints(length, 0, 203).toArray();
        return TextEngineTest.request(prompt).optMaxTokens(tokens).optAdapter(adapter).build();
    }

    private TextEngine.Builder builder(int ranks, boolean batchInvariant) {
        List<Device> devices = IntStream.range(0, ranks).mapToObj(Device::gpu).toList();
        return TextEngine.builder()
                .setDirectory(directory.resolve("base"))
                .optDevices(devices)
                .optCacheBytes(1 << 24)
                .optPrefixCaching(false) // A hit may change bits.
                .optBatchInvariant(batchInvariant);
    }

    private static AdapterFiles adapter(int index) {
        return new AdapterFiles(4 << index, 8, index == 1, AdapterFiles.ALL, index);
    }

    private void write() throws Exception {
        Path base = directory.resolve("base");
        LlamaFiles.write(base, LlamaFiles.decodable(ScalarType.FLOAT16, true, 32), 5);
        for (int i = 0; i < COUNT; i++) {
            adapter(i).write(base, directory.resolve("a" + i));
            adapter(i).merge(base, directory.resolve("merged" + i));
        }
    }

    private static List<GeneratedPiece> generate(TextGenerator generator, GenerationRequest request)
            throws Exception {
        return generator.submit(request).await(LONG);
    }

    /**
     * The first token's log-probability is that of merged weights in float32 on a CPU, within
     * float16's rounding. Requests without an adapter keep every bit if the engine is
     * batch-invariant; else their steps use another kernel.
     */
    @ParameterizedTest
    @CsvSource({"1, true", "2, true", "1, false"})
    void adaptersRunBesideOtherRequests(int ranks, boolean batchInvariant) throws Exception {
        GpuTests.require(ranks, NativeLibrary.NCCL, NativeLibrary.NVRTC);
        write();
        int[] lengths = {1, 7, 100};
        List<List<GeneratedPiece>> expected = new ArrayList<>(); // of merged models
        for (int i = 0; i < COUNT; i++) {
            try (TextGenerator merged =
                    TextEngine.builder()
                            .setDirectory(directory.resolve("merged" + i))
                            .optDataType(DataType.FLOAT32)
                            .build()) {
                for (int length : lengths) {
                    expected.add(generate(merged, request(length, length, null, 1)));
                }
            }
        }
        try (TextEngine generator = builder(ranks, batchInvariant).build()) {
            List<GenerationRequest> plain = new ArrayList<>();
            List<List<GeneratedPiece>> alone = new ArrayList<>();
            for (int i = 0; i < 20; i++) {
                plain.add(request(50 + i, 1 + 9 * i, null, 60));
                alone.add(generate(generator, plain.get(i)));
            }
            for (int i = 0; i < COUNT; i++) {
                generator.loadAdapter("a" + i, directory.resolve("a" + i));
            }
            List<Generation> plains = generator.submitAll(plain);
            List<Generation> adapted = new ArrayList<>();
            for (int i = 0; i < COUNT; i++) {
                for (int length : lengths) {
                    adapted.add(generator.submit(request(length, length, "a" + i, 30)));
                }
            }
            double furthest = 0;
            for (int i = 0; i < adapted.size(); i++) {
                List<GeneratedPiece> pieces = adapted.get(i).await(LONG);
                assertEquals(30, pieces.size());
                float merged = expected.get(i).get(0).logProbability();
                assertEquals(merged, pieces.get(0).logProbability(), 0.05, "adapted " + i);
                int length = lengths[i % lengths.length];
                GenerationRequest same = request(length, length, null, 1);
                double own = generate(generator, same).get(0).logProbability();
                furthest = Math.max(furthest, Math.abs(own - merged));
            }
            assertTrue(furthest > 0.2, "adapters change too little: " + furthest);
            for (int i = 0; i < plain.size(); i++) {
                List<GeneratedPiece> pieces = plains.get(i).await(LONG);
                if (batchInvariant) {
                    assertEquals(alone.get(i), pieces, "plain " + i);
                } else {
                    float first = alone.get(i).get(0).logProbability();
                    assertEquals(first, pieces.get(0).logProbability(), 0.05, "plain " + i);
                }
            }
            for (int i = 0; i < COUNT; i++) {
                generator.unloadAdapter("a" + i);
            }
            assertEquals(alone.get(0), generate(generator, plain.get(0)));
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"FP8", "INT4"})
    void quantizedWeightsTakeNoAdapters(Quantization quantization) throws Exception {
        GpuTests.require(1, NativeLibrary.NCCL, NativeLibrary.NVRTC);
        write();
        TextEngine.Builder quantized =
                builder(1, true).optDataType(DataType.BFLOAT16).optQuantization(quantization);
        try (TextEngine generator = quantized.build()) {
            String message =
                    assertThrows(
                                    IllegalArgumentException.class,
                                    () -> generator.loadAdapter("a", directory.resolve("a0")))
                            .getMessage();
            assertTrue(message.contains("without quantization"), message);
        }
    }
}

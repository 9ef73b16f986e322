// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import static org.djlx.nativeops.torch.ScalarType.BFLOAT16;
import static org.djlx.nativeops.torch.ScalarType.FLOAT32;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.RankProcesses;
import org.djlx.collectives.safetensors.SafetensorsWriter;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.model.LlamaConfig;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.WeightMap;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** What loading takes of the host's memory, and closing gives back. */
@Timeout(120)
@Tag("slow")
class TextEngineMemoryTest {

    private static final int RANKS = 2;
    @TempDir private Path folder;

    /** A model whose weights, in files in float32, take much more than a JVM does meanwhile. */
    private static ModelConfig write(Path directory, ScalarType type) throws IOException {
        ModelConfig config =
                LlamaConfig.builder()
                        .vocabulary(4096)
                        .hidden(512)
                        .heads(8, 8, 64)
                        .maxLength(16)
                        .tied(true)
                        .type(type)
                        .layers(4, 2048)
                        .build();
        Files.createDirectories(directory);
        Files.writeString(directory.resolve("config.json"), LlamaFiles.json(config).toString());
        Map<String, Shape> shapes = WeightMap.shapes(config);
        List<TensorSpec> specs = new ArrayList<>();
        shapes.forEach((name, shape) -> specs.add(TensorSpec.of(name, FLOAT32, shape)));
        try (NDManager manager = NDManager.newBaseManager()) {
            SafetensorsWriter.writeModel(
                    directory, specs, 32 << 20, spec -> manager.zeros(spec.shape()));
        }
        return config;
    }

    static TextEngine load(Path directory) throws IOException {
        return TextEngine.builder()
                .setDirectory(directory)
                .optRanks(RANKS)
                .optMaxRunning(1)
                .build();
    }

    /**
     * The peak is the system's own, which misses nothing, in a JVM whose heap does not change its
     * size. It has the pages of the files that are being read.
     */
    @Test
    void loadingTakesTheMemoryOfTheWeightsOnce() throws Exception {
        Path warm = LlamaFiles.write(folder.resolve("warm"), LlamaFiles.config(FLOAT32, true), 1);
        Path equal = folder.resolve("equal");
        Path converted = folder.resolve("converted");
        ModelConfig config = write(equal, FLOAT32);
        ModelConfig narrow = write(converted, BFLOAT16);
        String options = "-Xms128m -XX:+AlwaysPreTouch -XX:+UseSerialGC";
        try (RankProcesses process =
                new RankProcesses(
                        1,
                        rank -> Map.of("JDK_JAVA_OPTIONS", options),
                        TextEngineMemoryMain.class,
                        warm.toString(),
                        equal.toString(),
                        converted.toString())) {
            process.awaitSuccess();
            long[] peaks =
                    process.output(0)
                            .lines()
                            .filter(line -> line.startsWith("peak "))
                            .mapToLong(line -> Long.parseLong(line.substring("peak ".length())))
                            .toArray();
            check(config, peaks[1]);
            check(narrow, peaks[2]);
        }
    }

    private static void check(ModelConfig config, long taken) {
        long weights = RANKS * WeightMap.byteSize(config, RANKS);
        // The pages of the files that both ranks read: halves of the embedding, or two tensors of
        // half its size.
        long read =
                WeightMap.shapes(config).values().stream()
                        .mapToLong(shape -> shape.size() * Float.BYTES)
                        .max()
                        .orElseThrow();
        assertTrue(
                taken > weights * 0.9 && taken < weights * 1.1 + read,
                () -> taken + " bytes for weights of " + weights + " in " + config.type());
    }

    @Test
    void closingFreesTheWeights() throws Exception {
        Path directory = folder.resolve("model");
        ModelConfig config = write(directory, FLOAT32);
        load(directory).close(); // What the first one loads for good is not counted.
        long weights = RANKS * WeightMap.byteSize(config, RANKS);
        long before = hugePageBytes();
        try (TextEngine generator = load(directory)) {
            generator
                    .submit(TextEngineTest.request(1).optMaxTokens(2).build())
                    .await(Duration.ofMinutes(1));
            assertTrue(isMapped(directory)); // The weights stay in the files.
            long held = hugePageBytes() - before;
            assertTrue(held > weights * 0.9, "weights of " + weights + " bytes, held " + held);
        }
        assertFalse(isMapped(directory));
        assertEquals(before, hugePageBytes());
    }

    /** The system counts pages of mapped files as available memory, but weights must stay there. */
    @Test
    void theCacheLeavesMemoryToMappedWeights() {
        ModelConfig config = LlamaFiles.config(FLOAT32, true);
        GeneratorSettings settings =
                GeneratorSettings.of(TextEngine.builder().optMaxRunning(3), config);
        int ofSequence = KvCacheManager.blocks(settings.maxLength());
        try (ProcessGroup group = ProcessGroups.local(1).get(0)) {
            assertEquals(3 * ofSequence, CacheSize.blocks(config, settings, group, 0));
            long memory = 1L << 50; // more than any host has
            assertEquals(ofSequence, CacheSize.blocks(config, settings, group, memory));
        }
    }

    /** Returns the memory for which huge pages were asked, as only weights do. */
    private static long hugePageBytes() throws IOException {
        long bytes = 0;
        long resident = 0;
        for (String line : Files.readAllLines(Path.of("/proc/self/smaps"))) {
            if (line.startsWith("Rss:")) {
                resident = Long.parseLong(line.replaceAll("[^0-9]", "")) << 10;
            } else if (line.startsWith("VmFlags:") && line.contains(" hg")) {
                bytes += resident;
            }
        }
        return bytes;
    }

    private static boolean isMapped(Path directory) throws IOException {
        return Files.readString(Path.of("/proc/self/maps")).contains(directory.toString());
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.stream.Stream;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.llm.files.GgufDirectory;
import org.djlx.llm.model.LlamaReference;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.ModelFixture;
import org.djlx.llm.model.ReferenceModels;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Models of each architecture on one GPU. */
@Tag("gpu")
@Tag("beside")
@Timeout(120)
class ModelFixturesGpuTest {

    @TempDir private Path directory;

    static Stream<String> names() throws IOException {
        return ModelFixture.names().stream();
    }

    private static List<ProcessGroup> gpu() {
        GpuTests.require(1, NativeLibrary.NCCL, NativeLibrary.NVRTC);
        NcclOptions nccl = NcclOptions.builder().optDevices(Device.gpu()).build();
        CudaP2pOptions options = CudaP2pOptions.builder().optNcclOptions(nccl).build();
        return ProcessGroups.local("cuda_p2p", 1, options);
    }

    /** Products in float32 add in another order than on the CPU. */
    @ParameterizedTest
    @MethodSource("names")
    void hasTheLogProbabilitiesOfTransformersInFloat32(String name) throws Exception {
        ModelFixture.write(name, directory, ScalarType.FLOAT32);
        for (ModelFixture.Case of : ModelFixture.read(name).cases()) {
            double worst = Collections.max(ModelFixturesTest.compare(directory, of, gpu(), 1e-4));
            System.out.printf("float32 %s: %.2g%n", name, worst);
            assertTrue(worst <= 1e-4, name + " is off by " + worst);
        }
    }

    /**
     * The bound is twice the largest error of transformers' own bfloat16. In a mixture of experts
     * rounding may choose other experts for a few tokens, which no bound on the largest error
     * allows for: the median of the steps is compared. {@link ExpertKernelsGpuTest} finds a wrong
     * expert or weight.
     */
    @ParameterizedTest
    @MethodSource("names")
    void hasTheLogProbabilitiesOfTransformersInBfloat16(String name) throws Exception {
        ModelFixture.write(name, directory, ScalarType.BFLOAT16);
        for (ModelFixture.Case of : ModelFixture.read(name).cases()) {
            List<Double> all = ModelFixturesTest.compare(directory, of, gpu(), 1);
            Collections.sort(all);
            double worst = all.get(isMixture(name) ? all.size() / 2 : all.size() - 1);
            System.out.printf("bfloat16 %s: %.3f, transformers %.3f%n", name, worst, of.bfloat16());
            assertTrue(worst <= 2 * of.bfloat16(), name + " is off by " + worst);
        }
    }

    /**
     * Long chunks take the kernels of prompts, or several blocks of the attention's kernel. The
     * expected values are those of the CPU in float32; for short prompts transformers has confirmed
     * them. The largest error of a mixture of experts is not bounded, as above.
     */
    @ParameterizedTest
    @MethodSource("names")
    void longPromptsAreAsOnTheCpu(String name) throws Exception {
        int length = name.equals("llama-dynamic") ? 88 : 240;
        int[] tokens = new Random(5).ints(length, 3, 131).toArray();
        Path wide = Files.createDirectory(directory.resolve("float32"));
        ModelFixture.write(name, wide, ScalarType.FLOAT32);
        List<float[]> expected = logits(wide, ProcessGroups.local(1), tokens, false);
        ModelFixture.write(name, directory, ScalarType.BFLOAT16);
        boolean hasKernels = !name.matches("(exaone4|gemma|glm4|gpt|granite|olmo).*");
        List<float[]> actual = logits(directory, gpu(), tokens, hasKernels);
        List<Double> errors = new ArrayList<>();
        for (int i = 0; i < expected.size(); i++) {
            double shift =
                    ModelFixturesTest.logSum(actual.get(i))
                            - ModelFixturesTest.logSum(expected.get(i));
            for (int token = 0; token < expected.get(i).length; token++) {
                double error = actual.get(i)[token] - expected.get(i)[token] - shift;
                errors.add(Math.abs(error));
            }
        }
        Collections.sort(errors);
        double median = errors.get(errors.size() / 2);
        double worst = errors.get(errors.size() - 1);
        double bound = ModelFixture.read(name).cases().get(0).bfloat16();
        System.out.printf(
                "long %s: median %.4f, worst %.3f, transformers' worst %.3f%n",
                name, median, worst, bound);
        assertTrue(median <= bound / 2, name + " is off by " + median);
        // Twice, and more because the text is six times as long and not only its top is compared.
        assertTrue(isMixture(name) || worst <= 6 * bound, name + " is off by " + worst);
    }

    /** Each rank has a part of every expert. */
    @ParameterizedTest
    @ValueSource(strings = {"mixtral", "qwen3-moe", "qwen3-moe-unnormalized"})
    void mixturesOnSeveralRanksHaveTheLogProbabilitiesOfTransformers(String name) throws Exception {
        P2pRanks.require(2);
        ModelFixture.write(name, directory, ScalarType.BFLOAT16);
        for (ModelFixture.Case of : ModelFixture.read(name).cases()) {
            List<ProcessGroup> groups =
                    ProcessGroups.local("cuda_p2p", 2, P2pRanks.options().build());
            List<Double> all = ModelFixturesTest.compare(directory, of, groups, 1);
            Collections.sort(all);
            double median = all.get(all.size() / 2);
            System.out.printf("2 ranks %s: %.3f of %.3f%n", name, median, of.bfloat16());
            assertTrue(median <= 2 * of.bfloat16(), name + " is off by " + median);
        }
    }

    static Stream<String> references() {
        return ReferenceModels.names().stream();
    }

    @ParameterizedTest
    @MethodSource("references")
    void hasTheLogProbabilitiesOfTheReferenceInFloat32(String name) throws Exception {
        LlamaReference reference = ReferenceModels.write(name, directory);
        for (int length : new int[] {3, 70}) {
            ModelFixture.Case of = ReferenceModels.generate(reference, length, 6);
            double worst = Collections.max(ModelFixturesTest.compare(directory, of, gpu(), 1e-4));
            assertTrue(worst <= 1e-4, length + " tokens are off by " + worst);
        }
    }

    /** Rounds at most twice as much as libtorch's operators on the CPU. */
    @ParameterizedTest
    @MethodSource("references")
    void hasTheLogProbabilitiesOfTheReferenceInBfloat16(String name) throws Exception {
        GpuTests.require(1, NativeLibrary.NCCL, NativeLibrary.NVRTC);
        LlamaReference reference = ReferenceModels.write(name, directory);
        Path file = directory.resolve("config.json");
        JsonObject config = JsonParser.parseString(Files.readString(file)).getAsJsonObject();
        config.addProperty("dtype", "bfloat16");
        Files.writeString(file, config.toString());
        for (int length : new int[] {3, 70}) {
            ModelFixture.Case of = ReferenceModels.generate(reference, length, 6);
            List<Double> cpu = ModelFixturesTest.compare(directory, of, ProcessGroups.local(1), 1);
            List<Double> gpu = ModelFixturesTest.compare(directory, of, gpu(), 1);
            Collections.sort(cpu);
            Collections.sort(gpu);
            int step = isMixture(name) ? cpu.size() / 2 : cpu.size() - 1;
            System.out.printf("bfloat16 %s: %.3f, CPU %.3f%n", name, gpu.get(step), cpu.get(step));
            assertTrue(gpu.get(step) <= 2 * cpu.get(step), name + " is off by " + gpu.get(step));
        }
    }

    private static boolean isMixture(String name) {
        return name.contains("moe") || name.equals("mixtral") || name.startsWith("gpt");
    }

    /**
     * Returns logits of a first and a second chunk of a prompt, of a chunk that is a large decode
     * step, and of single tokens.
     */
    private static List<float[]> logits(
            Path directory, List<ProcessGroup> groups, int[] tokens, boolean hasKernels)
            throws Exception {
        ModelConfig config = ModelConfig.read(directory);
        try (TensorFiles files = GgufDirectory.openWeights(directory)) {
            return ProcessGroups.run(
                            groups,
                            group -> {
                                try (TransformerModel model =
                                        ModelFixturesTest.model(
                                                config, group, files, false, tokens.length)) {
                                    assertEquals(hasKernels, model.hasDecoder());
                                    return logits(model, tokens);
                                }
                            })
                    .get(0);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static List<float[]> logits(TransformerModel model, int[] tokens) {
        List<float[]> rows = new ArrayList<>();
        int[] ends = {70, tokens.length - 45, tokens.length - 10};
        int start = 0;
        for (int end : ends) {
            if (end <= start) {
                continue;
            }
            rows.addAll(
                    ModelFixturesTest.logits(
                            model, ModelFixturesTest.chunk(0, tokens, start, end - start, true)));
            start = end;
        }
        for (; start < tokens.length; start++) {
            rows.addAll(
                    ModelFixturesTest.logits(
                            model, ModelFixturesTest.chunk(0, tokens, start, 1, true)));
        }
        return rows;
    }
}

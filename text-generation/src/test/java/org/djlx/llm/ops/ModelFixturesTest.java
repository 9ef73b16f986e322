// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.SafetensorsWriter;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.files.GgufDirectory;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.ModelFixture;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.model.WeightMap;
import org.djlx.llm.sampling.Logits;
import org.djlx.llm.sampling.SamplingParameters;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

/** Models of each architecture have the tokens and log-probabilities of transformers. */
public class ModelFixturesTest {

    private static final int BLOCKS = 48;

    @TempDir private Path directory;

    static Stream<Arguments> models() throws IOException {
        return ModelFixture.names().stream()
                .flatMap(name -> Stream.of(1, 2, 4).map(ranks -> Arguments.of(name, ranks)));
    }

    static Stream<String> names() throws IOException {
        return ModelFixture.names().stream();
    }

    /** The issue asks for 1e-4 in float32. */
    @ParameterizedTest(name = "{0}, {1} ranks")
    @MethodSource("models")
    void hasTheLogProbabilitiesOfTransformers(String name, int ranks) throws Exception {
        ModelFixture.write(name, directory, ScalarType.FLOAT32);
        for (ModelFixture.Case of : ModelFixture.read(name).cases()) {
            double worst =
                    Collections.max(compare(directory, of, ProcessGroups.local(ranks), 1e-4));
            assertTrue(worst <= 1e-4, name + " is off by " + worst);
        }
    }

    /** The names of transformers 4 and 5; images' tensors are not read. */
    @ParameterizedTest
    @CsvSource({
        "language_model.model., language_model., 1",
        "language_model.model., language_model., 2",
        "model.language_model., '', 1"
    })
    void readsTheTextModelOfAModelForImages(String prefix, String headPrefix, int ranks)
            throws Exception {
        for (String name : new String[] {"gemma3", "mistral"}) {
            Path alone = Files.createDirectories(directory.resolve(name));
            Path both = Files.createDirectories(directory.resolve(name + "-images"));
            ModelFixture.write(name, alone, ScalarType.FLOAT32);
            JsonObject text = ModelFixture.config(name);
            JsonObject json = new JsonObject();
            json.addProperty("model_type", name.equals("mistral") ? "mistral3" : name);
            json.addProperty("dtype", "float32");
            json.add("eos_token_id", text.remove("eos_token_id"));
            json.add("text_config", text);
            Files.writeString(both.resolve("config.json"), json.toString());
            String generation = "generation_config.json";
            Files.copy(alone.resolve(generation), both.resolve(generation));
            try (Safetensors files = Safetensors.open(alone);
                    NDManager manager = NDManager.newBaseManager()) {
                Map<String, TensorSpec> specs = new LinkedHashMap<>(); // of files, by new names
                for (TensorSpec each : files.specs()) {
                    boolean isHead = each.name().startsWith("lm_head.");
                    String own = each.name().replaceFirst("^model\\.", "");
                    specs.put((isHead ? headPrefix : prefix) + own, each);
                }
                specs.put("vision_tower.patch.weight", files.specs().iterator().next());
                specs.put("model.multi_modal_projector.weight", files.specs().iterator().next());
                List<TensorSpec> renamed = new ArrayList<>();
                specs.forEach(
                        (to, from) ->
                                renamed.add(TensorSpec.of(to, ScalarType.FLOAT32, from.shape())));
                SafetensorsWriter.writeModel(
                        both,
                        renamed,
                        1 << 20,
                        spec -> {
                            NDArray values = Torch.empty(manager, spec.shape(), ScalarType.FLOAT32);
                            files.read(specs.get(spec.name()).name(), values);
                            return values;
                        });
            }
            assertEquals(ModelConfig.read(alone), ModelConfig.read(both));
            for (ModelFixture.Case of : ModelFixture.read(name).cases()) {
                double worst = Collections.max(compare(both, of, ProcessGroups.local(ranks), 1e-4));
                assertTrue(worst <= 1e-4, name + " is off by " + worst);
            }
        }
    }

    @ParameterizedTest
    @MethodSource("names")
    void generatesTheTokensOfTransformers(String name) throws Exception {
        ModelFixture.write(name, directory, ScalarType.FLOAT32);
        for (ModelFixture.Case of : ModelFixture.read(name).cases()) {
            try (TextGenerator generator =
                    TextEngine.builder()
                            .setDirectory(directory)
                            .optMaxLength(of.length())
                            .build()) {
                Generation generation =
                        generator.submit(
                                GenerationRequest.builder()
                                        .setPromptTokens(of.prompt())
                                        .optMaxTokens(of.tokens().length)
                                        .optIgnoreEndOfText(true)
                                        .build());
                List<GeneratedPiece> pieces = generation.await(Duration.ofMinutes(1));
                assertEquals(of.tokens().length, pieces.size());
                for (int i = 0; i < pieces.size(); i++) {
                    assertEquals(of.tokens()[i], pieces.get(i).token(), "token " + i);
                    assertEquals(of.logprobs()[i], pieces.get(i).logProbability(), 1e-4);
                }
            }
        }
    }

    /**
     * Computes the tokens of a case twice in one batch: the prompt as a whole, and in two chunks.
     * Returns the largest difference of a log-probability of each step, on each rank.
     *
     * @param greedy differences up to this must leave the most likely tokens as they are
     */
    static List<Double> compare(
            Path directory, ModelFixture.Case of, List<ProcessGroup> groups, double greedy)
            throws Exception {
        ModelConfig config = ModelConfig.read(directory);
        try (TensorFiles files = GgufDirectory.openWeights(directory)) {
            WeightMap.check(config, files);
            List<Double> all = new ArrayList<>();
            ProcessGroups.run(
                            groups,
                            group -> {
                                List<Double> own = new ArrayList<>();
                                Runnable body =
                                        () ->
                                                own.addAll(
                                                        differences(
                                                                config, of, group, files, greedy));
                                if (group.worldSize() > 1 && group.device().isGpu()) {
                                    P2pRanks.run(group, body);
                                } else {
                                    body.run();
                                }
                                return own;
                            })
                    .forEach(all::addAll);
            return all;
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static List<Double> differences(
            ModelConfig config,
            ModelFixture.Case of,
            ProcessGroup group,
            TensorFiles files,
            double greedy) {
        int[] all = new int[of.length()];
        System.arraycopy(of.prompt(), 0, all, 0, of.prompt().length);
        System.arraycopy(of.tokens(), 0, all, of.prompt().length, of.tokens().length);
        int first = of.prompt().length * 3 / 4;
        int count = of.prompt().length;
        List<Double> worst = new ArrayList<>();
        try (TransformerModel model = model(config, group, files, true, of.length())) {
            List<float[]> logits =
                    logits(model, chunk(0, all, 0, count, true), chunk(1, all, 0, first, false));
            worst.add(check(of, 0, logits.get(0), greedy));
            logits = logits(model, chunk(1, all, first, count - first, true));
            worst.add(check(of, 0, logits.get(0), greedy));
            for (int i = 1; i < of.tokens().length; i++) {
                int at = count + i - 1;
                for (float[] each :
                        logits(model, chunk(0, all, at, 1, true), chunk(1, all, at, 1, true))) {
                    worst.add(check(of, i, each, greedy));
                }
            }
        }
        return worst;
    }

    static TransformerModel model(
            ModelConfig config,
            ProcessGroup group,
            TensorFiles files,
            boolean inPlace,
            int maxLength) {
        int ranks = group.worldSize();
        ModelWeights weights =
                ModelWeights.read(
                        config,
                        group.rank(),
                        ranks,
                        group.device(),
                        new WeightFormat(Quantization.NONE),
                        files,
                        inPlace,
                        bytes -> {});
        KvCache cache = new KvCache(config, ranks, BLOCKS * 16, group.device());
        TransformerModel model =
                TransformerModel.create(config, group, weights, cache, maxLength, false);
        model.keepLogits();
        return model;
    }

    static TokenBatch.Chunk chunk(
            int sequence, int[] all, int start, int count, boolean needsLogits) {
        // Blocks that are not adjacent, in falling order.
        int[] slots =
                IntStream.range(0, all.length)
                        .map(i -> (2 * (BLOCKS / 2 - 1 - i / 16) + sequence) * 16 + i % 16)
                        .toArray();
        int[] tokens = Arrays.copyOfRange(all, start, start + count);
        return new TokenBatch.Chunk(
                sequence, tokens, start, slots, needsLogits, SamplingParameters.GREEDY, 0);
    }

    static List<float[]> logits(TransformerModel model, TokenBatch.Chunk... chunks) {
        List<float[]> rows = new ArrayList<>();
        try (NDManager manager = NDManager.newBaseManager()) {
            Logits logits = model.forward(new TokenBatch(List.of(chunks)), manager);
            for (int i = 0; i < logits.count(); i++) {
                rows.add(logits.toArray(i));
            }
        }
        return rows;
    }

    private static double check(ModelFixture.Case of, int step, float[] logits, double greedy) {
        double logSum = logSum(logits);
        int best = 0;
        for (int i = 0; i < logits.length; i++) {
            best = logits[i] > logits[best] ? i : best;
        }
        if (of.gap() > 2 * greedy) {
            assertEquals(of.tokens()[step], best, "token of step " + step);
        }
        double worst = 0;
        ModelFixture.Top top = of.top().get(step);
        for (int i = 0; i < top.tokens().length; i++) {
            double own = logits[top.tokens()[i]] - logSum;
            worst = Math.max(worst, Math.abs(own - top.logprobs()[i]));
        }
        return worst;
    }

    /** Returns the logarithm of the sum of exponentials. */
    static double logSum(float[] logits) {
        double sum = 0;
        for (float logit : logits) {
            sum += Math.exp(logit);
        }
        assertTrue(Double.isFinite(sum), "logits are not finite");
        return Math.log(sum);
    }
}

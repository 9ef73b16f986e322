// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.tune;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.util.Pair;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.gradient.DifferentiableCollectives;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.LoraConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.ModelFixture;
import org.djlx.llm.model.WeightMap;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.nn.Lora;
import org.djlx.training.nn.ParallelMlp;
import org.djlx.training.nn.ShardedBlock;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Models of Hugging Face's layout as blocks. */
@Timeout(200)
class TrainableModelTest {

    private static final int[] PROMPT = {3, 17, 42, 99, 5, 61, 8, 120, 33, 7, 11, 64};

    @TempDir private Path folder;

    /** Runs the ranks of a test. */
    private interface Rank {

        void run(ProcessGroup group, NDManager manager) throws Exception;
    }

    private static void run(int ranks, Rank rank) {
        List<ProcessGroup> groups = ProcessGroups.local(ranks);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        try (NDManager manager =
                                NDManager.newBaseManager(group.device(), "PyTorch")) {
                            rank.run(group, manager);
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static TrainableModel load(
            Path directory, ProcessGroup group, NDManager manager, Lora lora) throws IOException {
        TrainableModel tuned =
                TrainableModel.builder()
                        .setGroup(group)
                        .setDirectory(directory)
                        .optLora(lora)
                        .build();
        tuned.load(manager);
        return tuned;
    }

    /** Returns the logarithms of the probabilities after each of the tokens. */
    private static double[][] logProbabilities(
            TrainableModel tuned, ProcessGroup group, NDManager manager, int[] tokens) {
        NDArray input =
                manager.create(Arrays.stream(tokens).asLongStream().toArray()).expandDims(0);
        ParameterStore store = new ParameterStore(manager, false);
        return NoGradient.get(
                () -> {
                    NDArray part =
                            tuned.block()
                                    .forward(store, new NDList(input), false)
                                    .singletonOrThrow();
                    NDArray all = DifferentiableCollectives.allGather(part, -1, group);
                    double[][] rows = new double[tokens.length][];
                    for (int i = 0; i < rows.length; i++) {
                        rows[i] = TestArrays.values(all.get("0, " + i));
                        rows[i] = Arrays.copyOf(rows[i], tuned.config().vocabularySize());
                        double sum = Math.log(Arrays.stream(rows[i]).map(Math::exp).sum());
                        for (int k = 0; k < rows[i].length; k++) {
                            rows[i][k] -= sum;
                        }
                    }
                    return rows;
                });
    }

    /**
     * The issue asks for 1e-4 in float32. Qwen 2's and Mistral's windows are shorter than texts.
     */
    @ParameterizedTest
    @CsvSource({
        "llama-yarn, 1",
        "llama-yarn-mscale, 2",
        "mistral, 1",
        "mistral, 2",
        "qwen2, 1",
        "qwen2, 2",
        "qwen2, 4",
        "qwen3, 1",
        "qwen3, 2"
    })
    void hasTheLogProbabilitiesOfTransformers(String name, int ranks) throws Exception {
        ModelFixture.write(name, folder, ScalarType.FLOAT32);
        ModelFixture fixture = ModelFixture.read(name);
        run(
                ranks,
                (group, manager) -> {
                    TrainableModel tuned = load(folder, group, manager, null);
                    for (ModelFixture.Case of : fixture.cases()) {
                        int[] all = Arrays.copyOf(of.prompt(), of.length());
                        System.arraycopy(
                                of.tokens(), 0, all, of.prompt().length, of.tokens().length);
                        double[][] rows = logProbabilities(tuned, group, manager, all);
                        for (int step = 0; step < of.tokens().length; step++) {
                            double[] row = rows[of.prompt().length - 1 + step];
                            ModelFixture.Top top = of.top().get(step);
                            for (int i = 0; i < top.tokens().length; i++) {
                                assertEquals(top.logprobs()[i], row[top.tokens()[i]], 1e-4);
                            }
                        }
                    }
                });
    }

    @Test
    void refusesModelsThatItWouldComputeDifferently() throws IOException {
        Map<String, String> reasons =
                Map.of(
                        "llama-bias", "bias of the attention's output",
                        "llama-dynamic", "dynamic NTK",
                        "gemma2", "not gemma2",
                        "phi3", "not phi3",
                        "qwen3-moe", "not qwen3_moe");
        for (Map.Entry<String, String> each : reasons.entrySet()) {
            Path directory = Files.createDirectory(folder.resolve(each.getKey()));
            ModelFixture.write(each.getKey(), directory, ScalarType.FLOAT32);
            run(
                    1,
                    (group, manager) -> {
                        String message =
                                assertThrows(
                                                IllegalArgumentException.class,
                                                () -> load(directory, group, manager, null))
                                        .getMessage();
                        assertTrue(message.contains(each.getValue()), message);
                    });
        }
    }

    /** Gives all parameters random values in float64, which depend on their names alone. */
    private static void fill(TrainableModel tuned, NDManager manager, Shape input) {
        tuned.block()
                .setInitializer(
                        (inner, shape, type) -> inner.zeros(shape, type), parameter -> true);
        tuned.block().initialize(manager, DataType.FLOAT64, input);
        for (ShardedBlock each : blocks(tuned.block())) {
            for (String name : each.getDirectParameters().keys()) {
                NDArray full = each.full(name, manager);
                double[] values = new double[(int) full.size()];
                Random random = new Random(name.hashCode() + full.size());
                boolean norm = name.endsWith("Norm") || full.getShape().dimension() == 1;
                Arrays.setAll(values, i -> (norm ? 1 : 0) + 0.1 * random.nextGaussian());
                each.setFull(name, manager.create(values, full.getShape()));
            }
        }
    }

    private static List<ShardedBlock> blocks(Block block) {
        if (block instanceof ShardedBlock divided) {
            return List.of(divided);
        }
        List<ShardedBlock> all = new ArrayList<>();
        block.getChildren().values().forEach(each -> all.addAll(blocks(each)));
        return all;
    }

    private static NDArray loss(
            TrainableModel tuned, NDManager manager, boolean training, boolean flat) {
        long[] tokens = new long[2 * 20];
        long[] labels = new long[tokens.length];
        Random random = new Random(4);
        for (int i = 0; i < tokens.length; i++) {
            tokens[i] = random.nextInt(tuned.config().vocabularySize());
            labels[i] =
                    i % 3 == 0
                            ? TrainableModel.IGNORED
                            : random.nextInt(tuned.config().vocabularySize());
        }
        Shape shape = flat ? new Shape(2 * 20) : new Shape(2, 20);
        NDArray input = manager.create(tokens, shape);
        NDArray label = manager.create(labels, shape);
        ParameterStore store = new ParameterStore(manager, false);
        NDList logits = tuned.block().forward(store, new NDList(input), training);
        return tuned.loss().evaluate(new NDList(label), logits);
    }

    private static TrainableModel random(
            Path folder,
            ProcessGroup group,
            NDManager manager,
            Lora lora,
            boolean flat,
            ScalarType type)
            throws IOException {
        TrainableModel tuned =
                TrainableModel.builder()
                        .setGroup(group)
                        .setConfig(ModelConfig.read(folder))
                        .optLora(lora)
                        .optSequenceParallel(flat ? 20 : 0)
                        .optComputeType(type)
                        .build();
        fill(tuned, manager, flat ? new Shape(2 * 20) : new Shape(2, 20));
        return tuned;
    }

    /** Returns the full gradients of all parameters that have one. */
    private static Map<String, double[]> gradients(
            TrainableModel tuned, NDManager manager, boolean flat) {
        try (GradientScope scope = GradientScope.open()) {
            NDArray loss = loss(tuned, manager, true, flat);
            scope.backward(loss);
        }
        Map<String, double[]> gradients = new LinkedHashMap<>();
        List<ShardedBlock> blocks = blocks(tuned.block());
        for (ShardedBlock each : blocks) {
            for (Pair<String, Parameter> named : each.getDirectParameters()) {
                NDArray array = named.getValue().getArray();
                if (!Torch.requiresGradient(array)) {
                    continue;
                }
                try (NDArray gradient = array.getGradient();
                        NDArray kept = array.duplicate()) {
                    NoGradient.run(() -> gradient.copyTo(array));
                    NDArray full = each.full(named.getKey(), manager);
                    NoGradient.run(() -> kept.copyTo(array));
                    gradients.put(
                            blocks.indexOf(each) + " " + named.getKey(), TestArrays.values(full));
                }
            }
        }
        return gradients;
    }

    /**
     * One rank's gradients against differences of losses in float64, three elements of each
     * parameter; the gradients of more ranks against those of one, also with sequence parallelism.
     */
    @ParameterizedTest
    @CsvSource({"qwen2, false", "qwen3, false", "qwen2, true", "qwen3, true"})
    void hasTheGradientsOfDifferences(String name, boolean adapters) throws Exception {
        ModelFixture.write(name, folder, ScalarType.FLOAT32);
        Lora lora = adapters ? new Lora(3, 5, Lora.of(1).targets()) : null;
        Map<String, double[]> one = new LinkedHashMap<>();
        run(
                1,
                (group, manager) -> {
                    TrainableModel tuned = random(folder, group, manager, lora, false, null);
                    one.putAll(gradients(tuned, manager, false));
                    List<ShardedBlock> blocks = blocks(tuned.block());
                    Random random = new Random(6);
                    one.forEach(
                            (place, gradient) -> {
                                String[] words = place.split(" ");
                                ShardedBlock block = blocks.get(Integer.parseInt(words[0]));
                                for (int i = 0; i < 3; i++) {
                                    int at = random.nextInt(gradient.length);
                                    double difference = difference(tuned, block, words[1], at);
                                    assertEquals(
                                            difference,
                                            gradient[at],
                                            1e-8 + 1e-5 * Math.abs(difference),
                                            place + ", element " + at);
                                }
                            });
                });
        assertEquals(
                adapters ? 2 * 7 * 2 : name.equals("qwen2") ? 2 * 12 + 3 : 2 * 11 + 2, one.size());
        for (int ranks : new int[] {1, 2, 4}) {
            for (boolean flat : new boolean[] {false, true}) {
                run(
                        ranks,
                        (group, manager) -> {
                            TrainableModel tuned = random(folder, group, manager, lora, flat, null);
                            Map<String, double[]> own = gradients(tuned, manager, flat);
                            assertEquals(one.keySet(), own.keySet());
                            own.forEach(
                                    (at, gradient) ->
                                            assertArrayEquals(one.get(at), gradient, 1e-9, at));
                        });
            }
        }
    }

    /** bfloat16 has three decimal digits; errors are relative to the norm of a gradient. */
    @ParameterizedTest
    @CsvSource({"qwen2, false, 1", "qwen3, true, 2", "qwen2, true, 1"})
    void computesInBfloat16(String name, boolean adapters, int ranks) throws Exception {
        ModelFixture.write(name, folder, ScalarType.FLOAT32);
        Lora lora = adapters ? Lora.of(3) : null;
        run(
                ranks,
                (group, manager) -> {
                    TrainableModel wide = random(folder, group, manager, lora, false, null);
                    Map<String, double[]> exact = gradients(wide, manager, false);
                    TrainableModel narrow =
                            random(folder, group, manager, lora, false, ScalarType.BFLOAT16);
                    Map<String, double[]> rounded = gradients(narrow, manager, false);
                    assertEquals(exact.keySet(), rounded.keySet());
                    exact.forEach(
                            (at, gradient) -> {
                                double error = 0;
                                double size = 0;
                                for (int i = 0; i < gradient.length; i++) {
                                    error += Math.pow(gradient[i] - rounded.get(at)[i], 2);
                                    size += gradient[i] * gradient[i];
                                }
                                assertTrue(Math.sqrt(error / size) < 0.04, at);
                            });
                });
    }

    /** Returns the difference quotient of the loss. */
    private static double difference(
            TrainableModel tuned, ShardedBlock block, String parameter, int at) {
        double step = 1e-5;
        double[] losses = new double[2];
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray full = block.full(parameter, manager);
            double[] values = full.toDoubleArray();
            double value = values[at];
            for (int side = 0; side < 2; side++) {
                values[at] = value + (side == 0 ? step : -step);
                block.setFull(parameter, manager.create(values, full.getShape()));
                losses[side] = NoGradient.get(() -> loss(tuned, manager, false, false)).getDouble();
            }
            block.setFull(parameter, full);
        }
        return (losses[0] - losses[1]) / (2 * step);
    }

    private static List<GeneratedPiece> generate(Path directory, int count) throws Exception {
        try (TextGenerator generator = TextEngine.builder().setDirectory(directory).build()) {
            return generator
                    .submit(
                            GenerationRequest.builder()
                                    .setPromptTokens(PROMPT)
                                    .optMaxTokens(count)
                                    .optIgnoreEndOfText(true)
                                    .build())
                    .await(Duration.ofMinutes(1));
        }
    }

    /** Checks that the text engine computes with a directory as the block does. */
    private static void requireSame(
            Path directory, TrainableModel tuned, ProcessGroup group, NDManager manager)
            throws Exception {
        List<GeneratedPiece> pieces = group.rank() == 0 ? generate(directory, 8) : List.of();
        int[] all = Arrays.copyOf(PROMPT, PROMPT.length + 8);
        long[] tokens = new long[8];
        for (int i = 0; i < pieces.size(); i++) {
            tokens[i] = pieces.get(i).token();
        }
        try (NDArray shared = manager.create(tokens)) {
            group.broadcast(shared, 0).await();
            tokens = shared.toLongArray();
        }
        for (int i = 0; i < tokens.length; i++) {
            all[PROMPT.length + i] = (int) tokens[i];
        }
        double[][] rows = logProbabilities(tuned, group, manager, all);
        for (int i = 0; i < pieces.size(); i++) {
            double own = rows[PROMPT.length - 1 + i][pieces.get(i).token()];
            assertEquals(pieces.get(i).logProbability(), own, 1e-4);
        }
    }

    /** A Llama with a tied embedding or not, and Llama 3's rotations, before and after a change. */
    @ParameterizedTest
    @CsvSource({"1, true", "2, false"})
    void writesADirectoryThatTheTextEngineLoads(int ranks, boolean tied) throws Exception {
        Path directory = folder.resolve("model");
        LlamaFiles.write(directory, LlamaFiles.config(ScalarType.FLOAT32, tied), 3);
        Files.writeString(directory.resolve("chat_template.jinja"), "{{ bos_token }}");
        Path out = folder.resolve("out");
        run(
                ranks,
                (group, manager) -> {
                    TrainableModel tuned = load(directory, group, manager, null);
                    requireSame(directory, tuned, group, manager);
                    for (ShardedBlock each : blocks(tuned.block())) {
                        for (Parameter parameter : each.getDirectParameters().values()) {
                            NoGradient.run(() -> parameter.getArray().muli(1.1));
                        }
                    }
                    tuned.save(out);
                    requireSame(out, tuned, group, manager);
                });
        assertEquals("{{ bos_token }}", Files.readString(out.resolve("chat_template.jinja")));
        try (Safetensors before = Safetensors.open(directory);
                Safetensors after = Safetensors.open(out)) {
            assertEquals(before.specs().size(), after.specs().size());
            WeightMap.check(ModelConfig.read(out), after);
        }
    }

    /** Takes steps of Adam on {@link #loss}'s tokens, as a user would; returns the losses. */
    private static List<Float> train(TrainableModel tuned, ProcessGroup group, int steps) {
        List<Float> losses = new ArrayList<>();
        try (Model model = Model.newInstance("tuned", group.device(), "PyTorch-P2P")) {
            model.setBlock(tuned.block());
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(tuned.loss())
                            .optDevices(new Device[] {group.device()})
                            .optOptimizer(
                                    Optimizer.adam()
                                            .optLearningRateTracker(Tracker.fixed(0.02f))
                                            .build());
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(2, 20));
                for (int i = 0; i < steps; i++) {
                    try (NDManager manager = trainer.getManager().newSubManager()) {
                        NDList input = new NDList(tokens(tuned, manager, 4));
                        NDList labels = new NDList(tokens(tuned, manager, 5));
                        NDArray loss;
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            loss = tuned.loss().evaluate(labels, trainer.forward(input));
                            collector.backward(loss);
                        }
                        trainer.step();
                        losses.add(loss.stopGradient().getFloat());
                    }
                }
            }
        }
        return losses;
    }

    private static NDArray tokens(TrainableModel tuned, NDManager manager, long seed) {
        int vocabulary = tuned.config().vocabularySize();
        long[] tokens = new Random(seed).longs(2 * 20, 0, vocabulary).toArray();
        return manager.create(tokens, new Shape(2, 20));
    }

    /** Only the adapter learns; files have PEFT's names; a saved adapter goes on as it was. */
    @ParameterizedTest
    @CsvSource({"1, 2", "2, 1"})
    void trainsAnAdapterInTheLayoutOfPeft(int ranks, int ranksLater) throws Exception {
        Path directory = folder.resolve("model");
        LlamaFiles.write(directory, LlamaFiles.config(ScalarType.FLOAT32, false), 3);
        Path adapter = folder.resolve("adapter");
        Path merged = folder.resolve("merged");
        Lora lora = new Lora(4, 6, Set.of("query", "value", "output", "down"));
        List<double[][]> kept = new ArrayList<>();
        run(
                ranks,
                (group, manager) -> {
                    Engine.getEngine("PyTorch").setRandomSeed(3);
                    TrainableModel tuned = load(directory, group, manager, lora);
                    double[][] before = logProbabilities(tuned, group, manager, PROMPT);
                    TrainableModel plain = load(directory, group, manager, null);
                    assertArrayEquals(before, logProbabilities(plain, group, manager, PROMPT));
                    List<Float> losses = train(tuned, group, 30);
                    assertTrue(losses.get(29) < losses.get(0) - 0.5, losses::toString);
                    tuned.saveAdapter(adapter);
                    tuned.save(merged);
                    double[][] after = logProbabilities(tuned, group, manager, PROMPT);
                    assertTrue(Math.abs(after[0][0] - before[0][0]) > 1e-2);
                    if (group.rank() == 0) {
                        kept.add(after);
                    }
                    requireSame(merged, tuned, group, manager);
                });
        requireUnchanged(directory, merged, Set.of("q_proj", "v_proj", "o_proj", "down_proj"));
        requirePeft(adapter, directory);
        run(
                ranksLater,
                (group, manager) -> {
                    TrainableModel tuned =
                            TrainableModel.builder()
                                    .setGroup(group)
                                    .setDirectory(directory)
                                    .optAdapter(adapter)
                                    .build();
                    tuned.load(manager);
                    double[][] rows = logProbabilities(tuned, group, manager, PROMPT);
                    for (int i = 0; i < rows.length; i++) {
                        assertArrayEquals(kept.get(0)[i], rows[i], 1e-4);
                    }
                });
    }

    /** The adapter's generator serves it as it was trained. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void trainsWithDropoutAndRankStabilizedScale(int ranks) throws Exception {
        Path directory = folder.resolve("model");
        LlamaFiles.write(directory, LlamaFiles.config(ScalarType.FLOAT32, false), 3);
        Path adapter = folder.resolve("adapter");
        Path merged = folder.resolve("merged");
        Lora lora = new Lora(9, 6, Set.of("query", "gate", "down"), true, 0.25);
        run(
                ranks,
                (group, manager) -> {
                    Engine.getEngine("PyTorch").setRandomSeed(3);
                    TrainableModel tuned = load(directory, group, manager, lora);
                    List<Float> losses = train(tuned, group, 40);
                    assertTrue(losses.get(39) < losses.get(0) - 0.5, losses::toString);
                    NDList input = new NDList(tokens(tuned, manager, 4));
                    ParameterStore store = new ParameterStore(manager, false);
                    List<Integer> outputs = new ArrayList<>();
                    for (boolean training : new boolean[] {true, true, false, false}) {
                        float[] values =
                                NoGradient.get(
                                        () ->
                                                tuned.block()
                                                        .forward(store, input, training)
                                                        .singletonOrThrow()
                                                        .toFloatArray());
                        outputs.add(Arrays.hashCode(values));
                    }
                    assertEquals(3, Set.copyOf(outputs).size(), outputs::toString);
                    assertEquals(outputs.get(2), outputs.get(3));
                    tuned.saveAdapter(adapter);
                    tuned.save(merged);
                    double[][] after = logProbabilities(tuned, group, manager, PROMPT);
                    TrainableModel again =
                            TrainableModel.builder()
                                    .setGroup(group)
                                    .setDirectory(directory)
                                    .optAdapter(adapter)
                                    .build();
                    again.load(manager);
                    assertArrayEquals(after, logProbabilities(again, group, manager, PROMPT));
                });
        LoraConfig config = LoraConfig.read(adapter);
        assertEquals(
                new LoraConfig(9, 6, true, 0.25, List.of("q_proj", "gate_proj", "down_proj")),
                config);
        assertEquals(2, config.scale());
        try (TextGenerator generator =
                TextEngine.builder().setDirectory(directory).optAdapter("a", adapter).build()) {
            GenerationRequest request =
                    GenerationRequest.builder()
                            .setPromptTokens(PROMPT)
                            .optMaxTokens(12)
                            .optIgnoreEndOfText(true)
                            .optAdapter("a")
                            .build();
            List<GeneratedPiece> adapted = generator.submit(request).await(Duration.ofMinutes(1));
            List<GeneratedPiece> expected = generate(merged, 12);
            for (int i = 0; i < 12; i++) {
                assertEquals(expected.get(i).token(), adapted.get(i).token());
                assertEquals(
                        expected.get(i).logProbability(), adapted.get(i).logProbability(), 1e-4);
            }
        }
    }

    /** The mean of many outputs with dropout is the output without it: the adapter is linear. */
    @Test
    void dropoutKeepsTheMeanOfAnAdapter() {
        int draws = 2000;
        run(
                1,
                (group, manager) -> {
                    Engine.getEngine("PyTorch").setRandomSeed(5);
                    ParallelMlp mlp =
                            ParallelMlp.builder()
                                    .setGroup(group)
                                    .setHidden(16)
                                    .optLora(new Lora(4, 8, Set.of("down"), false, 0.5))
                                    .build();
                    Shape shape = new Shape(3, 8);
                    mlp.initialize(manager, DataType.FLOAT32, shape);
                    mlp.setFull("downLoraB", manager.randomNormal(new Shape(8, 4)));
                    NDList x = new NDList(manager.randomNormal(shape));
                    ParameterStore store = new ParameterStore(manager, false);
                    NoGradient.run(
                            () -> {
                                NDArray without = mlp.forward(store, x, false).singletonOrThrow();
                                NDArray sum = manager.zeros(shape);
                                NDArray squares = manager.zeros(shape);
                                for (int i = 0; i < draws; i++) {
                                    NDArray y =
                                            mlp.forward(store, x, true)
                                                    .singletonOrThrow()
                                                    .sub(without);
                                    sum.addi(y);
                                    squares.addi(y.square());
                                }
                                double[] total = TestArrays.values(sum);
                                double[] spread = TestArrays.values(squares);
                                for (int i = 0; i < total.length; i++) {
                                    assertTrue(spread[i] > 0);
                                    assertTrue(Math.abs(total[i]) < 5 * Math.sqrt(spread[i]));
                                }
                            });
                });
    }

    private static void requireUnchanged(Path directory, Path merged, Set<String> changed)
            throws IOException {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                Safetensors before = Safetensors.open(directory);
                Safetensors after = Safetensors.open(merged)) {
            for (TensorSpec spec : before.specs()) {
                NDArray one = manager.zeros(spec.shape());
                NDArray other = manager.zeros(spec.shape());
                before.read(spec.name(), one);
                after.read(spec.name(), other);
                boolean same = changed.stream().noneMatch(spec.name()::contains);
                assertEquals(same, one.contentEquals(other), spec.name());
            }
        }
    }

    /** The names and shapes that PEFT's save_pretrained writes. */
    private static void requirePeft(Path adapter, Path directory) throws IOException {
        JsonObject json =
                JsonParser.parseString(Files.readString(adapter.resolve("adapter_config.json")))
                        .getAsJsonObject();
        assertEquals("LORA", json.get("peft_type").getAsString());
        assertEquals("CAUSAL_LM", json.get("task_type").getAsString());
        assertEquals(4, json.get("r").getAsInt());
        assertEquals("6", json.get("lora_alpha").toString());
        assertEquals(
                "[\"q_proj\",\"v_proj\",\"o_proj\",\"down_proj\"]",
                json.get("target_modules").toString());
        assertEquals(directory.toString(), json.get("base_model_name_or_path").getAsString());
        try (Safetensors files = Safetensors.open(adapter.resolve("adapter_model.safetensors"))) {
            assertEquals(2 * 4 * 2, files.specs().size());
            String layer = "base_model.model.model.layers.1.";
            assertEquals(
                    new Shape(4, 40), files.spec(layer + "self_attn.v_proj.lora_A.weight").shape());
            assertEquals(
                    new Shape(12, 4), files.spec(layer + "self_attn.v_proj.lora_B.weight").shape());
            assertEquals(
                    new Shape(4, 48), files.spec(layer + "mlp.down_proj.lora_A.weight").shape());
        }
    }

    @Test
    void refusesAdaptersThatItWouldComputeDifferently() throws Exception {
        Path directory = folder.resolve("model");
        LlamaFiles.write(directory, LlamaFiles.config(ScalarType.FLOAT32, false), 3);
        Path file = Files.createDirectory(folder.resolve("adapter")).resolve("adapter_config.json");
        String start = "{'r': 4, 'lora_alpha': 6, 'peft_type': 'LORA', 'target_modules': ";
        Map<String, String> reasons =
                Map.of(
                        "['q_proj'], 'use_dora': true}",
                                "use_dora is not supported, but it is true",
                        "['q_proj'], 'bias': 'all'}", "bias must be none, not all",
                        "['lm_head']}", "target_modules has 'lm_head'",
                        "'all-linear'}", "target_modules must list the projections",
                        "['q_proj'], 'rank_pattern': {'a': 2}}", "rank_pattern is not supported",
                        "['q_proj'], 'layer_replication': [[0, 2]]}",
                                "layer_replication is not supported",
                        "['q_proj'], 'init_lora_weights': 'pissa_niter_4'}",
                                "init_lora_weights is \"pissa_niter_4\"",
                        "[null]}", "target_modules must list names of modules");
        for (Map.Entry<String, String> each : reasons.entrySet()) {
            Files.writeString(file, (start + each.getKey()).replace('\'', '"'));
            run(
                    1,
                    (group, manager) -> {
                        TrainableModel.Builder builder =
                                TrainableModel.builder()
                                        .setGroup(group)
                                        .setDirectory(directory)
                                        .optAdapter(file.getParent());
                        String message =
                                assertThrows(IllegalArgumentException.class, builder::build)
                                        .getMessage();
                        assertTrue(message.contains(each.getValue()), message);
                        assertTrue(message.contains("adapter_config.json"), message);
                    });
        }
    }
}

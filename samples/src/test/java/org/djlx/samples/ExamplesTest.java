// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples;

import static dev.langchain4j.model.LambdaStreamingResponseHandler.onPartialResponseBlocking;
import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.ndarray.BytesSupplier;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.dataset.Dataset;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.util.PairList;
import com.fasterxml.jackson.annotation.JsonProperty;
import dev.langchain4j.agent.tool.Tool;
import dev.langchain4j.service.AiServices;
import dev.langchain4j.service.UserMessage;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.collectives.launch.LaunchEnvironment;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.pool.RankPool;
import org.djlx.collectives.pool.RankWorker;
import org.djlx.collectives.pool.RequestCodec;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.GatheredMatmul;
import org.djlx.fusedops.VariableAllToAll;
import org.djlx.llm.ChatAnswer;
import org.djlx.llm.ChatModel;
import org.djlx.llm.ChatRequest;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.langchain4j.TextChatModel;
import org.djlx.llm.text.ChatTemplate.Message;
import org.djlx.llm.text.ToolCall;
import org.djlx.llm.tune.ChatDataset;
import org.djlx.llm.tune.TrainableModel;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.DataParallelConfig;
import org.djlx.training.DataParallelTrainer;
import org.djlx.training.GradientReduction;
import org.djlx.training.GradientSynchronizer;
import org.djlx.training.LossWeight;
import org.djlx.training.checkpoint.CheckpointManager;
import org.djlx.training.checkpoint.TrainingProgress;
import org.djlx.training.data.DistributedSampler;
import org.djlx.training.nn.Lora;
import org.djlx.training.nn.TensorParallel;
import org.djlx.training.nn.TensorParallel.Style;
import org.djlx.training.precision.MixedPrecisionPolicy;
import org.djlx.training.strategy.FullyShard;
import org.djlx.training.strategy.FullyShardPolicy;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Runs the code of the examples in the documents. An example is a copy of code here, apart from
 * spaces, comments and imports, which SnippetsTest compiles.
 */
@Timeout(120)
class ExamplesTest {

    private static final Path ROOT = Path.of("..");
    private static final Pattern JAVADOC =
            Pattern.compile("<pre>\\{@code\\n(.*?)\\* \\}</pre>", Pattern.DOTALL);
    private static final Pattern OVERVIEW =
            Pattern.compile("<pre>\\{@code\\n(.*?)\\}</pre>", Pattern.DOTALL);
    private static final Pattern MARKDOWN = Pattern.compile("```java\\n(.*?)```", Pattern.DOTALL);

    static Stream<String> documents() throws IOException {
        List<String> examples =
                Stream.of(
                                find(source("ProcessGroup"), JAVADOC, 1),
                                find(source("ProcessGroups"), JAVADOC, 1),
                                find(source("RankPool"), JAVADOC, 2),
                                find(source("P2pBuffers"), JAVADOC, 1),
                                find(source("P2pEngine"), JAVADOC, 1),
                                find(source("GradientScope"), JAVADOC, 1),
                                find(source("GradientSynchronizer"), JAVADOC, 1),
                                find(source("CheckpointManager"), JAVADOC, 1),
                                find(source("FusedOps"), JAVADOC, 1),
                                find(source("VariableAllToAll"), JAVADOC, 1),
                                find(source("TextGenerator"), JAVADOC, 1),
                                find(source("TextEngine"), JAVADOC, 1),
                                find(source("TrainableModel"), JAVADOC, 1),
                                find(source("TensorParallel"), JAVADOC, 1),
                                find(Path.of("docs/overview.html"), OVERVIEW, 1),
                                find(Path.of("docs/getting-started.md"), MARKDOWN, 2),
                                find(Path.of("docs/process-groups.md"), MARKDOWN, 2),
                                find(Path.of("docs/fused-operators.md"), MARKDOWN, 6),
                                find(Path.of("docs/training.md"), MARKDOWN, 1),
                                find(source("TextChatModel"), JAVADOC, 1),
                                find(source("ChatModel"), JAVADOC, 1),
                                find(source("ChatRequest"), JAVADOC, 1),
                                find(Path.of("docs/text-generation.md"), MARKDOWN, 5))
                        .flatMap(List::stream)
                        .toList();
        return examples.stream();
    }

    /** Returns the source of a class in any package. */
    private static Path source(String name) throws IOException {
        for (String module :
                List.of("djl-collectives", "fused-ops", "training", "text-generation")) {
            try (Stream<Path> files = Files.walk(ROOT.resolve(module).resolve("src/main/java"))) {
                Optional<Path> found = files.filter(f -> f.endsWith(name + ".java")).findFirst();
                if (found.isPresent()) {
                    return ROOT.relativize(found.get());
                }
            }
        }
        throw new IllegalArgumentException("no source of " + name);
    }

    private static List<String> find(Path file, Pattern pattern, int count) throws IOException {
        String text = Files.readString(ROOT.resolve(file));
        List<String> found =
                pattern.matcher(text).results().map((MatchResult m) -> m.group(1)).toList();
        assertTrue(found.size() >= count, () -> file + " has " + found.size() + " examples");
        return found;
    }

    @ParameterizedTest
    @MethodSource("documents")
    void anExampleIsCodeThatRuns(String example) throws IOException {
        String here = Files.readString(Path.of("src/test/java/org/djlx/samples/ExamplesTest.java"));
        assertFalse(squeeze(example).isEmpty());
        // An example may leave out code between two paragraphs.
        for (String paragraph : example.split("\\n( *\\*)?\\n")) {
            String code = squeeze(paragraph.replaceAll("(?m)^ *\\* ?", ""));
            assertTrue(squeeze(here).contains(code), () -> "no such code here:\n" + paragraph);
        }
    }

    /** The README's program prints the text that the README names. */
    @Test
    void theProgramOfTheReadmeRunsAsPrinted() throws Exception {
        Path readme = Path.of("README.md");
        List<String> programs =
                find(readme, MARKDOWN, 1).stream().filter(p -> p.contains("class Mlp")).toList();
        assertEquals(1, programs.size());
        Path file = Path.of("Mlp.java");
        String program = Files.readString(file);
        assertEquals(programs.get(0), program.substring(program.indexOf('\n') + 1));
        List<String> command =
                List.of(
                        Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                        "-cp",
                        System.getProperty("java.class.path"),
                        file.toString());
        Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
        String output = new String(process.getInputStream().readAllBytes(), UTF_8);
        assertEquals(0, process.waitFor(), output);
        String printed = find(readme, Pattern.compile("prints (\\[.*])"), 1).get(0);
        assertTrue(output.lines().anyMatch(printed::equals), output);
    }

    private static String squeeze(String code) {
        return code.replaceAll("(?m)//.*|^import .*;$", "").replaceAll("\\s", "");
    }

    @Test
    void ranksThatAreThreads() {
        List<ProcessGroup> groups = ProcessGroups.local(4);
        List<Float> sums =
                ProcessGroups.run(
                        groups,
                        group -> {
                            try (NDManager manager = NDManager.newBaseManager(group.device())) {
                                NDArray ranks = manager.create(new float[] {group.rank()});
                                group.allReduce(ranks, ReduceOp.SUM).await();
                                return ranks.getFloat();
                            }
                        });
        groups.forEach(ProcessGroup::destroy);
        assertEquals(List.of(6f, 6f, 6f, 6f), sums);
    }

    @Test
    void float8() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        ProcessGroups.run(
                groups,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device())) {
                        NDArray a = manager.full(new Shape(4, 8), 2f);
                        NDArray bT = manager.ones(new Shape(3, 8));
                        NDArray aScale = manager.create(0.5f);
                        NDArray bScale = manager.create(1f);
                        NDArray a8 = Torch.cast(a, ScalarType.FLOAT8_E4M3FN);
                        NDArray b8 = Torch.cast(bT, ScalarType.FLOAT8_E4M3FN).transpose();
                        NDArray y =
                                FusedOps.scaledMatmulReduceScatter(
                                        a8, b8, aScale, bScale, ReduceOp.SUM, 0, group);
                        NDArray wide = Torch.cast(y, ScalarType.FLOAT32);
                        assertEquals(manager.full(new Shape(2, 3), 16f), wide);
                    }
                    return null;
                });
        groups.forEach(ProcessGroup::destroy);
    }

    @Test
    void operations() {
        List<ProcessGroup> groups = ProcessGroups.local(4);
        ProcessGroups.run(
                groups,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device())) {
                        NDArray gradient = manager.full(new Shape(3), (float) group.rank());
                        NDArray weights = manager.full(new Shape(3), (float) group.rank());
                        operations(group, gradient, weights);
                        assertEquals(manager.full(new Shape(3), 1.5f), gradient);
                        assertEquals(
                                manager.full(new Shape(3), (float) (group.rank() % 2)), weights);
                    }
                    return null;
                });
    }

    private static void operations(ProcessGroup group, NDArray gradient, NDArray weights) {
        Work work = group.allReduce(gradient, ReduceOp.AVG);
        work.await();

        ProcessGroup half = group.split(group.rank() % 2, group.rank());
        half.broadcast(weights, 0).await();
        half.destroy();

        group.destroy();
    }

    @Test
    void fusedOperators() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        ProcessGroups.run(
                groups,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device())) {
                        NDArray x = manager.ones(new Shape(3, 4));
                        NDArray w1 = manager.ones(new Shape(4, 5)).mul(10);
                        NDArray w2 = manager.ones(new Shape(5, 4));
                        NDArray y = fusedOperators(group, x, w1, w2);
                        // gelu(40) is 40 in float32.
                        assertEquals(manager.full(new Shape(3, 4), 400f), y);
                    }
                    return null;
                });
        groups.forEach(ProcessGroup::destroy);
    }

    private static NDArray fusedOperators(ProcessGroup group, NDArray x, NDArray w1, NDArray w2) {
        GatheredMatmul up = FusedOps.allGatherMatmul(x, List.of(w1), 0, group);
        NDArray hidden = Activation.gelu(up.outputs().get(0));
        NDArray y = FusedOps.matmulReduceScatter(hidden, w2, ReduceOp.SUM, 0, group);
        return y;
    }

    /** Runs in a process started by torchrun or launch. */
    static ProcessGroup initialise() {
        ProcessGroup group = ProcessGroups.init("shm");
        return group;
    }

    /** Runs in processes that know their rank by other means. */
    static ProcessGroup initialise(int rank, int worldSize, BackendOptions options) {
        LaunchEnvironment environment =
                LaunchEnvironment.builder()
                        .optRank(rank, worldSize)
                        .optMasterAddress("node0", 29500)
                        .optBindAddress("0.0.0.0")
                        .build();
        ProcessGroup group = ProcessGroups.init("nccl", environment, options);
        return group;
    }

    /**
     * DJL's own loss multiplies by a number; autograd may lose its memory before the backward pass.
     */
    private static final class Squares extends Loss {

        Squares() {
            super("squares");
        }

        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            return predictions.head().sub(labels.head()).square().mean();
        }
    }

    @Test
    void mixtureOfExperts() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        ProcessGroups.run(
                groups,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device())) {
                        NDArray tokens = manager.arange(20f).reshape(5, 4);
                        NDArray splits = manager.create(new long[] {1, 0, 3, 1});
                        NDArray back = mixture(group, manager, tokens, splits);
                        assertEquals(tokens.mul(2), back);
                    }
                    return null;
                });
        groups.forEach(ProcessGroup::destroy);
    }

    private static NDArray mixture(
            ProcessGroup group, NDManager manager, NDArray tokens, NDArray splits) {
        long experts = splits.size();
        long capacity = 24;
        long hidden = tokens.getShape().get(1);
        NDArray forExperts = manager.zeros(new Shape(capacity, hidden));
        NDArray routed = manager.zeros(new Shape(2, experts), DataType.INT64);
        VariableAllToAll.allToAllVdev2d(group, forExperts, tokens, splits, routed, 8).await();
        NDArray results = experts(forExperts, routed);
        NDArray back = manager.zeros(tokens.getShape());
        NDArray returned = manager.zeros(new Shape(2, experts), DataType.INT64);
        VariableAllToAll.allToAllVdev2dOffset(group, back, results, routed, returned).await();
        return back;
    }

    private static NDArray experts(NDArray rows, NDArray routed) {
        assertEquals(0, routed.getLong(1, 0));
        return rows.mul(2);
    }

    @Test
    void training() throws Exception {
        System.setProperty("org.djlx.ranks", "2");
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            Block block = new SequentialBlock().add(Linear.builder().setUnits(1).build());
            TrainingConfig config =
                    new DefaultTrainingConfig(new Squares())
                            .optInitializer(Initializer.ZEROS, Parameter.Type.WEIGHT)
                            .optOptimizer(
                                    Optimizer.sgd()
                                            .setLearningRateTracker(Tracker.fixed(0.1f))
                                            .build());
            NDArray x = manager.arange(16f).reshape(8, 2).div(16);
            Dataset dataset =
                    new ArrayDataset.Builder()
                            .setData(x)
                            .optLabels(x.sum(new int[] {1}, true))
                            .setSampling(4, false)
                            .build();
            List<Float> losses = new ArrayList<>();
            config.getTrainingListeners()
                    .add(
                            new TrainingListenerAdapter() {
                                @Override
                                public void onEpoch(Trainer trainer) {
                                    Loss loss = trainer.getLoss();
                                    NDArray y = trainer.evaluate(new NDList(x)).head();
                                    NDArray sums = x.sum(new int[] {1}, true);
                                    losses.add(
                                            loss.evaluate(new NDList(sums), new NDList(y))
                                                    .getFloat());
                                }
                            });
            training(block, config, new Shape(1, 2), 100, dataset);
            assertEquals(100, losses.size());
            assertTrue(losses.get(99) < losses.get(0) / 2, losses::toString);
        } finally {
            System.clearProperty("org.djlx.ranks");
        }
    }

    private static void training(
            Block block, TrainingConfig config, Shape shape, int epochs, Dataset dataset)
            throws Exception {
        try (Model model = Model.newInstance("mlp", "PyTorch-P2P")) {
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(shape);
                EasyTrain.fit(trainer, epochs, dataset, null);
            }
        }
    }

    /** Four layers of 4 values. */
    private static final class Projections extends AbstractBlock {

        private final List<String> names = List.of("query", "key", "value", "output");

        Projections() {
            names.forEach(name -> addChildBlock(name, Linear.builder().setUnits(4).build()));
        }

        @Override
        protected void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
            children.values().forEach(each -> each.initialize(manager, type, shapes));
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store, NDList x, boolean training, PairList<String, Object> params) {
            return x;
        }

        @Override
        public Shape[] getOutputShapes(Shape[] shapes) {
            return shapes;
        }
    }

    @Test
    void clipping() throws Exception {
        try (Model model = Model.newInstance("clipping", "PyTorch-P2P")) {
            model.setBlock(Linear.builder().setUnits(1).build());
            DataParallelConfig config = new DataParallelConfig(Loss.l2Loss()).optRanks(2);
            NDManager manager = model.getNDManager();
            NDArray x = manager.ones(new Shape(4, 3));
            reducing(config);
            assertTrue(clipping(model, config, new NDList(x), new NDList(x.mul(2))) > 0);
        }
    }

    private static void reducing(DataParallelConfig config) {
        config.optLossWeight(LossWeight.ROWS);
        config.optGradientHook(
                bucket -> bucket.group().allReduceCoalesced(bucket.gradients(), bucket.op()));
    }

    @SuppressWarnings("try") // noSync is not named in the body
    private static double clipping(
            Model model, TrainingConfig config, NDList firstBatch, NDList lastBatch) {
        DataParallelTrainer trainer = (DataParallelTrainer) model.newTrainer(config);
        try (trainer) {
            trainer.initialize(new Shape(1, 3));
            try (DataParallelTrainer.NoSync accumulating = trainer.noSync()) {
                backward(trainer, firstBatch);
            }
            backward(trainer, lastBatch);
            double norm = trainer.clipGradNorm(1.0);
            trainer.step();
            return norm;
        }
    }

    private static void backward(Trainer trainer, NDList batch) {
        try (GradientCollector collector = trainer.newGradientCollector()) {
            collector.backward(trainer.forward(batch).head().add(1).square().mean());
        }
    }

    @Test
    void fullSharding() {
        try (Model model = Model.newInstance("sharded", "PyTorch-P2P")) {
            Block block = new SequentialBlock().add(Linear.builder().setUnits(1).build());
            DataParallelConfig config = new DataParallelConfig(Loss.l2Loss()).optRanks(2);
            fullSharding(model, block, config);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, 3));
                NDList data = new NDList(model.getNDManager().ones(new Shape(4, 3)));
                NDList labels = new NDList(model.getNDManager().ones(new Shape(4, 1)));
                step(trainer, data, labels);
                step(trainer, data, labels);
            }
        }
    }

    private static void fullSharding(Model model, Block block, DataParallelConfig config) {
        FullyShardPolicy policy =
                new FullyShardPolicy()
                        .optReshardAfterForward(false)
                        .optParameterType(ScalarType.BFLOAT16)
                        .optReductionType(ScalarType.FLOAT32);
        model.setBlock(FullyShard.apply(block, each -> each instanceof Linear, policy));
        config.optShardingStrategy(ShardingStrategy.FULL_SHARD)
                .optMixedPrecision(MixedPrecisionPolicy.BFLOAT16);
    }

    private static void step(Trainer trainer, NDList data, NDList labels) {
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList predictions = trainer.forward(data);
            collector.backward(trainer.getLoss().evaluate(labels, predictions));
        }
        trainer.step();
    }

    @Test
    void tensorParallelism() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        ProcessGroups.run(
                groups,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device())) {
                        Block block = new SequentialBlock().add(new Projections());
                        tensorParallelism(block, group);
                        block.initialize(manager, DataType.FLOAT32, new Shape(1, 4));
                        NDArray query = block.getParameters().valueAt(0).getArray();
                        assertEquals(new Shape(4, 2), query.getShape());
                    }
                    return null;
                });
        groups.forEach(ProcessGroup::destroy);
    }

    private static void tensorParallelism(Block block, ProcessGroup group) {
        TensorParallel.apply(
                block,
                Map.of(
                        "*.query", Style.COLUMN,
                        "*.key", Style.COLUMN,
                        "*.value", Style.COLUMN,
                        "*.output", Style.ROW),
                group);
    }

    @Test
    void fineTuning(@TempDir Path folder) throws Exception {
        Path directory = folder.resolve("tiny");
        String chat =
                "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\":"
                        + " \"assistant\", \"content\": \"Hello!\"}]}";
        Path file = Files.writeString(folder.resolve("chats.jsonl"), chat);
        String[] command = {"serve-model", directory.toString()};
        assertEquals(0, Main.commandLine().execute(command));
        Path out = folder.resolve("tuned");
        fineTuning(directory, file, out);
        try (TextGenerator generator = TextEngine.builder().setDirectory(out).build()) {
            pieces(generator);
        }
        adapters(directory, out.resolve("adapter"), out.resolve("adapter"));
    }

    private static void adapters(Path directory, Path adapter, Path another) throws Exception {
        try (TextGenerator generator =
                TextEngine.builder()
                        .setDirectory(directory)
                        .optAdapter("polite", adapter)
                        .build()) {
            GenerationRequest request =
                    GenerationRequest.builder().setPrompt("Hello").optAdapter("polite").build();
            Generation generation = generator.submit(request);
            generator.loadAdapter("short", another);
            generator.unloadAdapter("polite");
            generation
                    .await(Duration.ofMinutes(1))
                    .forEach(piece -> System.out.print(piece.text()));
        }
    }

    private static void fineTuning(Path directory, Path file, Path out) throws Exception {
        try (ProcessGroup group = ProcessGroups.local(1).get(0);
                Model model = Model.newInstance("tuned", group.device(), "PyTorch-P2P")) {
            TrainableModel tuned =
                    TrainableModel.builder()
                            .setGroup(group)
                            .setDirectory(directory)
                            .optLora(Lora.of(8))
                            .build();
            model.setBlock(tuned.block());
            tuned.load(model.getNDManager());
            Dataset chats =
                    ChatDataset.builder()
                            .setFile(file)
                            .setDirectory(directory)
                            .setSampling(8, true)
                            .build();
            TrainingConfig config =
                    new DefaultTrainingConfig(tuned.loss())
                            .optDevices(new Device[] {group.device()});
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, 1));
                EasyTrain.fit(trainer, 3, chats, null);
            }
            tuned.saveAdapter(out.resolve("adapter"));
            tuned.save(out);
        }
    }

    @Test
    void gradients() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        ProcessGroups.run(
                groups,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device())) {
                        NDArray x = manager.ones(new Shape(3, 4));
                        NDArray w1 = manager.ones(new Shape(4, 5));
                        NDArray w2 = manager.ones(new Shape(5, 4));
                        w1.setRequiresGradient(true);
                        w2.setRequiresGradient(true);
                        gradients(group, x, w1, w2);
                        // The sum of 6 tokens' hidden values of gelu(4).
                        float expected = 6 * Activation.gelu(manager.create(4f)).getFloat();
                        assertEquals(expected, w2.getGradient().getFloat(0, 0), 1e-4f);
                        assertTrue(w1.getGradient().getFloat(0, 0) > 0);
                    }
                    return null;
                });
        groups.forEach(ProcessGroup::destroy);
    }

    private static void gradients(ProcessGroup group, NDArray x, NDArray w1, NDArray w2) {
        try (GradientScope scope = GradientScope.open()) {
            GatheredMatmul up = FusedOps.allGatherMatmul(x, List.of(w1), 0, group);
            NDArray hidden = Activation.gelu(up.outputs().get(0));
            NDArray y = FusedOps.matmulReduceScatter(hidden, w2, ReduceOp.SUM, 0, group);
            scope.backward(loss(y));
        }
    }

    @Test
    void pathsAreMeasured() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        ProcessGroups.run(
                groups,
                group -> {
                    measurePaths(group);
                    return null;
                });
        groups.forEach(ProcessGroup::destroy);
    }

    @SuppressWarnings("try") // the scope is not named in the body
    private static void measurePaths(ProcessGroup group) {
        try (FusedOps.Scope measuring = FusedOps.measurePaths(group)) {
            trainingStep();
        }
    }

    private static void trainingStep() {}

    @Test
    void pipelines() {
        List<ProcessGroup> groups = ProcessGroups.local(3);
        ProcessGroups.run(
                groups,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device())) {
                        NDArray x = manager.full(new Shape(3, 4), group.rank() + 1f);
                        pipelines(group, manager, x);
                    }
                    return null;
                });
        groups.forEach(ProcessGroup::destroy);
    }

    private static void pipelines(ProcessGroup group, NDManager manager, NDArray x) {
        NDArray[] normed = new NDArray[group.worldSize()];
        FusedOps.pipelinedAllGather(
                x,
                (shard, rank) -> {
                    normed[rank] = shard.softmax(-1);
                    normed[rank].attach(manager);
                },
                group);
        NDArray received = manager.zeros(new Shape(group.worldSize() * 3, 4));
        FusedOps.pipelinedProduceAndAllToAll(
                (chunk, rank) -> Torch.copy(chunk, x.mul(rank)), received, group);
        for (int rank = 0; rank < group.worldSize(); rank++) {
            assertEquals(manager.full(new Shape(3, 4), 0.25f), normed[rank]);
            assertEquals((rank + 1f) * group.rank(), received.getFloat(3 * rank, 0));
        }
    }

    /** With random weights the text has no meaning: the test checks only that there is text. */
    @Test
    void text(@TempDir Path dir) throws Exception {
        Path directory = dir.resolve("tiny");
        assertEquals(0, Main.commandLine().execute("serve-model", directory.toString()));
        try (TextGenerator generator =
                TextEngine.builder().setDirectory(directory).optRanks(2).build()) {
            Generation generation =
                    generator.submit(
                            GenerationRequest.builder().setPrompt("Once").optMaxTokens(20).build());
            generation
                    .await(Duration.ofMinutes(1))
                    .forEach(piece -> System.out.print(piece.text()));
        }
        try (TextGenerator generator = TextEngine.builder().setDirectory(directory).build()) {
            pieces(generator);
        }
    }

    enum Mood {
        GOOD,
        BAD
    }

    record Review(Mood mood, int stars) {}

    record Turn(boolean on) {}

    record Opinion(@JsonProperty(required = true) Mood mood) {}

    interface Assistant {
        @UserMessage("What does the reader think? {{it}}")
        Opinion read(String text);

        String chat(String message);
    }

    static class Lamp {
        @Tool("Switches the lamp")
        String turn(boolean on) {
            return on ? "The lamp shines." : "It is dark.";
        }
    }

    /** With a model of random weights, which writes JSON because it has to. */
    @Test
    void chats(@TempDir Path home) throws Exception {
        writeSnapshot(home);
        try (ChatModel model = ChatModel.of("Qwen/Qwen3-0.6B")) {
            System.out.println(model.chat("Hello"));
            model.chat(ChatRequest.of("Tell a story"), part -> System.out.print(part.content()));
            Review review =
                    model.chat(ChatRequest.of("Review: I would read it again."), Review.class);
        }
        try (ChatModel model = ChatModel.of("Qwen/Qwen3-0.6B")) {
            ChatRequest.Builder chat =
                    ChatRequest.builder()
                            .addSystem("You look after a lamp.")
                            .addUser("It is too dark to read.")
                            .addTool("turn", "Switches the lamp", Turn.class)
                            .optGeneration(
                                    generation -> generation.optTemperature(0).optMaxTokens(500));
            ChatAnswer answer = model.chat(chat.build());
            chat.addMessage(answer.message());
            for (ToolCall call : answer.calls()) {
                boolean on = call.arguments(Turn.class).on();
                chat.addMessage(Message.tool(call.id(), on ? "The lamp shines." : "It is dark."));
            }
            assertTrue(answer.generatedTokens() > 0);

            ChatRequest request =
                    ChatRequest.builder()
                            .addSystem("Answer in one sentence.")
                            .addUser("Why is the sky blue?")
                            .optGeneration(
                                    generation -> generation.optTemperature(0).optMaxTokens(100))
                            .build();
            assertTrue(model.chat(request).generatedTokens() <= 100);
        } finally {
            System.clearProperty("HF_HOME");
            System.clearProperty("HF_HUB_OFFLINE");
        }
    }

    /** With a model of random weights, which writes JSON because it has to. */
    @Test
    void langChain4jHasAModel(@TempDir Path home) throws Exception {
        writeSnapshot(home);
        try (TextChatModel model = TextChatModel.of("Qwen/Qwen3-0.6B")) {
            Assistant reader = AiServices.create(Assistant.class, model);
            System.out.println(reader.read("I would read this book again.").mood());

            Assistant assistant =
                    AiServices.builder(Assistant.class).chatModel(model).tools(new Lamp()).build();
            System.out.println(assistant.chat("It is too dark to read."));

            onPartialResponseBlocking(model.streaming(), "Hello", System.out::print);
            assertNotNull(reader.read("It bored me.").mood());
        }
        // The example of the class.
        try {
            try (TextChatModel model = TextChatModel.of("Qwen/Qwen3-0.6B")) {
                String answer = model.chat("Hello");
            }
        } finally {
            System.clearProperty("HF_HOME");
            System.clearProperty("HF_HUB_OFFLINE");
        }
    }

    /** Writes a tiny model where a download leaves one, and makes this the cache of the hub. */
    private static void writeSnapshot(Path home) throws IOException {
        String commit = "0123456789abcdef0123456789abcdef01234567";
        Path cached = home.resolve("hub/models--Qwen--Qwen3-0.6B");
        Files.createDirectories(cached.resolve("refs"));
        Files.writeString(cached.resolve("refs/main"), commit);
        Path snapshot = cached.resolve("snapshots").resolve(commit);
        String[] command = {"serve-model", snapshot.toString()};
        assertEquals(0, Main.commandLine().execute(command));
        Files.writeString(
                snapshot.resolve("chat_template.jinja"),
                "{% for tool in tools or [] %}{{ tool.function.name }}<tool_call>{% endfor %}"
                        + "{% for message in messages %}{{ message.content }}\n{% endfor %}");
        System.setProperty("HF_HOME", home.toString());
        System.setProperty("HF_HUB_OFFLINE", "1");
    }

    @Test
    void languageModelsAreLoadedByCriteria(@TempDir Path dir) throws Exception {
        Path directory = dir.resolve("tiny");
        assertEquals(0, Main.commandLine().execute("serve-model", directory.toString()));
        PrintStream stdout = System.out;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true));
        Criteria<Input, Output> criteria =
                Criteria.builder()
                        .setTypes(Input.class, Output.class)
                        .optModelPath(directory)
                        .optEngine("PyTorch-P2P")
                        .build();
        try (ZooModel<Input, Output> model = criteria.loadModel();
                Predictor<Input, Output> predictor = model.newPredictor()) {
            Input input = new Input();
            input.add(
                    BytesSupplier.wrap(
                            "{\"inputs\": \"Once\", \"parameters\": {\"max_new_tokens\": 20}}"));
            System.out.println(predictor.predict(input).getData().getAsString());
        } finally {
            System.setOut(stdout);
        }
        assertTrue(printed.toString().contains("generated_text"), printed::toString);
    }

    /** The model's files lie in the cache of a hub, as a download leaves them there. */
    @Test
    void textOfAModelByItsName(@TempDir Path home) throws Exception {
        writeSnapshot(home);
        try (TextGenerator generator = TextGenerator.of("Qwen/Qwen3-0.6B")) {
            Generation generation =
                    generator.submit(
                            GenerationRequest.builder().setPrompt("Once").optMaxTokens(20).build());
            generation
                    .await(Duration.ofMinutes(1))
                    .forEach(piece -> System.out.print(piece.text()));
        } finally {
            System.clearProperty("HF_HOME");
            System.clearProperty("HF_HUB_OFFLINE");
        }
    }

    private static void pieces(TextGenerator generator) throws Exception {
        Generation generation =
                generator.submit(
                        GenerationRequest.builder().setPrompt("Once").optMaxTokens(20).build());
        GeneratedPiece piece;
        while ((piece = generation.next(Duration.ofSeconds(10))) != null) {
            System.out.print(piece.text());
        }
    }

    /** Computes a rank's quarter of the sum of a request's numbers. */
    private record MlpPart(ProcessGroup group) implements RankWorker<float[], float[]> {

        @Override
        public float[] serve(float[] request) {
            try (NDManager manager = NDManager.newBaseManager(group.device())) {
                NDArray part = manager.create(request).mul(manager.create(group.rank()));
                group.allReduce(part, ReduceOp.SUM).await();
                return part.toFloatArray();
            }
        }
    }

    @Test
    void pools() throws Exception {
        float[] input = {1, 2};
        RankPool<float[], float[]> pool =
                RankPool.start("mlp", ProcessGroups.local(4), group -> new MlpPart(group));
        float[] output = pool.submit(input).get();
        pool.close();
        assertArrayEquals(new float[] {6, 12}, output);
    }

    /** Runs in processes started by a launcher. */
    static void poolOfProcesses(RequestCodec<float[]> codec, float[] input) throws Exception {
        ProcessGroup group = ProcessGroups.init("shm");
        try (RankPool<float[], float[]> pool =
                RankPool.join("mlp", group, codec, own -> new MlpPart(own))) {
            if (group.rank() == 0) {
                float[] output = pool.submit(input).get();
            }
        }
    }

    @Test
    void buffers() {
        List<ProcessGroup> groups = ProcessGroups.local(3);
        ProcessGroups.run(
                groups,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device())) {
                        for (int i = 1; i <= 3; i++) {
                            NDArray array = manager.full(new Shape(2), (float) group.rank());
                            shift(group, manager, array).await();
                            assertEquals((group.rank() + 2) % 3, array.getFloat(0));
                        }
                    }
                    return null;
                });
        groups.forEach(ProcessGroup::destroy);
    }

    private static Work shift(ProcessGroup group, NDManager manager, NDArray array) {
        P2pBuffers buffers = group.requireP2pBuffers();
        int ranks = group.worldSize();
        return group.execute(
                new OpType("shift"),
                new Operation.Agreed(Torch.scalarType(array), array.getShape().getShape(), null, 0),
                operation -> {
                    buffers.intraNodeBarrier(operation);
                    long epoch = buffers.epoch(operation);
                    long half = buffers.half(epoch);
                    int next = (group.rank() + 1) % ranks;
                    Torch.copy(view(buffers, manager, next, array, half), array);
                    for (int peer = 0; peer < ranks; peer++) {
                        buffers.putSignal(peer, 0, epoch);
                    }
                    for (int peer = 0; peer < ranks; peer++) {
                        buffers.waitSignal(operation, peer, 0, epoch);
                    }
                    Torch.copy(array, view(buffers, manager, group.rank(), array, half));
                });
    }

    private static NDArray view(
            P2pBuffers buffers, NDManager manager, int rank, NDArray array, long offset) {
        return buffers.p2pBuffer(manager, rank, array.getShape(), Torch.scalarType(array), offset);
    }

    /** Runs in processes started by a launcher. */
    static void synchronizer(
            ProcessGroup group,
            Model model,
            DefaultTrainingConfig config,
            Shape shape,
            int epochs,
            Dataset dataset)
            throws Exception {
        config.addTrainingListeners(new GradientSynchronizer(group, GradientReduction.MEAN));
        try (Trainer trainer = model.newTrainer(config)) {
            trainer.initialize(shape);
            GradientSynchronizer.broadcastParameters(model.getBlock(), group);
            EasyTrain.fit(trainer, epochs, dataset, null);
        }
    }

    /** The checkpoint tests run this example. */
    static void checkpoints(
            Path directory,
            Model model,
            DefaultTrainingConfig config,
            Shape shape,
            int epochs,
            Dataset dataset)
            throws Exception {
        DistributedSampler sampler = DistributedSampler.builder().setBatchSize(32).build();
        CheckpointManager checkpoints =
                CheckpointManager.builder()
                        .setDirectory(directory)
                        .optEvery(1000)
                        .optSampler(sampler)
                        .build();
        config.addTrainingListeners(checkpoints);
        try (Trainer trainer = model.newTrainer(config)) {
            trainer.initialize(shape);
            TrainingProgress done = checkpoints.restore(trainer);
            EasyTrain.fit(trainer, epochs - (int) done.epoch(), dataset, null);
        }
    }

    private static NDArray loss(NDArray y) {
        return y.sum();
    }
}

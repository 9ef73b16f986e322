// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.checkpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.nn.norm.Dropout;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.RandomAccessDataset;
import ai.djl.training.evaluator.Accuracy;
import ai.djl.training.listener.EvaluatorTrainingListener;
import ai.djl.training.listener.SaveModelTrainingListener;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.training.optimizer.Optimizer;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;
import java.util.zip.CRC32C;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.nativeops.host.AtomicFile;
import org.djlx.training.DataParallelConfig;
import org.djlx.training.Training;
import org.djlx.training.Training.Outcome;
import org.djlx.training.data.DistributedSampler;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Jobs that are ended in the middle of an epoch, and others that go on from there. */
@Timeout(120)
class CheckpointManagerTest {

    private static final int ITEMS = 32;
    private static final int BATCH = 8; // 4 batches an epoch

    @TempDir private Path directory;

    private static final class Ended extends RuntimeException {
        private static final long serialVersionUID = 1;
    }

    /** Ends the job before the step of a batch. */
    private static TrainingListenerAdapter endAt(int batch) {
        return new TrainingListenerAdapter() {
            private int seen;

            @Override
            public void onTrainingBatch(Trainer trainer, BatchData batchData) {
                if (++seen == batch) {
                    throw new Ended();
                }
            }
        };
    }

    private CheckpointManager manager(long every) {
        return CheckpointManager.builder()
                .setDirectory(directory)
                .optKeep(2)
                .optEvery(every)
                .build();
    }

    private static DataParallelConfig config(String optimizer) {
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        config.optOptimizer(Training.optimizer(optimizer));
        return config;
    }

    private static DistributedSampler sampler() {
        return DistributedSampler.builder().setBatchSize(BATCH).optSeed(3).build();
    }

    private List<String> files() throws IOException {
        try (Stream<Path> files = Files.list(directory)) {
            return files.map(file -> file.getFileName().toString()).sorted().toList();
        }
    }

    /**
     * DJL's listeners count epochs from 0, and Model.load takes the file with the largest number.
     */
    @Test
    void listenersContinueFromTheRestoredEpoch(@TempDir Path models) throws Exception {
        int[] epochs = new int[1];
        for (int part = 0; part < 2; part++) {
            CheckpointManager checkpoints = manager(1);
            DataParallelConfig config = config("sgd").optRanks(2);
            config.addTrainingListeners(TrainingListener.Defaults.basic());
            config.addTrainingListeners(
                    checkpoints,
                    new SaveModelTrainingListener(models.toString(), "model", 1),
                    new TrainingListenerAdapter() {
                        @Override
                        public void onEpoch(Trainer trainer) {
                            epochs[0] = trainer.getTrainingResult().getEpoch();
                        }
                    });
            Training.fit(
                    P2pEngine.NAME,
                    config,
                    Training.block(),
                    ITEMS,
                    sampler(),
                    5,
                    trainer -> {
                        checkpoints.restore(trainer);
                        return 2;
                    });
        }
        assertEquals(4, epochs[0]);
        try (Stream<Path> files = Files.list(models)) {
            assertEquals(
                    List.of(
                            "model-0001.params",
                            "model-0002.params",
                            "model-0003.params",
                            "model-0004.params"),
                    files.map(file -> file.getFileName().toString()).sorted().toList());
        }
    }

    /** Loss and evaluators are those of whole epochs, in both orders of the two listeners. */
    @ParameterizedTest
    @CsvSource({"true, 1, 1", "false, 1, 1", "true, 2, 2", "false, 2, 2", "true, 2, 1"})
    void evaluatorsContinueWithinAnEpoch(boolean countsFirst, int processes, int later)
            throws Exception {
        List<Map<String, Float>> expected = evaluations(countsFirst, processes, 0);
        assertThrows(Ended.class, () -> evaluations(countsFirst, processes, 8));
        List<Map<String, Float>> actual = evaluations(countsFirst, later, -1);
        for (Map<String, Float> own : actual) {
            if (processes != later) { // DJL's losses are means over batches, now of another size.
                own.keySet().removeIf(name -> name.toLowerCase(Locale.ROOT).contains("loss"));
            }
            own.forEach((name, value) -> assertEquals(expected.get(0).get(name), value, 1e-6f));
        }
        assertTrue(actual.get(0).get("train_Accuracy") > 0);
    }

    /**
     * Trains two epochs of four batches, and returns the evaluations of each process.
     *
     * @param end the batch before whose step the job ends; 0 to save nothing, and -1 to resume
     */
    private List<Map<String, Float>> evaluations(boolean countsFirst, int processes, int end) {
        List<ProcessGroup> groups = ProcessGroups.local(processes);
        try {
            return ProcessGroups.run(groups, group -> evaluations(countsFirst, group, end));
        } catch (CollectiveException e) {
            Throwable cause = e;
            while (cause != null && !(cause instanceof Ended)) {
                cause = cause.getCause();
            }
            throw cause == null ? e : (Ended) cause;
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private Map<String, Float> evaluations(boolean countsFirst, ProcessGroup group, int end)
            throws Exception {
        Map<String, Float> evaluations = new TreeMap<>();
        CheckpointManager checkpoints = manager(end == 0 ? 0 : 6);
        DataParallelConfig config = config("sgd").optProcessGroup(group);
        config.addEvaluator(new Accuracy());
        EvaluatorTrainingListener counts = new EvaluatorTrainingListener();
        if (countsFirst) {
            config.addTrainingListeners(counts, checkpoints);
        } else {
            config.addTrainingListeners(checkpoints, counts);
        }
        config.addTrainingListeners(
                endAt(end),
                new TrainingListenerAdapter() {
                    @Override
                    public void onTrainingEnd(Trainer trainer) {
                        evaluations.putAll(trainer.getTrainingResult().getEvaluations());
                    }
                });
        DistributedSampler sampler =
                DistributedSampler.builder()
                        .optGroup(group)
                        .setBatchSize(BATCH / group.worldSize())
                        .optSeed(3)
                        .build();
        Training.fit(
                P2pEngine.NAME,
                config,
                Training.block(),
                ITEMS,
                sampler,
                5,
                trainer -> {
                    if (end >= 0) {
                        return 2;
                    }
                    TrainingProgress done = checkpoints.restore(trainer);
                    assertEquals(new TrainingProgress(6, 1, 2), done);
                    sampler.setPosition(done.epoch(), done.batch() * sampler.itemsPerBatch());
                    return 1;
                });
        return evaluations;
    }

    /** The losses, and the parameters at the end, are those of a job that nobody ended. */
    @ParameterizedTest
    @CsvSource({
        "sgd, 1",
        "momentum, 1",
        "momentum, 2",
        "adam, 1",
        "adam, 2",
        "adam, 4",
        "adamW, 2"
    })
    void resumedJobEqualsAnUninterruptedOne(String optimizer, int ranks) throws Exception {
        Outcome whole =
                Training.fit(
                        P2pEngine.NAME,
                        config(optimizer).optRanks(ranks),
                        Training.block(),
                        ITEMS,
                        sampler(),
                        4,
                        5,
                        trainer -> {});
        DataParallelConfig ended = config(optimizer).optRanks(ranks);
        ended.addTrainingListeners(manager(2), endAt(8));
        assertThrows(
                Ended.class,
                () ->
                        Training.fit(
                                P2pEngine.NAME,
                                ended,
                                Training.block(),
                                ITEMS,
                                sampler(),
                                4,
                                5,
                                trainer -> {}));
        // The 8th batch was not trained on: after the 6th there was none to save after.
        assertEquals(List.of("checkpoint-4.safetensors", "checkpoint-6.safetensors"), files());
        CheckpointManager checkpoints = manager(5);
        DataParallelConfig again = config(optimizer).optRanks(ranks);
        again.addTrainingListeners(checkpoints);
        DistributedSampler sampler = sampler();
        Outcome rest =
                Training.fit(
                        P2pEngine.NAME,
                        again,
                        Training.block(),
                        ITEMS,
                        sampler,
                        99, // other parameters than those that come from the file
                        trainer -> {
                            TrainingProgress done = checkpoints.restore(trainer);
                            assertEquals(new TrainingProgress(6, 1, 2), done);
                            sampler.setPosition(
                                    done.epoch(), done.batch() * sampler.itemsPerBatch());
                            return 4 - (int) done.epoch();
                        });
        assertEquals(whole.losses().subList(6, 16), rest.losses());
        assertSameBits(whole.parameters(), rest.parameters());
        // It counted on, and kept two.
        assertEquals(List.of("checkpoint-10.safetensors", "checkpoint-15.safetensors"), files());
    }

    /**
     * Dropout of the resumed job draws the numbers that the uninterrupted one draws, at the end of
     * an epoch and within one.
     */
    @ParameterizedTest
    @ValueSource(ints = {4, 6})
    void randomNumbersContinue(int saved, @TempDir Path other) throws Exception {
        List<List<Float>> losses = new ArrayList<>();
        for (Path path : List.of(other, directory, directory)) {
            DistributedSampler sampler = sampler();
            CheckpointManager checkpoints =
                    CheckpointManager.builder()
                            .setDirectory(path)
                            .optEvery(2)
                            .optSampler(sampler)
                            .build();
            int part = losses.size();
            DataParallelConfig config = config("sgd");
            config.addTrainingListeners(checkpoints, endAt(part == 1 ? saved + 2 : ITEMS));
            SequentialBlock block = Training.block().add(Dropout.builder().build());
            Engine.getEngine("PyTorch").setRandomSeed(part < 2 ? 7 : 8);
            try {
                Outcome outcome =
                        Training.fit(
                                P2pEngine.NAME,
                                config,
                                block,
                                ITEMS,
                                sampler,
                                5,
                                trainer -> 3 - (int) checkpoints.restore(trainer).epoch());
                losses.add(outcome.losses());
            } catch (Ended e) {
                losses.add(List.of());
            }
        }
        assertTrue(losses.get(1).isEmpty(), "the job has not been ended");
        assertEquals(losses.get(0).subList(saved, 12), losses.get(2));
    }

    /** After 3 batches of 2 processes with 4 items each, 8 of 32 items are left. */
    @ParameterizedTest
    @CsvSource({"1, 8", "1, 3", "2, 2", "4, 2"})
    void otherRanksContinueWithTheRemainingItems(int ranks, int batch) throws Exception {
        onRanks(
                2,
                blocks(2),
                (group, trainer) ->
                        manager(ordered(group, 4, 3)).save(trainer, new TrainingProgress(7, 1, 3)));
        List<List<Long>> left = Collections.synchronizedList(new ArrayList<>());
        List<Long> expected = new ArrayList<>();
        onRanks(
                ranks,
                blocks(ranks),
                (group, trainer) -> {
                    DistributedSampler sampler = ordered(group, batch, 3);
                    CheckpointManager checkpoints = manager(sampler);
                    TrainingProgress done = checkpoints.restore(trainer);
                    assertEquals(new TrainingProgress(7, 1, 3), done);
                    RandomAccessDataset data =
                            Training.dataset(trainer.getManager(), ITEMS, sampler);
                    sampler.sample(data).forEachRemaining(left::add);
                    checkpoints.save(trainer, new TrainingProgress(8, 1, 4));
                    checkpoints.restore(trainer);
                    sampler.sample(data).forEachRemaining(left::add); // after one batch
                    if (group.rank() == 0) {
                        DistributedSampler whole =
                                DistributedSampler.builder().setBatchSize(ITEMS).optSeed(3).build();
                        whole.setEpoch(1);
                        expected.addAll(whole.sample(data).next().subList(24, 32));
                    }
                });
        int all = 8 / (ranks * batch) * ranks * batch;
        List<Long> items = left.stream().flatMap(List::stream).sorted().toList();
        List<Long> twice = new ArrayList<>(expected.subList(0, all));
        twice.addAll(expected.subList(ranks * batch, all));
        assertEquals(twice.stream().sorted().toList(), items);
    }

    private static DistributedSampler ordered(ProcessGroup group, int batch, long seed) {
        return DistributedSampler.builder()
                .setBatchSize(batch)
                .optGroup(group)
                .optSeed(seed)
                .build();
    }

    private CheckpointManager manager(DistributedSampler sampler) {
        return CheckpointManager.builder().setDirectory(directory).optSampler(sampler).build();
    }

    @Test
    void restoreRejectsAnotherOrderOfItems() {
        TrainingProgress progress = new TrainingProgress(1, 0, 1);
        onRanks(
                1,
                blocks(1),
                (group, trainer) -> manager(ordered(group, 4, 3)).save(trainer, progress));
        List<String> messages =
                allFail(
                        2,
                        blocks(2),
                        (group, trainer) -> manager(ordered(group, 4, 9)).restore(trainer));
        assertTrue(
                messages.get(0).contains("order 'seed 3', but this one has 'seed 9'"),
                messages::toString);
    }

    private static void assertSameBits(List<float[]> expected, List<float[]> actual) {
        assertEquals(expected.size(), actual.size());
        for (int i = 0; i < expected.size(); i++) {
            assertTrue(Arrays.equals(expected.get(i), actual.get(i)), "parameter " + i);
        }
    }

    private interface OnTrainer {
        void run(ProcessGroup group, Trainer trainer) throws Exception;
    }

    /** Runs code on ranks that have a trainer each, as processes have. */
    private static void onRanks(int ranks, SequentialBlock[] blocks, OnTrainer body) {
        List<ProcessGroup> groups = ProcessGroups.local(ranks);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        DataParallelConfig config = config("adam").optProcessGroup(group);
                        try (Model model = Model.newInstance("ranks", P2pEngine.NAME)) {
                            model.setBlock(blocks[group.rank()]);
                            try (Trainer trainer = model.newTrainer(config)) {
                                trainer.initialize(new Shape(1, Training.FEATURES));
                                body.run(group, trainer);
                            }
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static SequentialBlock[] blocks(int ranks) {
        return Stream.generate(Training::block).limit(ranks).toArray(SequentialBlock[]::new);
    }

    /** Has all ranks fail, and the group remain usable; returns what each says. */
    private static List<String> allFail(int ranks, SequentialBlock[] blocks, OnTrainer body) {
        String[] messages = new String[ranks];
        onRanks(
                ranks,
                blocks,
                (group, trainer) -> {
                    IOException e = assertThrows(IOException.class, () -> body.run(group, trainer));
                    messages[group.rank()] = e.getMessage();
                    group.barrier().await();
                });
        return List.of(messages);
    }

    private void saveOne(int step) {
        onRanks(
                2,
                blocks(2),
                (group, trainer) -> manager(0).save(trainer, new TrainingProgress(step, 0, step)));
    }

    @Test
    void restoreWithoutCheckpointChangesNothing() {
        onRanks(
                2,
                blocks(2),
                (group, trainer) ->
                        assertEquals(TrainingProgress.START, manager(0).restore(trainer)));
    }

    /** A file of another version or tool: its checksum is right, its metadata is not. */
    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "random | \"random\": | \"other\":",
                "random | \"random\":\" | \"random\":\"99999999999",
                "updates | \"updates\": | \"other\":",
                "updates | \"updates\":\" | \"updates\":\"-1",
                "counts | \"counts\": | \"other\":",
                "counts | \"counts\":\"{ | \"counts\":\"{\\\"x\\\":null,",
                "counts | \"counts\":\"{ | \"counts\":\"{\\\"x\\\":1e30,",
                "step | \"step\":\"5\" | \"step\":\"x\"",
                "step | \"step\":\"5\" | \"step\":\"6\"",
                "epoch | \"epoch\":\"1\" | \"epoch\":\"99999999999\"",
                "batch | \"batch\":\"2\" | \"batch\":\"-2\"",
                "processes | \"processes\":\"1\" | \"processes\":\"0\"",
                "parts | \"optimizer\": | \"parts\":\"null\",\"optimizer\":",
                "parts | \"optimizer\": | \"parts\":\"[\\\"../x\\\"]\",\"optimizer\":",
                "shapes | \"optimizer\": | \"shapes\":\"{\\\"x\\\":[null]}\",\"optimizer\":",
            })
    void restoreRejectsWrongMetadataAndChangesNothing(String key, String from, String to)
            throws Exception {
        try (Model model = Model.newInstance("m", P2pEngine.NAME)) {
            model.setBlock(new SequentialBlock().add(Linear.builder().setUnits(4).build()));
            try (Trainer trainer = model.newTrainer(config("adam").optRanks(1))) {
                trainer.initialize(new Shape(1, 3));
                manager(1).save(trainer, new TrainingProgress(5, 1, 2));
                Path file = directory.resolve("checkpoint-5.safetensors");
                changeHeader(file, from, to);
                NDArray weight = model.getBlock().getParameters().valueAt(0).getArray();
                weight.set(new float[(int) weight.size()]); // The file has other values.
                IOException e = assertThrows(IOException.class, () -> manager(1).restore(trainer));
                String start = file + ": '" + key + "' in its metadata ";
                assertTrue(e.getMessage().startsWith(start), e.getMessage());
                NDArray after = model.getBlock().getParameters().valueAt(0).getArray();
                assertEquals(0, after.abs().sum().getFloat());
            }
        }
    }

    /** Changes the header of a checkpoint, and sets the checksum. */
    private static void changeHeader(Path file, String from, String to) throws IOException {
        byte[] old = Files.readAllBytes(file);
        int data = 8 + (int) ByteBuffer.wrap(old).order(ByteOrder.LITTLE_ENDIAN).getLong();
        String header = new String(old, 8, data - 8, StandardCharsets.UTF_8);
        assertTrue(header.contains(from), header);
        int sum = header.indexOf("\"crc32c\":\"") + 10;
        header = header.substring(0, sum) + "00000000" + header.substring(sum + 8);
        byte[] json = header.replace(from, to).getBytes(StandardCharsets.UTF_8);
        ByteBuffer all =
                ByteBuffer.allocate(8 + json.length + old.length - data)
                        .order(ByteOrder.LITTLE_ENDIAN);
        all.putLong(json.length).put(json).put(old, data, old.length - data);
        CRC32C crc = new CRC32C();
        crc.update(all.array());
        byte[] checksum = "%08x".formatted(crc.getValue()).getBytes(StandardCharsets.US_ASCII);
        all.put(8 + sum, checksum);
        Files.write(file, all.array());
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void damagedFileFailsAllRanks(boolean foreign) throws IOException {
        saveOne(1);
        Path file = directory.resolve("checkpoint-1.safetensors");
        byte[] bytes = Files.readAllBytes(file);
        Files.write(file, foreign ? "hello".getBytes() : Arrays.copyOf(bytes, bytes.length - 1));
        for (String message :
                allFail(3, blocks(3), (group, trainer) -> manager(0).restore(trainer))) {
            String expected = foreign ? "is not a checkpoint" : "is truncated or damaged";
            assertTrue(message.contains(expected), message);
            assertTrue(message.contains("checkpoint-1.safetensors"), message);
        }
    }

    /** A directory that is not shared: rank 1 has nothing there, or something else. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void fileMissingOnOneRankFailsAllRanks(boolean other) throws IOException {
        saveOne(1);
        Path elsewhere = directory.resolve("elsewhere");
        if (other) {
            Files.createDirectory(elsewhere);
            Path mine = directory.resolve("checkpoint-1.safetensors");
            byte[] bytes = Files.readAllBytes(mine);
            Files.move(mine, elsewhere.resolve(mine.getFileName()));
            saveOne(1); // Parameters are random, so it is another.
            assertTrue(!Arrays.equals(bytes, Files.readAllBytes(mine)));
        }
        List<String> messages =
                allFail(
                        2,
                        blocks(2),
                        (group, trainer) -> {
                            Path own = group.rank() == 1 ? elsewhere : directory;
                            CheckpointManager.builder().setDirectory(own).build().restore(trainer);
                        });
        assertTrue(
                messages.get(0).contains(other ? "the ranks returned different" : "rank 1 failed"),
                messages::toString);
        assertTrue(
                messages.get(1).contains(other ? "the ranks returned different" : "elsewhere"),
                messages::toString);
    }

    @Test
    void unwritableDirectoryFailsAllRanks() throws IOException {
        Path file = Files.createFile(directory.resolve("file"));
        List<String> messages =
                allFail(
                        2,
                        blocks(2),
                        (group, trainer) ->
                                CheckpointManager.builder()
                                        .setDirectory(file)
                                        .build()
                                        .save(trainer, new TrainingProgress(1, 0, 1)));
        assertTrue(messages.get(0).contains(file.toString()), messages::toString);
        assertTrue(messages.get(1).contains("save: rank 0 failed"), messages::toString);
    }

    /** Two parts of a model, each with a trainer and a directory, of which one is none. */
    @Test
    void partsOfADividedModelFailTogether() throws IOException {
        Path file = Files.createFile(directory.resolve("file"));
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    all -> {
                        try (ProcessGroup part = all.split(all.rank(), 0)) {
                            CheckpointManager checkpoints =
                                    CheckpointManager.builder()
                                            .setDirectory(all.rank() == 0 ? directory : file)
                                            .optGroup(all)
                                            .build();
                            alone(
                                    config("sgd").optProcessGroup(part),
                                    Training.block(),
                                    (group, trainer) -> {
                                        initialize(trainer);
                                        TrainingProgress one = new TrainingProgress(1, 0, 1);
                                        assertThrows(
                                                IOException.class,
                                                () -> checkpoints.save(trainer, one));
                                        IOException e =
                                                assertThrows(
                                                        IOException.class,
                                                        () -> checkpoints.restore(trainer));
                                        String message = e.getMessage();
                                        assertTrue(message.contains("[[1], []]"), message);
                                    });
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void ranksAtDifferentStepsFailAll() {
        for (String message :
                allFail(
                        2,
                        blocks(2),
                        (group, trainer) ->
                                manager(0)
                                        .save(
                                                trainer,
                                                new TrainingProgress(1 + group.rank(), 0, 1)))) {
            assertTrue(message.contains("the ranks returned different values"), message);
        }
    }

    @Test
    void restoreRejectsAnotherModel() {
        saveOne(1);
        for (String message :
                allFail(
                        2,
                        new SequentialBlock[] {larger(), larger()},
                        (group, trainer) -> manager(0).restore(trainer))) {
            assertTrue(message.contains("does not fit the model"), message);
            assertTrue(message.contains("(9, 6)") && message.contains("(8, 6)"), message);
        }
    }

    private static SequentialBlock larger() {
        return new SequentialBlock()
                .add(Linear.builder().setUnits(9).build())
                .add(Linear.builder().setUnits(Training.CLASSES).build());
    }

    /** The trainer of one JVM, alone. */
    private static void alone(DataParallelConfig config, SequentialBlock block, OnTrainer body)
            throws Exception {
        try (Model model = Model.newInstance("alone", P2pEngine.NAME)) {
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config)) {
                body.run(null, trainer);
            }
        }
    }

    private static void initialize(Trainer trainer) {
        trainer.initialize(new Shape(1, Training.FEATURES));
    }

    @Test
    void restoreRejectsMoreOrFewerParameters() throws Exception {
        saveOne(1);
        SequentialBlock more = Training.block().add(Linear.builder().setUnits(3).build());
        SequentialBlock fewer = new SequentialBlock().add(Linear.builder().setUnits(8).build());
        for (SequentialBlock block : List.of(more, fewer)) {
            alone(
                    config("adam"),
                    block,
                    (group, trainer) -> {
                        initialize(trainer);
                        IOException e =
                                assertThrows(IOException.class, () -> manager(0).restore(trainer));
                        assertTrue(
                                e.getMessage()
                                        .contains(block == more ? "but missing" : "has no param"),
                                e.getMessage());
                    });
        }
    }

    @Test
    void restoreRejectsAnotherOptimizer() throws Exception {
        saveOne(1);
        alone(
                config("sgd"),
                Training.block(),
                (group, trainer) -> {
                    initialize(trainer);
                    IOException e =
                            assertThrows(IOException.class, () -> manager(0).restore(trainer));
                    assertTrue(
                            e.getMessage().contains("Adam") && e.getMessage().contains("Sgd"),
                            e.getMessage());
                });
    }

    /** An optimizer that keeps arrays in a way of its own. */
    private static final class Own extends Optimizer {

        private static final class Builder extends OptimizerBuilder<Builder> {
            @Override
            protected Builder self() {
                return this;
            }
        }

        private final Map<String, NDArray> mine = new HashMap<>();

        Own() {
            super(new Builder());
        }

        @Override
        public void update(String id, NDArray weight, NDArray gradient) {
            mine.put(id, weight);
        }
    }

    @Test
    void saveNamesOptimizerStateItCannotSave() throws Exception {
        DataParallelConfig config = config("sgd");
        config.optOptimizer(new Own());
        alone(
                config,
                Training.block(),
                (group, trainer) -> {
                    initialize(trainer);
                    IllegalStateException e =
                            assertThrows(
                                    IllegalStateException.class,
                                    () -> manager(0).save(trainer, TrainingProgress.START));
                    assertTrue(e.getMessage().contains("'mine'"), e.getMessage());
                });
    }

    @Test
    void errorsNameWrongUse() throws Exception {
        alone(
                config("sgd"),
                Training.block(),
                (group, trainer) -> {
                    IllegalStateException e =
                            assertThrows(
                                    IllegalStateException.class, () -> manager(0).restore(trainer));
                    assertTrue(e.getMessage().contains("not initialised"), e.getMessage());
                    initialize(trainer);
                    assertThrows(
                            IllegalArgumentException.class, () -> manager(0).save(trainer, null));
                    trainer.close();
                    e =
                            assertThrows(
                                    IllegalStateException.class,
                                    () -> manager(0).save(trainer, TrainingProgress.START));
                    assertTrue(e.getMessage().contains("closed"), e.getMessage());
                });
        try (Model model = Model.newInstance("plain", "PyTorch")) {
            model.setBlock(Training.block());
            try (Trainer trainer = model.newTrainer(new DefaultTrainingConfig(Training.loss()))) {
                initialize(trainer);
                IllegalArgumentException e =
                        assertThrows(
                                IllegalArgumentException.class, () -> manager(0).restore(trainer));
                assertTrue(e.getMessage().contains(P2pEngine.NAME), e.getMessage());
            }
        }
        assertThrows(IllegalArgumentException.class, () -> CheckpointManager.builder().build());
        assertThrows(IllegalArgumentException.class, () -> manager(-1));
        assertThrows(IllegalArgumentException.class, () -> new TrainingProgress(1, -1, 0));
    }

    /** Otherwise the next job would go on from the older one. */
    @Test
    void saveRejectsAnEarlierStep() {
        saveOne(7);
        for (String message :
                allFail(
                        2,
                        blocks(2),
                        (group, trainer) ->
                                manager(0).save(trainer, new TrainingProgress(3, 0, 3)))) {
            assertTrue(message.contains("a checkpoint of step 7"), message);
        }
    }

    /** Whichever of the two saves first, and whether or not it replaces the other's file. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void saveDetectsAnotherJobInTheDirectory(int othersStep) {
        for (String message :
                allFail(
                        2,
                        blocks(2),
                        (group, trainer) -> {
                            CheckpointManager first = manager(0);
                            CheckpointManager second = manager(0);
                            first.save(trainer, new TrainingProgress(1, 0, 1));
                            second.save(trainer, new TrainingProgress(othersStep, 0, othersStep));
                            second.save(trainer, new TrainingProgress(2, 0, 2));
                            group.barrier().await();
                            first.save(trainer, new TrainingProgress(2, 0, 2));
                        })) {
            assertTrue(message.contains("another job has saved checkpoint-"), message);
        }
    }

    @Test
    void saveDetectsAJobThatIsWriting() throws IOException {
        try (AtomicFile others = AtomicFile.create(directory.resolve("checkpoint-9.safetensors"))) {
            for (String message :
                    allFail(
                            2,
                            blocks(2),
                            (group, trainer) ->
                                    manager(0).save(trainer, new TrainingProgress(1, 0, 1)))) {
                assertTrue(message.contains("another job is writing"), message);
            }
            others.commit();
        }
        assertEquals(List.of("checkpoint-9.safetensors"), files());
    }

    /** A symbolic link in the directory must not make the job write to another file. */
    @Test
    void symbolicLinksAreNotFollowed() throws IOException {
        Path victim = Files.writeString(directory.resolve("victim"), "untouched");
        for (String suffix : List.of("", ".tmp", ".incomplete")) {
            Files.createSymbolicLink(
                    directory.resolve(".checkpoint-1.safetensors" + suffix), victim);
        }
        saveOne(1);
        assertEquals("untouched", Files.readString(victim));
        assertTrue(Files.isRegularFile(directory.resolve("checkpoint-1.safetensors")));
    }

    /** What a process has left that was ended while it wrote is no checkpoint, and goes away. */
    @Test
    void incompleteFilesAreSwept() throws IOException {
        Files.writeString(directory.resolve(".checkpoint-9.safetensors.incomplete"), "half");
        List<String> other = new ArrayList<>(List.of("checkpoint-x.safetensors", "notes.txt"));
        for (String name : other) {
            Files.writeString(directory.resolve(name), "not ours");
        }
        saveOne(1);
        other.add("checkpoint-1.safetensors");
        other.sort(null);
        assertEquals(other, files());
    }
}

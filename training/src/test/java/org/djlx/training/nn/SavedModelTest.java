// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Model;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.listener.LoggingTrainingListener;
import ai.djl.util.PairList;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.training.DataParallelConfig;
import org.djlx.training.Training;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** {@code Model.save} of a model that ranks share: all ranks call it, one writes. */
class SavedModelTest {

    private static final class Log extends LoggingTrainingListener {

        private boolean heard;

        @Override
        public void onTrainingBegin(Trainer trainer) {
            heard = true;
        }
    }

    private static SequentialBlock block(ProcessGroup tensor) {
        return new SequentialBlock()
                .add(ColumnParallelLinear.builder().setGroup(tensor).setUnits(8).build())
                .add(Activation::tanh)
                .add(
                        new SequentialBlock()
                                .add(
                                        RowParallelLinear.builder()
                                                .setGroup(tensor)
                                                .setUnits(Training.CLASSES)
                                                .build()));
    }

    private static Model model(Block block) {
        Model model = Model.newInstance("shared", P2pEngine.NAME);
        model.setBlock(block);
        return model;
    }

    private static void initialize(Model model) {
        Shape shape = new Shape(8, Training.FEATURES);
        model.getBlock().initialize(model.getNDManager(), model.getDataType(), shape);
    }

    private static List<float[]> full(Block block, NDManager manager) {
        List<float[]> full = new ArrayList<>();
        for (Block child : block.getChildren().values()) {
            if (child instanceof ShardedBlock part) {
                full.add(part.full("weight", manager).toFloatArray());
                full.add(part.full("bias", manager).toFloatArray());
            } else {
                full.addAll(full(child, manager));
            }
        }
        return full;
    }

    private static List<float[]> loaded(ProcessGroup tensor, Path directory) throws Exception {
        try (Model model = model(block(tensor))) {
            model.load(directory);
            return full(model.getBlock(), model.getNDManager());
        }
    }

    private static void assertSame(List<float[]> expected, List<float[]> actual) {
        assertEquals(4, actual.size());
        for (int i = 0; i < 4; i++) {
            assertArrayEquals(expected.get(i), actual.get(i), 0, "parameter " + i);
        }
    }

    /** Each rank passes a directory of its own, so that its files can be checked. */
    @ParameterizedTest
    @CsvSource({"2, 2", "4, 2", "4, 4"})
    @Timeout(120)
    void theFirstRankOfAllSavesFullParametersAndLogs(
            int ranks, int tensorParallel, @TempDir Path directory) throws Exception {
        List<ProcessGroup> groups = ProcessGroups.local(ranks);
        List<float[]> saved;
        List<Boolean> heard = new ArrayList<>();
        try {
            Log[] logs = new Log[ranks];
            saved =
                    ProcessGroups.run(
                                    groups,
                                    group -> {
                                        int rank = group.rank();
                                        logs[rank] = new Log();
                                        Path own = directory.resolve("rank" + rank);
                                        return save(
                                                group.split(rank / tensorParallel, rank),
                                                group.split(rank % tensorParallel, rank),
                                                logs[rank],
                                                own);
                                    })
                            .get(0);
            Stream.of(logs).forEach(log -> heard.add(log.heard));
            Path written = directory.resolve("rank0");
            List<List<float[]>> all =
                    ProcessGroups.run(
                            groups,
                            group -> {
                                int replica = group.rank() / tensorParallel;
                                try (ProcessGroup tensor = group.split(replica, group.rank())) {
                                    return loaded(tensor, written);
                                }
                            });
            all.forEach(own -> assertSame(saved, own));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
        try (Stream<Path> files = Files.walk(directory)) {
            assertEquals(
                    List.of(directory.resolve("rank0").resolve("shared-0000.params")),
                    files.filter(Files::isRegularFile).toList());
        }
        List<Boolean> first = new ArrayList<>();
        for (int rank = 0; rank < ranks; rank++) {
            first.add(rank == 0);
        }
        assertEquals(first, heard);
        // The file does not depend on the number of ranks.
        List<ProcessGroup> alone = ProcessGroups.local(1);
        try {
            assertSame(saved, loaded(alone.get(0), directory.resolve("rank0")));
        } finally {
            alone.get(0).destroy();
        }
    }

    private static List<float[]> save(
            ProcessGroup tensor, ProcessGroup data, Log log, Path directory) throws IOException {
        DataParallelConfig config = new DataParallelConfig(Training.loss()).optProcessGroup(data);
        config.optOptimizer(Training.optimizer("sgd")).addTrainingListeners(log);
        SequentialBlock block = block(tensor);
        try (Model model = model(block);
                Trainer trainer = model.newTrainer(config)) {
            trainer.initialize(new Shape(1, Training.FEATURES));
            trainer.notifyListeners(listener -> listener.onTrainingBegin(trainer));
            model.save(directory, "shared");
            return full(block, model.getNDManager());
        }
    }

    /** A rank that cannot write fails on all ranks, without waiting. */
    @Test
    @Timeout(120)
    void allRanksFailWhereTheFirstCannotWrite(@TempDir Path directory) throws Exception {
        Path file = Files.createFile(directory.resolve("file"));
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            List<String> errors =
                    ProcessGroups.run(
                            groups,
                            group -> {
                                try (Model model = model(block(group))) {
                                    initialize(model);
                                    return assertThrows(
                                                    IOException.class,
                                                    () -> model.save(file.resolve("in"), "shared"))
                                            .toString();
                                }
                            });
            assertTrue(errors.get(0).contains(file.toString()), errors.get(0));
            assertTrue(errors.get(1).contains("save: rank 0 failed"), errors.get(1));
            assertTrue(errors.get(1).contains(file.toString()), errors.get(1));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** A full disk on one rank fails. */
    private static final class FullDisk extends AbstractBlock {

        private final boolean full;

        FullDisk(boolean full) {
            this.full = full;
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            return inputs;
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return inputShapes;
        }

        @Override
        public void saveParameters(DataOutputStream os) throws IOException {
            if (full) {
                throw new IOException("no space left");
            }
        }
    }

    /**
     * Replicas of a rank are refused, because they would call the block's group at the same time.
     */
    @Test
    @Timeout(120)
    void ranksThatShareParametersHaveATrainerEach() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            List<String> refusals =
                    ProcessGroups.run(
                            groups,
                            group -> {
                                DataParallelConfig config =
                                        new DataParallelConfig(Training.loss()).optRanks(2);
                                try (Model model = model(block(group))) {
                                    return assertThrows(
                                                    IllegalArgumentException.class,
                                                    () -> model.newTrainer(config))
                                            .getMessage();
                                }
                            });
            for (String message : refusals) {
                assertTrue(message.contains("optRanks(1)"), message);
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Ranks that send their parts meanwhile fail in the same way, without waiting. */
    @Test
    @Timeout(120)
    void allRanksFailWhereTheFirstCannotGoOn(@TempDir Path directory) throws IOException {
        List<ProcessGroup> groups = ProcessGroups.local(4);
        try {
            List<Exception> errors =
                    ProcessGroups.run(
                            groups,
                            group -> {
                                SequentialBlock block =
                                        new SequentialBlock()
                                                .add(new FullDisk(group.rank() == 0))
                                                .add(block(group));
                                try (Model model = model(block)) {
                                    initialize(model);
                                    Exception error =
                                            assertThrows(
                                                    IOException.class,
                                                    () -> model.save(directory, "shared"));
                                    group.barrier().await(); // All can go on.
                                    return error;
                                }
                            });
            assertEquals("no space left", errors.get(0).getMessage());
            for (Exception error : errors.subList(1, 4)) {
                assertInstanceOf(CollectiveMismatchException.class, error.getCause());
            }
            try (Stream<Path> files = Files.list(directory)) {
                assertEquals(List.of(), files.toList());
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}

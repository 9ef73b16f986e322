// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.training.initializer.NormalInitializer;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.util.Arrays;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class ParallelEmbeddingTest {

    private static final long SIZE = 3;
    private static final long[] TOKENS = {4, 0, 4, 2, 1, 3, 2, 2};

    private interface OnRank<T> {
        T run(ProcessGroup group) throws Exception;
    }

    private static <T> List<T> onRanks(int ranks, OnRank<T> body) {
        List<ProcessGroup> groups = ProcessGroups.local(ranks);
        try {
            return ProcessGroups.run(groups, body::run);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static ParallelEmbedding create(ProcessGroup group, boolean divided, long vocabulary) {
        ParallelEmbedding embedding =
                ParallelEmbedding.builder()
                        .setGroup(group)
                        .optSequenceParallel(divided)
                        .setVocabulary(vocabulary)
                        .setSize(SIZE)
                        .build();
        embedding.setInitializer(new NormalInitializer(1), Parameter.Type.WEIGHT);
        return embedding;
    }

    private record Result(double[] weight, double[] output, double[] gradient) {}

    private static Result run(
            ProcessGroup group, boolean divided, long vocabulary, DataType type, Shape shape) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            ParallelEmbedding embedding = create(group, divided, vocabulary);
            embedding.initialize(manager, DataType.FLOAT64, shape);
            NDArray tokens = manager.create(TOKENS, shape).toType(type, false);
            ParameterStore store = new ParameterStore(manager, false);
            NDArray y = embedding.forward(store, new NDList(tokens), true).singletonOrThrow();
            assertEquals(embedding.getOutputShapes(new Shape[] {shape})[0], y.getShape());
            NDArray weights = TestArrays.random(manager, ScalarType.FLOAT64, shape.add(SIZE), 4);
            NDArray own = divided ? weights.split(group.worldSize()).get(group.rank()) : weights;
            scope.backward(y.mul(own.duplicate()).sum());
            double[] full = embedding.full("weight", manager).toDoubleArray();
            NDArray array = embedding.getParameters().get("weight").getArray();
            try (NDArray gradient = array.getGradient()) {
                NoGradient.run(() -> gradient.copyTo(array));
            }
            double[] gradient = embedding.full("weight", manager).toDoubleArray();
            return new Result(full, y.toDoubleArray(), gradient);
        }
    }

    @ParameterizedTest
    @CsvSource({
        "1, false, 5, INT64",
        "2, false, 6, FLOAT32",
        "2, true, 5, INT32",
        "4, true, 5, INT64",
        "4, false, 9, INT64",
        "8, true, 5, INT64"
    })
    void looksUpAndGoesBack(int ranks, boolean divided, int vocabulary, DataType type) {
        Shape shape = ranks == 8 ? new Shape(8) : new Shape(4, 2);
        List<Result> results =
                onRanks(ranks, group -> run(group, divided, vocabulary, type, shape));
        double[] weight = results.get(0).weight();
        assertEquals(vocabulary * SIZE, weight.length);
        double[] weights;
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            weights =
                    TestArrays.random(manager, ScalarType.FLOAT64, shape.add(SIZE), 4)
                            .toDoubleArray();
        }
        double[] gradient = new double[weight.length];
        double[] output = new double[weights.length];
        for (int i = 0; i < TOKENS.length; i++) {
            for (int k = 0; k < SIZE; k++) {
                int place = (int) (i * SIZE + k);
                output[place] = weight[(int) (TOKENS[i] * SIZE + k)];
                gradient[(int) (TOKENS[i] * SIZE + k)] += weights[place];
            }
        }
        for (int rank = 0; rank < ranks; rank++) {
            Result result = results.get(rank);
            assertArrayEquals(gradient, result.gradient(), 1e-15);
            int own = divided ? output.length / ranks : output.length;
            int begin = divided ? rank * own : 0;
            double[] expected = Arrays.copyOfRange(output, begin, begin + own);
            assertArrayEquals(expected, result.output());
        }
    }

    /** 4 ranks save, one of which has only padding; 1 and 3 ranks load. */
    @Test
    void savesWithoutPadding() {
        Shape shape = new Shape(4);
        List<byte[]> saved =
                onRanks(
                        4,
                        group -> {
                            try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                                ParallelEmbedding embedding = create(group, false, 6);
                                embedding.initialize(manager, DataType.FLOAT32, shape);
                                ByteArrayOutputStream bytes = new ByteArrayOutputStream();
                                embedding.saveParameters(new DataOutputStream(bytes));
                                return bytes.toByteArray();
                            }
                        });
        for (int ranks : new int[] {1, 3}) {
            List<byte[]> again =
                    onRanks(
                            ranks,
                            group -> {
                                try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                                    ParallelEmbedding embedding = create(group, false, 6);
                                    embedding.loadParameters(
                                            manager,
                                            new DataInputStream(
                                                    new ByteArrayInputStream(saved.get(0))));
                                    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
                                    embedding.saveParameters(new DataOutputStream(bytes));
                                    return bytes.toByteArray();
                                }
                            });
            assertArrayEquals(saved.get(0), again.get(0));
        }
    }

    @Test
    void refusesAWeightOfAnotherVocabulary() throws Exception {
        List<ProcessGroup> groups = ProcessGroups.local(1);
        ProcessGroup group = groups.get(0);
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            ParallelEmbedding six = create(group, false, 6);
            six.initialize(manager, DataType.FLOAT32, new Shape(4));
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            six.saveParameters(new DataOutputStream(bytes));
            ParallelEmbedding five = create(group, false, 5);
            five.loadParameters(
                    manager, new DataInputStream(new ByteArrayInputStream(bytes.toByteArray())));
            NDList tokens = new NDList(manager.create(TOKENS));
            ParameterStore store = new ParameterStore(manager, false);
            IllegalStateException e =
                    assertThrows(
                            IllegalStateException.class, () -> five.forward(store, tokens, false));
            assertTrue(e.getMessage().contains("6 rows on rank 0"), e.getMessage());
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void makesActivationsOfAnotherType() {
        onRanks(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        ParallelEmbedding embedding =
                                ParallelEmbedding.builder()
                                        .setGroup(group)
                                        .setVocabulary(5)
                                        .setSize(SIZE)
                                        .optComputeType(ScalarType.BFLOAT16)
                                        .build();
                        Shape shape = new Shape(8);
                        embedding.initialize(manager, DataType.FLOAT32, shape);
                        NDArray tokens = manager.create(TOKENS, shape);
                        ParameterStore store = new ParameterStore(manager, false);
                        NDArray y =
                                embedding
                                        .forward(store, new NDList(tokens), false)
                                        .singletonOrThrow();
                        assertEquals(ScalarType.BFLOAT16, Torch.scalarType(y));
                    }
                    return null;
                });
    }

    /** A rank is refused before it waits for the other. */
    @Test
    void refusesWhatCannotBeLookedUp() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            ParallelEmbedding embedding = create(groups.get(0), true, 5);
            ParameterStore store = new ParameterStore(manager, false);
            IllegalArgumentException tokens =
                    assertThrows(
                            IllegalArgumentException.class,
                            () ->
                                    embedding.forward(
                                            store,
                                            new NDList(manager.create(new long[] {1, 5, 2, -1})),
                                            false));
            assertEquals(
                    "ParallelEmbedding: 2 of 4 token ids are out of range: they are from -1 to 5,"
                            + " but the vocabulary has ids from 0 to 4",
                    tokens.getMessage());
            IllegalArgumentException odd =
                    assertThrows(
                            IllegalArgumentException.class,
                            () ->
                                    embedding.forward(
                                            store,
                                            new NDList(manager.create(new long[] {1, 2, 3})),
                                            false));
            assertTrue(odd.getMessage().contains("that the 2 ranks can divide"), odd.getMessage());
            ParallelEmbedding.Builder builder = ParallelEmbedding.builder();
            builder.setGroup(groups.get(0));
            assertThrows(IllegalArgumentException.class, () -> builder.setSize(3).build());
            assertThrows(
                    IllegalArgumentException.class, () -> builder.optComputeType(ScalarType.INT32));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}

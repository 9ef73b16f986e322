// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.torchscript;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.translate.TranslateException;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.pool.RankPool;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.nativeops.host.CHeap;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** TorchScript models that call the operators, in pools of CPU ranks. */
@Timeout(120)
class TorchOperatorsTest {

    @BeforeAll
    static void register() {
        TorchOperators.register();
        TorchOperators.register(); // nothing more
    }

    private interface Body {
        void run(ProcessGroup group, ScriptedMlp model, NDManager manager) throws Exception;
    }

    private static RankPool<ScriptedMlp.Task, Void> pool(int worldSize) {
        BackendOptions options = new BackendOptions(Duration.ofSeconds(60));
        return RankPool.start(
                "mlp", ProcessGroups.local("shm", worldSize, options), ScriptedMlp::new);
    }

    private static void run(RankPool<ScriptedMlp.Task, Void> pool, Body body)
            throws InterruptedException, ExecutionException {
        pool.submit(
                        (group, model) -> {
                            try (NDManager manager = NDManager.newBaseManager(group.device())) {
                                body.run(group, model, manager);
                            }
                        })
                .get();
    }

    private static void run(int worldSize, Body body)
            throws InterruptedException, ExecutionException {
        try (RankPool<ScriptedMlp.Task, Void> pool = pool(worldSize)) {
            run(pool, body);
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 4})
    void aDividedMlpEqualsTheUndividedMlp(int worldSize) throws Exception {
        try (RankPool<ScriptedMlp.Task, Void> pool = pool(worldSize)) {
            // The interpreter optimises the model after several runs.
            for (int i = 0; i < 5; i++) {
                run(
                        pool,
                        (group, model, manager) ->
                                ScriptedMlp.check(
                                        model.call("forward", ScriptedMlp.input(manager))));
            }
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 4})
    void reducesByAllOperators(int worldSize) throws Exception {
        int[] values = {1, 2, 3, 4, 5, 6};
        run(
                worldSize,
                (group, model, manager) -> {
                    for (int op = 0; op < 8; op++) {
                        int number = op;
                        double[] expected =
                                IntStream.of(values)
                                        .mapToDouble(value -> reduced(number, value, worldSize))
                                        .toArray();
                        boolean bits = op > 4;
                        // A view that is not contiguous.
                        NDArray x =
                                manager.create(values, new Shape(3, 2))
                                        .transpose()
                                        .toType(bits ? DataType.INT32 : DataType.FLOAT32, false);
                        NDArray y = model.call("reduce", x, manager.create(op)).head();
                        assertEquals(new Shape(2, 3), y.getShape());
                        ScriptedMlp.check(
                                expected, y.transpose().toType(DataType.FLOAT32, false).flatten());
                        assertArrayEquals( // unchanged
                                values, x.transpose().toType(DataType.INT32, false).toIntArray());
                    }
                });
    }

    /** Returns the result of c10d's reduce op with a number, over value, value + 1 and so on. */
    private static double reduced(int op, int value, int worldSize) {
        IntStream all = IntStream.range(value, value + worldSize);
        return switch (op) {
            case 0 -> all.sum();
            case 1 -> all.average().orElseThrow();
            case 2 -> all.reduce(1, (a, b) -> a * b);
            case 3 -> all.min().orElseThrow();
            case 4 -> all.max().orElseThrow();
            case 5 -> all.reduce(-1, (a, b) -> a & b);
            case 6 -> all.reduce(0, (a, b) -> a | b);
            default -> all.reduce(0, (a, b) -> a ^ b);
        };
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 4})
    void gathersAndScattersColumns(int worldSize) throws Exception {
        int rows = 3;
        int part = 5;
        int columns = 4 * worldSize;
        float[] a = ScriptedMlp.random(rows * part, 2);
        float[] wide = ScriptedMlp.random(part * worldSize * columns, 3);
        float[] own = ScriptedMlp.random(part * columns, 4);
        // Rank r passes a + r.
        double[] gathered = new double[rows * part * worldSize];
        double[] mean = new double[rows * part];
        for (int rank = 0; rank < worldSize; rank++) {
            for (int i = 0; i < rows * part; i++) {
                double value = a[i] + (float) rank;
                gathered[(i / part * worldSize + rank) * part + i % part] = value;
                mean[i] += value / worldSize;
            }
        }
        double[] product =
                ScriptedMlp.multiply(
                        gathered, ScriptedMlp.doubles(wide), rows, part * worldSize, columns);
        double[] average =
                ScriptedMlp.multiply(mean, ScriptedMlp.doubles(own), rows, part, columns);
        run(
                worldSize,
                (group, model, manager) -> {
                    NDArray x = manager.create(a, new Shape(rows, part));
                    NDArray b = manager.create(wide, new Shape((long) part * worldSize, columns));
                    NDArray y = model.call("gather_columns", x, b).head();
                    assertEquals(new Shape(rows, columns), y.getShape());
                    ScriptedMlp.check(product, y);

                    NDArray c = manager.create(own, new Shape(part, columns));
                    NDArray z = model.call("scatter_columns", x, c).head();
                    assertEquals(new Shape(rows, 4), z.getShape());
                    double[] mine =
                            IntStream.range(0, rows * 4)
                                    .mapToDouble(
                                            i ->
                                                    average[
                                                            i / 4 * columns
                                                                    + group.rank() * 4
                                                                    + i % 4])
                                    .toArray();
                    ScriptedMlp.check(mine, z);
                });
    }

    /** Several Bs side by side: A is gathered once, and the product has the columns of each B. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2, 4})
    void severalBsSideBySide(int worldSize) throws Exception {
        run(
                worldSize,
                (group, model, manager) -> {
                    int inner = 5 * worldSize;
                    NDArray a = manager.create(ScriptedMlp.random(15, 2), new Shape(3, 5));
                    NDArray bs =
                            manager.create(ScriptedMlp.random(inner * 9, 3), new Shape(inner, 9));
                    NDArray both = model.call("gather_columns", a, bs).head();
                    NDArray left = model.call("gather_columns", a, bs.get(":, :4")).head();
                    NDArray right = model.call("gather_columns", a, bs.get(":, 4:")).head();
                    ScriptedMlp.check(
                            ScriptedMlp.doubles(left.concat(right, 1).toFloatArray()), both);
                });
    }

    /** Every rank refuses the arguments, nothing is sent, and later calls work. */
    @Test
    void aRefusalNamesTheOperatorAndTheShapes() throws Exception {
        run(
                2,
                (group, model, manager) -> {
                    NDArray a = manager.ones(new Shape(2, 3));
                    NDArray b = manager.ones(new Shape(4, 5));
                    String message =
                            assertThrows(
                                            IllegalArgumentException.class,
                                            () -> model.call("multiply", a, b))
                                    .getMessage();
                    for (String part :
                            List.of(
                                    "cuda_p2p::all_gather_matmul",
                                    "rank " + group.rank() + " of 2",
                                    "(2, 3)",
                                    "(4, 5)")) {
                        assertTrue(message.contains(part), message);
                    }
                    message =
                            assertThrows(
                                            IllegalArgumentException.class,
                                            () -> model.call("reduce", a, manager.create(8)))
                                    .getMessage();
                    assertTrue(message.contains("reduce_op is 8"), message);
                    ScriptedMlp.check(model.call("forward", ScriptedMlp.input(manager)));
                });
    }

    @Test
    void shapesThatDifferBetweenRanksFailAllRanks() {
        ExecutionException failure =
                assertThrows(
                        ExecutionException.class,
                        () ->
                                run(
                                        2,
                                        (group, model, manager) ->
                                                model.call(
                                                        "differ", manager.ones(new Shape(3, 2)))));
        assertSame(CollectiveException.class, failure.getCause().getClass());
        assertTrue(
                failure.getCause().getCause() instanceof CollectiveException,
                () -> String.valueOf(failure.getCause()));
    }

    @Test
    void aFailingRankFailsAllRanks() throws Exception {
        try (RankPool<ScriptedMlp.Task, Void> pool = pool(4)) {
            ExecutionException failure =
                    assertThrows(
                            ExecutionException.class,
                            () ->
                                    run(
                                            pool,
                                            (group, model, manager) ->
                                                    model.call(
                                                            "fail_alone",
                                                            manager.ones(new Shape(2)))));
            String message = failure.getMessage();
            assertTrue(message.contains("mlp: rank 3 of 4 failed"), message);
            assertTrue(message.contains("the last rank fails alone"), message);
        }
    }

    @Test
    void gradientsAreRefused() throws Exception {
        run(
                1,
                (group, model, manager) -> {
                    NDArray x = manager.ones(new Shape(2, 2));
                    x.setRequiresGradient(true);
                    NDArray sum = manager.create(0);
                    model.train("reduce", x, sum); // Pools do not record gradients.
                    JniUtils.setGradMode(true);
                    try {
                        String message =
                                assertThrows(
                                                IllegalArgumentException.class,
                                                () -> model.train("reduce", x, sum))
                                        .getMessage();
                        assertTrue(message.contains("gradient"), message);
                        // Without gradients there is nothing to refuse.
                        model.train("reduce", manager.ones(new Shape(2, 2)), sum);
                    } finally {
                        JniUtils.setGradMode(false);
                    }
                });
    }

    @Test
    void callsFromAThreadWithoutARankAreRefused() throws Exception {
        ProcessGroup group = ProcessGroups.local(1).get(0);
        try (NDManager manager = NDManager.newBaseManager();
                ScriptedMlp model = new ScriptedMlp(group)) {
            NDArray x = ScriptedMlp.input(manager);
            String message =
                    assertThrows(TranslateException.class, () -> model.callOutside("forward", x))
                            .getMessage();
            assertTrue(message.contains("called on a thread without a group"), message);
            ScriptedMlp.check(model.call("forward", x));
            assertThrows(
                    IllegalArgumentException.class, () -> TorchOperators.call(null, () -> null));
            assertThrows(IllegalArgumentException.class, () -> TorchOperators.call(group, null));
        } finally {
            group.destroy();
        }
    }

    @Test
    @Tag("slow")
    void leaksNoTensor() throws Exception {
        int calls = 10_000;
        try (RankPool<ScriptedMlp.Task, Void> pool = pool(1)) {
            run(
                    pool,
                    (group, model, manager) -> {
                        reduce(model, manager, 1_000);
                        long before = CHeap.bytesInUse();
                        reduce(model, manager, calls);
                        long grown = CHeap.bytesInUse() - before;
                        // Compilers take and return some 10 MB meanwhile. A tensor of each call
                        // would be 640 MiB.
                        assertTrue(grown < calls * 16L * 1024, "grown by " + grown);
                    });
        }
    }

    private static void reduce(ScriptedMlp model, NDManager manager, int calls) throws Exception {
        NDArray op = manager.create(0);
        for (int i = 0; i < calls; i++) {
            try (NDManager own = manager.newSubManager()) {
                NDArray x = own.ones(new Shape(128, 128)); // 64 KiB
                model.call("reduce", x, op);
                model.call("scatter_columns", x, x);
            }
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.c10d;

import static org.djlx.collectives.c10d.Rank.least;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.function.IntBinaryOperator;
import java.util.stream.IntStream;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.Work;
import org.djlx.collectives.c10d.Expectation.Table;
import org.djlx.collectives.c10d.Rank.Body;
import org.djlx.collectives.c10d.Rank.Value;
import org.djlx.collectives.spi.OpType;
import org.djlx.nativeops.torch.ScalarType;

/** What PyTorch's tests expect of operations that reduce. */
final class Reductions {

    private static final ScalarType FLOAT = ScalarType.FLOAT32;
    private static final ScalarType LONG = ScalarType.INT64;
    private static final Shape ONE = new Shape(1);
    private static final Value RANK_PLUS_ONE = (r, n) -> r + 1;

    private Reductions() {}

    /** A reduction with the number that each rank passes, and the result. */
    private record Simple(ReduceOp op, ScalarType type, String text, Value input, Value expected) {}

    private static final List<Simple> SIMPLE = new ArrayList<>();

    static {
        add(ReduceOp.SUM, "n (n + 1) / 2", (r, n) -> n * (n + 1) / 2.0);
        add(ReduceOp.PRODUCT, "n!", (r, n) -> factorial(n));
        add(ReduceOp.MIN, "1", (r, n) -> 1);
        add(ReduceOp.MAX, "n", (r, n) -> n);
        add(ReduceOp.AVG, "(n + 1) / 2", (r, n) -> (n + 1) / 2.0);
        for (int i = 0; i < 4; i++) {
            int bit = 1 << i;
            String text = "BAND of rank | %d is %d".formatted(bit, bit);
            SIMPLE.add(
                    new Simple(
                            ReduceOp.BAND,
                            ScalarType.INT32,
                            text,
                            (r, n) -> r | bit,
                            (r, n) -> bit));
        }
        for (int i = 1; i < 5; i++) {
            bits(ReduceOp.BOR, i, (a, b) -> a | b);
            bits(ReduceOp.BXOR, i, (a, b) -> a ^ b);
        }
    }

    private static void add(ReduceOp op, String text, Value expected) {
        String says = op + " of rank + 1 is " + text;
        SIMPLE.add(new Simple(op, FLOAT, says, RANK_PLUS_ONE, expected));
    }

    /** Each rank passes the combination of {@code count} successive numbers. */
    private static void bits(ReduceOp op, int count, IntBinaryOperator combine) {
        SIMPLE.add(
                new Simple(
                        op,
                        ScalarType.INT32,
                        op + " of " + count + " successive numbers a rank is that of all",
                        (r, n) -> IntStream.range(r * count, (r + 1) * count).reduce(0, combine),
                        (r, n) -> IntStream.range(0, n * count).reduce(0, combine)));
    }

    private static double factorial(int n) {
        return IntStream.rangeClosed(1, n).asDoubleStream().reduce(1, (a, b) -> a * b);
    }

    static List<Expectation<Body>> rows() {
        Table<Body> gloo = Table.of("test_c10d_gloo.py");
        for (Simple simple : SIMPLE) {
            gloo.agrees("test_allreduce_basics", simple.text, allReduce(simple));
        }
        gloo.agrees(
                "test_allreduce_basics",
                "float16 sums up to 65504 are those of stacked tensors",
                Reductions::halves);
        gloo.agrees(
                "test_allreduce_stress",
                "sums of rank + i under way (1000; here 200)",
                rank -> stress(rank, 200));
        for (Simple simple : SIMPLE) {
            gloo.agrees("test_reduce_basics", simple.text + ", on each root", reduce(simple));
        }
        gloo.agrees(
                "test_reduce_stress",
                "sums of rank + i on each root (1000; here 20)",
                Reductions::reduces);
        coalesced(gloo);
        scattered(gloo);
        gloo.agrees(
                "test_barrier_implies_wait",
                "after a barrier 16 sums of 100 x 100 have ended",
                Reductions::barrierAfterSums);
        Table<Body> nccl = gloo.file("test_c10d_ops_nccl.py");
        numbers(nccl);
        premulSums(nccl);
        reduceScatters(nccl);
        distributed(nccl.file("distributed_test.py"));
        dispatched(nccl.file("test_c10d_common.py"));
        return gloo.rows();
    }

    private static void sum(Rank rank, NDArray tensor, ReduceOp op) {
        rank.group().allReduce(tensor, op).await();
    }

    private static Body allReduce(Simple simple) {
        return rank -> {
            NDArray tensor = rank.full(simple.type, ONE, rank.of(simple.input));
            if (!rank.supports(OpType.ALL_REDUCE, simple.type, simple.op)) {
                rank.refuses(() -> sum(rank, tensor, simple.op)); // BAND, BOR, BXOR, as on NCCL
                return;
            }
            sum(rank, tensor, simple.op);
            rank.all(rank.of(simple.expected), tensor);
        };
    }

    private static Body reduce(Simple simple) {
        return rank -> {
            for (int root = 0; root < rank.n(); root++) {
                int to = root;
                NDArray tensor = rank.full(simple.type, ONE, rank.of(simple.input));
                if (!rank.supports(OpType.REDUCE, simple.type, simple.op)) {
                    rank.refuses(() -> rank.group().reduce(tensor, to, simple.op));
                    continue;
                }
                rank.group().reduce(tensor, root, simple.op).await();
                Value expected = rank.r() == root ? simple.expected : simple.input;
                rank.all(rank.of(expected), tensor);
            }
        };
    }

    private static void halves(Rank rank) {
        double[] sums = new double[10];
        double[][] all = new double[rank.n()][10];
        for (int from = 0; from < rank.n(); from++) {
            for (int i = 0; i < 10; i++) {
                double value = Math.sin(10 * from + i) * 65504 / rank.n();
                NDArray half = rank.full(ScalarType.FLOAT16, ONE, value);
                all[from][i] = TestArrays.values(half)[0];
                sums[i] += all[from][i];
            }
        }
        Shape shape = new Shape(10, 1);
        NDArray tensor = TestArrays.of(rank.manager(), ScalarType.FLOAT16, shape, all[rank.r()]);
        sum(rank, tensor, ReduceOp.SUM);
        double[] actual = TestArrays.values(tensor);
        for (int i = 0; i < 10; i++) { // PyTorch's tolerance for float16
            assertEquals(sums[i], actual[i], 1e-5 + 1e-3 * Math.abs(sums[i]) * rank.n());
        }
    }

    private static void stress(Rank rank, int count) {
        List<Work> works = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            NDArray tensor = rank.full(LONG, ONE, i + rank.r());
            works.add(rank.group().allReduce(tensor, ReduceOp.SUM));
        }
        for (int i = 0; i < count; i++) {
            works.get(i).await();
            rank.all(i * rank.n() + sumOfRanks(rank), works.get(i).result().get(0));
        }
    }

    private static double sumOfRanks(Rank rank) {
        return rank.n() * (rank.n() - 1) / 2.0;
    }

    private static void reduces(Rank rank) {
        for (int i = 0; i < 20; i++) {
            for (int root = 0; root < rank.n(); root++) {
                NDArray tensor = rank.full(LONG, ONE, i + rank.r());
                rank.group().reduce(tensor, root, ReduceOp.SUM).await();
                boolean isRoot = rank.r() == root;
                rank.all(isRoot ? i * rank.n() + sumOfRanks(rank) : i + rank.r(), tensor);
            }
        }
    }

    private static void coalesced(Table<Body> table) {
        String test = "test_allreduce_coalesced_basics";
        table.agrees(
                test,
                "SUM of rank + 1 and of its square",
                coalesced(
                        ReduceOp.SUM,
                        List.of(RANK_PLUS_ONE, (r, n) -> (r + 1) * (r + 1)),
                        List.of(
                                (r, n) -> n * (n + 1) / 2.0,
                                (r, n) -> n * (n + 1) * (2 * n + 1) / 6.0)));
        table.agrees(
                test,
                "PRODUCT of rank + 1 and of rank + 2",
                coalesced(
                        ReduceOp.PRODUCT,
                        List.of(RANK_PLUS_ONE, (r, n) -> r + 2),
                        List.of((r, n) -> factorial(n), (r, n) -> factorial(n + 1))));
        table.agrees(
                test,
                "MIN of rank and of rank + 1",
                coalesced(
                        ReduceOp.MIN,
                        List.of((r, n) -> r, RANK_PLUS_ONE),
                        List.of((r, n) -> 0, (r, n) -> 1)));
        table.agrees(
                test,
                "MAX of rank + 1 and of rank + 2",
                coalesced(
                        ReduceOp.MAX,
                        List.of(RANK_PLUS_ONE, (r, n) -> r + 2),
                        List.of((r, n) -> n, (r, n) -> n + 1)));
        Value sum = (r, n) -> 7 * n + n * (n - 1) / 2.0;
        table.agrees(
                "test_allreduce_coalesced_stress",
                "two sums of rank + i in one call",
                coalesced(
                        ReduceOp.SUM,
                        List.of((r, n) -> r + 7, (r, n) -> r + 7),
                        List.of(sum, sum)));
        table.agrees(
                "test_allreduce_coalesced_async",
                "the work's result is the list of both sums",
                coalesced(
                        ReduceOp.SUM,
                        List.of((r, n) -> r + 7, (r, n) -> r + 7),
                        List.of(sum, sum)));
    }

    private static Body coalesced(ReduceOp op, List<Value> inputs, List<Value> expected) {
        return rank -> {
            List<NDArray> tensors =
                    inputs.stream().map(input -> rank.full(rank.of(input), 1)).toList();
            Work work = rank.group().allReduceCoalesced(tensors, op);
            work.await();
            for (int i = 0; i < expected.size(); i++) {
                rank.all(rank.of(expected.get(i)), work.result().get(i));
            }
        };
    }

    private static void scattered(Table<Body> table) {
        table.agrees(
                "test_reduce_scatter",
                "rank r gets r elements",
                rank -> {
                    List<NDArray> inputs = rank.each(to -> rank.full(to + 0.5, to));
                    NDArray output = rank.full(-1, rank.r());
                    rank.group().reduceScatter(output, inputs, ReduceOp.SUM).await();
                    rank.all((rank.r() + 0.5) * rank.n(), output);
                });
        table.agrees(
                "test_reduce_scatter_tensor",
                "parts of 20 x 20 of one tensor",
                rank -> scatter(rank, 20));
        for (int size : new int[] {5, 10, 15}) {
            table.agrees(
                    "test_reduce_scatter_tensor_coalesced",
                    "part of %d x %d of the second of two tensors".formatted(size, size),
                    rank -> {
                        List<NDArray> inputs = List.of(whole(rank, 3), whole(rank, size));
                        List<NDArray> outputs =
                                List.of(rank.full(-1, 3, 3), rank.full(-1, size, size));
                        rank.group().reduceScatterCoalesced(outputs, inputs, ReduceOp.SUM).await();
                        rank.all(rank.n() * (rank.r() + 1), outputs.get(1));
                    });
        }
    }

    /** The parts of all ranks: those of rank r are r + 1. */
    private static NDArray whole(Rank rank, int size) {
        double[] values =
                IntStream.range(0, rank.n() * size * size)
                        .mapToDouble(i -> i / (size * size) + 1)
                        .toArray();
        Shape shape = new Shape((long) rank.n() * size, size);
        return TestArrays.of(rank.manager(), FLOAT, shape, values);
    }

    private static void scatter(Rank rank, int size) {
        NDArray output = rank.full(-1, size, size);
        rank.group().reduceScatterTensor(output, whole(rank, size), ReduceOp.SUM).await();
        rank.all(rank.n() * (rank.r() + 1), output);
    }

    private static void barrierAfterSums(Rank rank) {
        List<NDArray> tensors =
                IntStream.range(0, 16).mapToObj(i -> rank.full(i, 100, 100)).toList();
        tensors.forEach(tensor -> rank.group().allReduce(tensor, ReduceOp.SUM));
        rank.group().barrier().await();
        for (int i = 0; i < 16; i++) {
            rank.all(i * rank.n(), tensors.get(i));
        }
    }

    private static void numbers(Table<Body> table) {
        String test = "test_allreduce_ops";
        for (Simple simple : SIMPLE) {
            if (simple.type == FLOAT && simple.op != ReduceOp.AVG) {
                Simple ofLongs =
                        new Simple(
                                simple.op,
                                LONG,
                                simple.text + ", int64",
                                simple.input,
                                simple.expected);
                table.agrees(test, ofLongs.text, allReduce(ofLongs));
            }
        }
        table.agrees(test, "AVG of rank + 1, float32", allReduce(SIMPLE.get(4)));
        for (ReduceOp op : List.of(ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)) {
            for (String call : List.of(test, "test_reduce_ops")) {
                table.differs(
                        call,
                        op + " is refused by NCCL",
                        "refused on `nccl` and `cuda_p2p`, supported on `shm` and `mpi`",
                        "only NCCL lacks it",
                        rank -> bitwise(rank, op));
            }
        }
        table.agrees(
                "test_reduce_ops",
                "SUM of int64 on each root; other ranks keep their tensor",
                reduce(
                        new Simple(
                                ReduceOp.SUM,
                                LONG,
                                "",
                                RANK_PLUS_ONE,
                                (r, n) -> n * (n + 1) / 2.0)));
        for (double factor : new double[] {3, 5}) {
            table.agrees(
                    "test_reduce_ops",
                    "PREMUL_SUM by " + factor + " equals the sum of scaled tensors",
                    reduce(premul(factor, FLOAT)));
        }
        table.differs(
                "test_allreduce_float8",
                "1024 ones in float8_e4m3fn sum to n",
                "refused: `FLOAT8_E4M3FN` with SUM",
                "4 significant bits lose most of a sum: cast to bfloat16 first",
                rank -> {
                    NDArray eight = rank.full(ScalarType.FLOAT8_E4M3FN, new Shape(1024), 1);
                    rank.refuses(() -> sum(rank, eight, ReduceOp.SUM));
                });
        table.agrees(
                "test_barrier",
                "after a barrier the sum of ones is n",
                rank -> {
                    NDArray tensor = rank.full(LONG, ONE, 1);
                    rank.group().allReduce(tensor, ReduceOp.SUM);
                    rank.group().barrier().await();
                    rank.all(rank.n(), tensor);
                });
        for (String name : List.of("allReduce", "reduce", "reduceScatter")) {
            table.agrees(
                    "test_empty_tensors",
                    name + " of a tensor without elements",
                    rank -> {
                        NDArray empty = rank.full(0, 0);
                        switch (name) {
                            case "allReduce" -> sum(rank, empty, ReduceOp.SUM);
                            case "reduce" -> rank.group().reduce(empty, 0, ReduceOp.SUM).await();
                            default ->
                                    rank.group()
                                            .reduceScatter(
                                                    empty,
                                                    rank.each(i -> rank.full(0, 0)),
                                                    ReduceOp.SUM)
                                            .await();
                        }
                        assertEquals(0, empty.size());
                    });
        }
    }

    private static void bitwise(Rank rank, ReduceOp op) {
        NDArray tensor = rank.full(ScalarType.INT32, ONE, 5);
        if (rank.group().device().isGpu()) {
            rank.refuses(() -> sum(rank, tensor, op));
            return;
        }
        sum(rank, tensor, op);
        rank.all(op == ReduceOp.BXOR && rank.n() % 2 == 0 ? 0 : 5, tensor);
    }

    private static Simple premul(double factor, ScalarType type) {
        return new Simple(
                ReduceOp.premulSum(factor),
                type,
                "PREMUL_SUM by %s of rank + 1 in %s".formatted(factor, type),
                RANK_PLUS_ONE,
                (r, n) -> factor * n * (n + 1) / 2);
    }

    private static void premulSums(Table<Body> table) {
        for (ScalarType type : List.of(ScalarType.FLOAT16, FLOAT, ScalarType.FLOAT64)) {
            for (double factor : new double[] {3, 5}) {
                Simple simple = premul(factor, type);
                table.agrees("test_allreduce_ops", simple.text, allReduce(simple));
                table.agrees(
                        "test_reduce_op_premul_sum",
                        "reduceScatter: PREMUL_SUM by %s in %s".formatted(factor, type),
                        rank -> {
                            NDArray output = rank.full(type, ONE, 0);
                            List<NDArray> inputs = rank.each(to -> rank.full(type, ONE, to + 1));
                            rank.group()
                                    .reduceScatter(output, inputs, ReduceOp.premulSum(factor))
                                    .await();
                            rank.all(factor * rank.n() * (rank.r() + 1), output);
                        });
            }
            for (double factor : new double[] {2, 4}) {
                Simple simple = premul(factor, type);
                table.agrees(
                        "test_reduce_op_premul_sum",
                        simple.text + ", on each root",
                        reduce(simple));
            }
        }
        table.agrees(
                "test_reduce_op_premul_sum",
                "two PREMUL_SUM of the same factor are equal",
                rank -> assertEquals(ReduceOp.premulSum(2), ReduceOp.premulSum(2)));
    }

    private static void reduceScatters(Table<Body> table) {
        String test = "test_reduce_scatter_ops";
        // Rank r passes r + i + 1 for rank i.
        table.agrees(
                test,
                "SUM is n (n + 1) / 2 + n rank",
                scatterOf(LONG, ReduceOp.SUM, (r, n) -> n * (n + 1) / 2.0 + n * r));
        table.agrees(test, "MIN is rank + 1", scatterOf(LONG, ReduceOp.MIN, (r, n) -> r + 1));
        table.agrees(test, "MAX is rank + n", scatterOf(LONG, ReduceOp.MAX, (r, n) -> r + n));
        table.agrees(
                test,
                "PRODUCT is (rank + n)! / rank!",
                scatterOf(
                        LONG,
                        ReduceOp.PRODUCT,
                        (r, n) ->
                                IntStream.rangeClosed(r + 1, r + n)
                                        .asDoubleStream()
                                        .reduce(1, (a, b) -> a * b)));
        for (double factor : new double[] {3, 5}) {
            table.agrees(
                    test,
                    "PREMUL_SUM by " + factor + " equals the sum of scaled inputs",
                    scatterOf(
                            FLOAT,
                            ReduceOp.premulSum(factor),
                            (r, n) -> factor * (n * (n + 1) / 2.0 + n * r)));
        }
        table.agrees(
                "test_reduce_scatter_v",
                "rank r gets r elements of n ones",
                rank -> {
                    NDArray output = rank.full(0, rank.r());
                    List<NDArray> inputs = rank.each(to -> rank.full(1, to));
                    rank.group().reduceScatter(output, inputs, ReduceOp.SUM).await();
                    rank.all(rank.n(), output);
                });
        table.agrees(
                "test_reduce_scatter_base_ops",
                "of 0 to n - 1, rank r gets n r",
                rank -> {
                    double[] ranks = IntStream.range(0, rank.n()).asDoubleStream().toArray();
                    NDArray input =
                            TestArrays.of(rank.manager(), FLOAT, new Shape(rank.n()), ranks);
                    NDArray output = rank.full(-1, 1);
                    rank.group().reduceScatterTensor(output, input, ReduceOp.SUM).await();
                    rank.all(rank.r() * rank.n(), output);
                });
        table.agrees(
                "test_reduce_scatter_bfloat16",
                "1024 ones in bfloat16 sum to n",
                rank -> {
                    ScalarType type = ScalarType.BFLOAT16;
                    NDArray output = rank.full(type, new Shape(1024), 0);
                    NDArray input = rank.full(type, new Shape(1024L * rank.n()), 1);
                    rank.group().reduceScatterTensor(output, input, ReduceOp.SUM).await();
                    rank.all(rank.n(), output);
                });
        table.differs(
                "test_reduce_scatter_float8",
                "1024 ones in float8_e5m2 sum to n",
                "refused: `FLOAT8_E5M2` with SUM",
                "3 significant bits lose most of a sum: cast to bfloat16 first",
                rank -> {
                    ScalarType type = ScalarType.FLOAT8_E5M2;
                    NDArray output = rank.full(type, new Shape(4), 0);
                    NDArray input = rank.full(type, new Shape(4L * rank.n()), 1);
                    rank.refuses(
                            () -> rank.group().reduceScatterTensor(output, input, ReduceOp.SUM));
                });
    }

    private static Body scatterOf(ScalarType type, ReduceOp op, Value expected) {
        return rank -> {
            NDArray output = rank.full(type, ONE, 0);
            List<NDArray> inputs = rank.each(to -> rank.full(type, ONE, rank.r() + to + 1));
            rank.group().reduceScatter(output, inputs, op).await();
            rank.all(rank.of(expected), output);
        };
    }

    /** The number of the rank whose turn it is, that of the others, and the result. */
    private record Turns(String name, ReduceOp op, double own, double others, Value expected) {}

    private static final List<Turns> TURNS =
            List.of(
                    new Turns("sum", ReduceOp.SUM, 2, 10, (r, n) -> 2 + 10 * (n - 1)),
                    new Turns(
                            "product", ReduceOp.PRODUCT, 2, 10, (r, n) -> 2 * Math.pow(10, n - 1)),
                    new Turns("min", ReduceOp.MIN, 1010, 1, (r, n) -> 1),
                    new Turns("max", ReduceOp.MAX, -1, 10, (r, n) -> 10));

    private static void distributed(Table<Body> table) {
        for (Scope scope : Scope.values()) {
            for (Turns turns : TURNS) {
                String says =
                        "%s of %s on one rank and %s on the others"
                                .formatted(turns.op, turns.own, turns.others);
                table.agrees(
                        "test_reduce" + scope.infix() + "_" + turns.name,
                        says,
                        scope.on(rank -> reduceInTurn(rank, turns)));
                table.agrees(
                        "test_all_reduce" + scope.infix() + "_" + turns.name,
                        says,
                        scope.on(rank -> allReduceInTurn(rank, turns)));
            }
            coalescedInTurn(table, scope);
        }
        Turns sum = TURNS.get(0);
        table.agrees(
                "test_reduce_sum_twice",
                "a second reduce follows without a wait",
                least(2, rank -> reduceTwice(rank, sum)));
        table.agrees(
                "test_all_reduce_sum_async",
                "SUM of 2 on one rank and 10 on the others, by a work",
                least(2, rank -> allReduceInTurn(rank, sum)));
        table.agrees(
                "test_all_reduce_sum_complex",
                "SUM of 2 + 3i on one rank and 10 + 11i on the others",
                least(
                        2,
                        rank -> {
                            for (int turn = 0; turn < rank.n(); turn++) {
                                NDArray tensor = complex(rank, turn);
                                sum(rank, tensor, ReduceOp.SUM);
                                complexSum(rank, tensor);
                            }
                        }));
        for (ReduceOp op : ReduceOp.constants()) {
            if (op != ReduceOp.SUM && op != ReduceOp.AVG) {
                table.agrees(
                        "test_all_reduce_complex_unsupported_ops",
                        op + " of complex numbers is refused",
                        rank ->
                                rank.refuses(
                                        () ->
                                                sum(
                                                        rank,
                                                        rank.full(ScalarType.COMPLEX64, ONE, 1, 1),
                                                        op)));
            }
        }
        table.agrees(
                "test_all_reduce_coalesced_max_complex_unsupported",
                "coalesced MAX of complex numbers is refused",
                rank -> {
                    List<NDArray> one = List.of(rank.full(ScalarType.COMPLEX64, ONE, 1, 1));
                    rank.refuses(() -> rank.group().allReduceCoalesced(one, ReduceOp.MAX));
                });
        table.agrees(
                "test_reduce_scatter_v_cuda",
                "rank r gets r + 1 rows, 2 of its own and 10 of each other rank",
                least(2, Reductions::rows));
        for (boolean stacked : new boolean[] {false, true}) {
            table.agrees(
                    "test_reduce_scatter_tensor_cuda",
                    (stacked ? "stacked" : "concatenated") + " input of 0 to 2 n - 1",
                    rank -> arange(rank, stacked));
        }
        for (String test : List.of("test_coalescing_manager", "test_coalescing_manager_async")) {
            table.agrees(
                    test,
                    "two coalesced sums equal one of twice the size",
                    rank -> {
                        List<NDArray> small = List.of(rank.full(1, 8), rank.full(1, 8));
                        rank.group().allReduceCoalesced(small, ReduceOp.SUM).await();
                        NDArray big = rank.full(1, 16);
                        sum(rank, big, ReduceOp.SUM);
                        rank.all(rank.n(), big);
                        small.forEach(tensor -> rank.all(rank.n(), tensor));
                    });
        }
    }

    private static NDArray turn(Rank rank, Turns turns, int turn) {
        return rank.cube(FLOAT, turn + 1, rank.r() == turn ? turns.own : turns.others);
    }

    private static void reduceInTurn(Rank rank, Turns turns) {
        for (int root = 0; root < rank.n(); root++) {
            NDArray tensor = turn(rank, turns, root);
            rank.group().reduce(tensor, root, turns.op).await();
            if (rank.r() == root) {
                rank.all(rank.of(turns.expected), tensor);
            }
        }
    }

    private static void reduceTwice(Rank rank, Turns turns) {
        for (int root = 0; root < rank.n(); root++) {
            List<NDArray> tensors = List.of(turn(rank, turns, root), turn(rank, turns, root));
            List<Work> works = new ArrayList<>();
            for (NDArray tensor : tensors) {
                works.add(rank.group().reduce(tensor, root, turns.op));
            }
            works.forEach(Work::await);
            if (rank.r() == root) {
                tensors.forEach(tensor -> rank.all(rank.of(turns.expected), tensor));
            }
        }
    }

    private static void allReduceInTurn(Rank rank, Turns turns) {
        for (int turn = 0; turn < rank.n(); turn++) {
            NDArray tensor = turn(rank, turns, turn);
            sum(rank, tensor, turns.op);
            rank.all(rank.of(turns.expected), tensor);
        }
    }

    private static NDArray complex(Rank rank, int turn) {
        Shape shape = new Shape(turn + 1, turn + 1);
        return rank.r() == turn
                ? rank.full(ScalarType.COMPLEX64, shape, 2, 3)
                : rank.full(ScalarType.COMPLEX64, shape, 10, 11);
    }

    private static void complexSum(Rank rank, NDArray tensor) {
        int others = rank.n() - 1;
        Shape shape = new Shape(tensor.getShape().getShape());
        NDArray expected = rank.full(ScalarType.COMPLEX64, shape, 2 + 10 * others, 3 + 11 * others);
        Rank.same(TestArrays.values(expected), TestArrays.values(tensor));
    }

    /** The numbers of the rank whose turn it is, those of the others, and the results. */
    private static void coalescedInTurn(Table<Body> table, Scope scope) {
        coalescedInTurn(
                table,
                scope,
                "sum",
                ReduceOp.SUM,
                new double[] {2, 3},
                new double[] {10, 11},
                List.of((r, n) -> 2 + 10 * (n - 1), (r, n) -> 3 + 11 * (n - 1)));
        coalescedInTurn(
                table,
                scope,
                "product",
                ReduceOp.PRODUCT,
                new double[] {1, 2},
                new double[] {3, 4},
                List.of((r, n) -> Math.pow(3, n - 1), (r, n) -> 2 * Math.pow(4, n - 1)));
        coalescedInTurn(
                table,
                scope,
                "min",
                ReduceOp.MIN,
                new double[] {1, 4},
                new double[] {2, 3},
                List.of((r, n) -> 1, (r, n) -> 3));
        coalescedInTurn(
                table,
                scope,
                "max",
                ReduceOp.MAX,
                new double[] {1, 4},
                new double[] {2, 3},
                List.of((r, n) -> 2, (r, n) -> 4));
    }

    private static void coalescedInTurn(
            Table<Body> table,
            Scope scope,
            String name,
            ReduceOp op,
            double[] own,
            double[] others,
            List<Value> expected) {
        boolean withComplex = op == ReduceOp.SUM;
        table.agrees(
                "test_all_reduce_coalesced" + scope.infix() + "_" + name,
                op + " of two tensors" + (withComplex ? " and a complex one" : ""),
                scope.on(
                        rank -> {
                            for (int turn = 0; turn < rank.n(); turn++) {
                                double[] values = rank.r() == turn ? own : others;
                                List<NDArray> tensors = new ArrayList<>();
                                tensors.add(rank.cube(FLOAT, turn + 1, values[0]));
                                tensors.add(rank.cube(FLOAT, turn + 1, values[1]));
                                if (withComplex) {
                                    tensors.add(complex(rank, turn));
                                }
                                rank.group().allReduceCoalesced(tensors, op).await();
                                rank.all(rank.of(expected.get(0)), tensors.get(0));
                                rank.all(rank.of(expected.get(1)), tensors.get(1));
                                if (withComplex) {
                                    complexSum(rank, tensors.get(2));
                                }
                            }
                        }));
    }

    private static void rows(Rank rank) {
        int all = rank.n() * (rank.n() + 1) / 2;
        List<NDArray> inputs =
                rank.each(to -> rank.full(to == rank.r() ? 2 : 10, to + 1, all, all));
        NDArray output = rank.full(-1, rank.r() + 1, all, all);
        rank.group().reduceScatter(output, inputs, ReduceOp.SUM).await();
        rank.all(2 + 10 * (rank.n() - 1), output);
    }

    private static void arange(Rank rank, boolean stacked) {
        double[] values = IntStream.range(0, 2 * rank.n()).asDoubleStream().toArray();
        Shape shape = stacked ? new Shape(rank.n(), 2) : new Shape(2L * rank.n());
        NDArray input = TestArrays.of(rank.manager(), LONG, shape, values);
        NDArray output = rank.full(LONG, new Shape(2), 0);
        rank.group().reduceScatterTensor(output, input, ReduceOp.SUM).await();
        int first = 2 * rank.r() * rank.n();
        Rank.same(new double[] {first, first + rank.n()}, TestArrays.values(output));
    }

    private static void dispatched(Table<Body> table) {
        table.agrees(
                "test_2_worker_continues_after_skip",
                "SUM of the scalar rank + 1",
                rank -> {
                    NDArray scalar = rank.full(LONG, new Shape(), rank.r() + 1);
                    sum(rank, scalar, ReduceOp.SUM);
                    rank.all(rank.n() * (rank.n() + 1) / 2.0, scalar);
                });
        table.agrees(
                "test_allreduce_coalesced",
                "one tensor of 10 x 10 ones in a coalesced call",
                coalesced(ReduceOp.SUM, List.of((r, n) -> 1), List.of((r, n) -> n)));
        for (ReduceOp op : ReduceOp.constants()) {
            table.agrees(
                    "test_reduceop_equal",
                    op + " equals itself and no other object",
                    rank -> {
                        assertEquals(op, op);
                        assertEquals(false, op.equals((Object) "abc"));
                        long equal = ReduceOp.constants().stream().filter(op::equals).count();
                        assertEquals(1, equal);
                    });
        }
        for (double factor : new double[] {1, 2}) {
            table.agrees(
                    "test_op_isinstance_of_reduceop",
                    "the factor of PREMUL_SUM is " + factor,
                    rank -> assertEquals(factor, ReduceOp.premulSum(factor).factor()));
        }
    }
}

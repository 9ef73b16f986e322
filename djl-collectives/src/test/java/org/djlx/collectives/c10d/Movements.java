// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.c10d;

import static org.djlx.collectives.c10d.Rank.least;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.Work;
import org.djlx.collectives.c10d.Expectation.Table;
import org.djlx.collectives.c10d.Rank.Body;
import org.djlx.nativeops.torch.ScalarType;

/** What PyTorch's tests expect of broadcasts, gathers, scatters and all-to-alls. */
final class Movements {

    private static final ScalarType FLOAT = ScalarType.FLOAT32;
    private static final ScalarType LONG = ScalarType.INT64;
    private static final ScalarType COMPLEX = ScalarType.COMPLEX64;
    private static final Shape ONE = new Shape(1);

    private Movements() {}

    static List<Expectation<Body>> rows() {
        Table<Body> gloo = Table.of("test_c10d_gloo.py");
        broadcasts(gloo);
        gathers(gloo);
        Table<Body> nccl = gloo.file("test_c10d_ops_nccl.py");
        operators(nccl);
        Table<Body> distributed = nccl.file("distributed_test.py");
        for (Scope scope : Scope.values()) {
            inGroups(distributed, scope);
        }
        whole(distributed);
        threads(distributed.file("test_multi_threaded_pg.py"));
        return gloo.rows();
    }

    private static void broadcasts(Table<Body> table) {
        String test = "test_broadcast_basics";
        table.agrees(
                test,
                "each root sends its rank as int64",
                rank -> {
                    for (int root = 0; root < rank.n(); root++) {
                        NDArray tensor = rank.full(LONG, ONE, rank.r());
                        rank.group().broadcast(tensor, root).await();
                        rank.all(root, tensor);
                    }
                });
        table.agrees(
                test,
                "root 0 sends 1.0; the result is the caller's tensor",
                rank -> {
                    NDArray tensor = rank.full(rank.r() + 1, 1);
                    Work work = rank.group().broadcast(tensor, 0);
                    work.await();
                    rank.all(1, work.result().get(0));
                });
        table.differs(
                test,
                "two tensors a rank and a root tensor: both get the root tensor",
                "one tensor a rank",
                "a rank has one device",
                rank -> {
                    NDArray tensor = rank.full(rank.r(), 1);
                    rank.group().broadcast(tensor, 0).await();
                    rank.all(0, tensor);
                });
        table.agrees(
                "test_broadcast_stress",
                "broadcasts of rank and number under way, each root in turn (1000; here 200)",
                rank -> {
                    List<Work> works = new ArrayList<>();
                    for (int i = 0; i < 200; i++) {
                        NDArray tensor = rank.full(LONG, ONE, i * rank.n() + rank.r());
                        works.add(rank.group().broadcast(tensor, i % rank.n()));
                    }
                    for (int i = 0; i < 200; i++) {
                        works.get(i).await();
                        rank.all(i * rank.n() + i % rank.n(), works.get(i).result().get(0));
                    }
                });
        table.agrees(
                "test_empty_tensors",
                "broadcast of a tensor without elements",
                rank -> {
                    NDArray empty = rank.full(0, 0);
                    rank.group().broadcast(empty, 0).await();
                    rank.all(0, empty);
                });
    }

    private static void gathers(Table<Body> table) {
        table.agrees("test_scatter_basics", "each root sends its rank", rank -> scatters(rank, 1));
        table.agrees(
                "test_scatter_stress",
                "scatters of rank + i from each root (1000; here 20)",
                rank -> scatters(rank, 20));
        table.agrees(
                "test_gather_basics",
                "each root gets the ranks in order",
                rank -> gathersFrom(rank, 1, rank.full(LONG, ONE, rank.r())));
        table.agrees(
                "test_gather_noncontiguous_input",
                "each root gets a column of each rank's matrix",
                rank -> gathersFrom(rank, 1, column(rank, rank.r())));
        table.agrees(
                "test_gather_stress",
                "gathers on each root (1000; here 20)",
                rank -> gathersFrom(rank, 20, rank.full(LONG, ONE, rank.r())));
        table.agrees(
                "test_allgather_basics",
                "each rank gets the ranks in order",
                rank -> allGathers(rank, rank.full(LONG, ONE, rank.r())));
        table.differs(
                "test_allgather_basics",
                "two and three tensors a rank",
                "`allGatherCoalesced` takes several tensors and one output for each",
                "a rank has one device",
                rank -> coalesced(rank, LONG, new int[] {1, 1, 1}));
        table.agrees(
                "test_allgather_noncontiguous_input",
                "each rank gets a column of each rank's matrix",
                rank -> allGathers(rank, column(rank, rank.r())));
        table.agrees(
                "test_allgather_stress",
                "all-gathers of rank + i under way (1000; here 200)",
                rank -> {
                    List<Work> works = new ArrayList<>();
                    for (int i = 0; i < 200; i++) {
                        NDArray input = rank.full(LONG, ONE, i + rank.r());
                        List<NDArray> outputs = rank.each(from -> rank.full(LONG, ONE, -1));
                        works.add(rank.group().allGather(outputs, input));
                    }
                    for (int i = 0; i < 200; i++) {
                        works.get(i).await();
                        for (int from = 0; from < rank.n(); from++) {
                            rank.all(i + from, works.get(i).result().get(from));
                        }
                    }
                });
        for (int size : new int[] {5, 10, 15}) {
            table.agrees(
                    "test_allgather_into_tensor_coalesced",
                    "%d x %d as the second of two tensors".formatted(size, size),
                    rank -> {
                        List<NDArray> inputs = List.of(rank.full(1, 2), rank.full(3, size, size));
                        long rows = (long) rank.n() * size;
                        List<NDArray> outputs =
                                List.of(rank.full(0, 2L * rank.n()), rank.full(0, rows, size));
                        rank.group().allGatherCoalesced(outputs, inputs).await();
                        rank.all(3, outputs.get(1));
                    });
        }
        table.agrees(
                "test_allgather_coalesced_async",
                "two tensors of rank + i a call",
                rank -> coalesced(rank, LONG, new int[] {1, 1}));
    }

    private static NDArray column(Rank rank, double value) {
        return rank.full(LONG, new Shape(2, 2), value).get(":, 0");
    }

    private static void scatters(Rank rank, int rounds) {
        for (int i = 0; i < rounds; i++) {
            for (int root = 0; root < rank.n(); root++) {
                int sent = i + root;
                NDArray output = rank.full(LONG, ONE, -1);
                List<NDArray> inputs =
                        rank.r() == root ? rank.each(to -> rank.full(LONG, ONE, sent)) : null;
                rank.group().scatter(output, inputs, root).await();
                rank.all(sent, output);
            }
        }
    }

    private static void gathersFrom(Rank rank, int rounds, NDArray input) {
        for (int i = 0; i < rounds; i++) {
            for (int root = 0; root < rank.n(); root++) {
                List<NDArray> outputs = rank.r() == root ? like(rank, input) : null;
                rank.group().gather(outputs, input, root).await();
                if (rank.r() == root) {
                    ranks(rank, outputs);
                }
            }
        }
    }

    private static List<NDArray> like(Rank rank, NDArray input) {
        Shape shape = new Shape(input.getShape().getShape());
        return rank.each(from -> rank.full(LONG, shape, -1));
    }

    private static void ranks(Rank rank, List<NDArray> outputs) {
        for (int from = 0; from < rank.n(); from++) {
            rank.all(from, outputs.get(from));
        }
    }

    private static void allGathers(Rank rank, NDArray input) {
        List<NDArray> outputs = like(rank, input);
        rank.group().allGather(outputs, input).await();
        ranks(rank, outputs);
    }

    /** Gathers a tensor of each number of dimensions, whose elements are rank plus number. */
    private static void coalesced(Rank rank, ScalarType type, int[] dimensions) {
        List<NDArray> inputs = new ArrayList<>();
        List<NDArray> outputs = new ArrayList<>();
        for (int dimension : dimensions) {
            long[] sizes = new long[dimension];
            Arrays.fill(sizes, dimension);
            inputs.add(rank.full(type, new Shape(sizes), rank.r() + dimension));
            outputs.add(rank.full(type, new Shape(rank.n()).addAll(new Shape(sizes)), -1));
        }
        rank.group().allGatherCoalesced(outputs, inputs).await();
        for (int i = 0; i < dimensions.length; i++) {
            for (int from = 0; from < rank.n(); from++) {
                rank.all(from + dimensions[i], outputs.get(i).get(from));
            }
        }
    }

    private static void operators(Table<Body> table) {
        table.agrees(
                "test_broadcast_ops",
                "root i sends a square of i + 1",
                rank -> {
                    for (int root = 0; root < rank.n(); root++) {
                        double value = rank.r() == root ? root + 1 : -1;
                        NDArray tensor = rank.full(value, root + 1, root + 1);
                        rank.group().broadcast(tensor, root).await();
                        rank.all(root + 1, tensor);
                    }
                });
        table.agrees(
                "test_allgather_ops",
                "2 x 2 of 2 from all ranks",
                rank -> {
                    List<NDArray> outputs = rank.each(from -> rank.full(-1, 2, 2));
                    rank.group().allGather(outputs, rank.full(2, 2, 2)).await();
                    outputs.forEach(output -> rank.all(2, output));
                });
        table.agrees(
                "test_allgather_base_ops",
                "the ranks in one tensor of int64",
                rank -> {
                    NDArray output = rank.full(LONG, new Shape(rank.n()), -1);
                    rank.group()
                            .allGatherIntoTensor(output, rank.full(LONG, ONE, rank.r()))
                            .await();
                    double[] ranks = IntStream.range(0, rank.n()).asDoubleStream().toArray();
                    Rank.same(ranks, TestArrays.values(output));
                });
        table.agrees(
                "test_gather_ops",
                "each root gets the ranks",
                rank -> gathersFrom(rank, 1, rank.full(LONG, ONE, rank.r())));
        table.agrees(
                "test_scatter_ops",
                "each root sends rank r the number r",
                rank -> {
                    for (int root = 0; root < rank.n(); root++) {
                        NDArray output = rank.full(LONG, ONE, -1);
                        List<NDArray> inputs =
                                rank.r() == root ? rank.each(to -> rank.full(LONG, ONE, to)) : null;
                        rank.group().scatter(output, inputs, root).await();
                        rank.all(rank.r(), output);
                    }
                });
        table.agrees(
                "test_all_gather_v",
                "rank r gives r elements of r",
                rank -> {
                    List<NDArray> outputs = rank.each(from -> rank.full(0, from));
                    rank.group().allGather(outputs, rank.full(rank.r(), rank.r())).await();
                    ranks(rank, outputs);
                });
        table.agrees(
                "test_empty_tensors",
                "allGather of tensors without elements",
                rank -> {
                    List<NDArray> outputs = rank.each(from -> rank.full(0, 0));
                    rank.group().allGather(outputs, rank.full(0, 0)).await();
                    outputs.forEach(output -> rank.all(0, output));
                });
    }

    /** The numbers that test_broadcast sends in each type. */
    private static final Map<ScalarType, Double> NUMBERS =
            Map.of(
                    FLOAT,
                    -1e-10,
                    ScalarType.FLOAT64,
                    -1e-100,
                    ScalarType.FLOAT16,
                    -0.1,
                    ScalarType.INT8,
                    -2.0,
                    ScalarType.UINT8,
                    129.0,
                    ScalarType.INT32,
                    -1e5,
                    LONG,
                    -1e15);

    private static void inGroups(Table<Body> table, Scope scope) {
        String infix = scope.infix();
        for (ScalarType type : ScalarType.values()) {
            if (NUMBERS.containsKey(type)) {
                double number = NUMBERS.get(type);
                table.agrees(
                        "test_broadcast" + infix,
                        "%s in %s from each root".formatted(number, type),
                        scope.on(rank -> broadcast(rank, type, number)));
            }
        }
        table.agrees(
                "test_scatter" + infix,
                "rank r gets a cube of r from each root",
                scope.on(rank -> scatterCubes(rank, FLOAT)));
        table.agrees(
                "test_gather" + infix,
                "each root gets a cube from each rank",
                scope.on(Movements::gatherCubes));
        table.agrees(
                "test_all_gather" + infix,
                "cubes of several sizes from each rank",
                scope.on(rank -> allGatherCubes(rank, FLOAT)));
        table.agrees(
                "test_all_gather_coalesced" + (scope == Scope.GLOBAL ? "_simple" : infix),
                "one to three tensors of as many dimensions",
                scope.on(rank -> coalescedByDimensions(rank, FLOAT)));
        table.agrees(
                "test_all_to_all_single_equal_split" + infix,
                "a row from each rank",
                scope.on(rank -> equalSplit(rank, FLOAT)));
        table.agrees(
                "test_all_to_all_single_unequal_split" + infix,
                "rank r gets r + 1 rows from each rank",
                scope.on(rank -> unequalSplit(rank, FLOAT)));
        table.agrees(
                "test_all_to_all" + infix,
                "rank r gets a tensor of r + 1 rows from each rank",
                scope.on(rank -> allToAll(rank, FLOAT)));
    }

    private static void broadcast(Rank rank, ScalarType type, double number) {
        for (int root = 0; root < rank.n(); root++) {
            NDArray tensor = rank.cube(type, root + 1, rank.r() == root ? number : 1);
            rank.group().broadcast(tensor, root).await();
            rank.all(number, tensor);
        }
    }

    private static void scatterCubes(Rank rank, ScalarType type) {
        for (int root = 0; root < rank.n(); root++) {
            int size = root + 1;
            List<NDArray> inputs =
                    rank.r() == root ? rank.each(to -> rank.cube(type, size, to)) : null;
            NDArray output = rank.cube(type, size, -1);
            rank.group().scatter(output, inputs, root).await();
            rank.all(rank.r(), output);
        }
    }

    private static void gatherCubes(Rank rank) {
        for (int root = 0; root < rank.n(); root++) {
            int size = root + 1;
            List<NDArray> outputs =
                    rank.r() == root ? rank.each(from -> rank.cube(FLOAT, size, -1)) : null;
            rank.group().gather(outputs, rank.cube(FLOAT, size, rank.r()), root).await();
            if (rank.r() == root) {
                ranks(rank, outputs);
            }
        }
    }

    private static void allGatherCubes(Rank rank, ScalarType type) {
        for (int i = 1; i <= rank.n(); i++) {
            int size = i;
            List<NDArray> outputs = rank.each(from -> rank.cube(type, size, -1));
            rank.group().allGather(outputs, rank.cube(type, size, rank.r())).await();
            ranks(rank, outputs);
        }
    }

    private static void coalescedByDimensions(Rank rank, ScalarType type) {
        for (int most = 1; most < 4; most++) {
            coalesced(rank, type, IntStream.rangeClosed(1, most).toArray());
        }
    }

    private static void equalSplit(Rank rank, ScalarType type) {
        Shape square = new Shape(rank.n(), rank.n());
        NDArray output = rank.full(type, square, -1);
        rank.group().allToAllSingle(output, rank.full(type, square, rank.r())).await();
        for (int from = 0; from < rank.n(); from++) {
            rank.all(from, output.get(from));
        }
    }

    private static void unequalSplit(Rank rank, ScalarType type) {
        int n = rank.n();
        int own = rank.r() + 1;
        long[] inputSplits = IntStream.rangeClosed(1, n).asLongStream().toArray();
        long[] outputSplits = new long[n];
        Arrays.fill(outputSplits, own);
        NDArray input = rank.full(type, new Shape(n * (n + 1) / 2, n), rank.r());
        NDArray output = rank.full(type, new Shape((long) own * n, n), 1);
        rank.group().allToAllSingle(output, input, outputSplits, inputSplits).await();
        for (int from = 0; from < n; from++) {
            rank.all(from, output.get(from * own + ":" + (from + 1) * own));
        }
    }

    private static void allToAll(Rank rank, ScalarType type) {
        List<NDArray> inputs =
                rank.each(to -> rank.full(type, new Shape(to + 1, rank.n()), rank.r()));
        List<NDArray> outputs =
                rank.each(from -> rank.full(type, new Shape(rank.r() + 1, rank.n()), 1));
        rank.group().allToAll(outputs, inputs).await();
        ranks(rank, outputs);
    }

    private static void whole(Table<Body> table) {
        table.agrees(
                "test_scatter_complex",
                "complex cubes",
                least(2, rank -> scatterCubes(rank, COMPLEX)));
        table.agrees(
                "test_all_gather_complex",
                "complex cubes",
                least(2, rank -> allGatherCubes(rank, COMPLEX)));
        table.agrees(
                "test_all_gather_coalesced_complex",
                "complex tensors of several dimensions",
                least(2, rank -> coalescedByDimensions(rank, COMPLEX)));
        table.agrees(
                "test_all_to_all_single_equal_split_complex",
                "complex rows",
                least(2, rank -> equalSplit(rank, COMPLEX)));
        table.agrees(
                "test_all_to_all_single_unequal_split_complex",
                "complex rows",
                least(2, rank -> unequalSplit(rank, COMPLEX)));
        table.agrees(
                "test_all_to_all_complex",
                "complex tensors",
                least(2, rank -> allToAll(rank, COMPLEX)));
        table.agrees(
                "test_all_gather_v_cuda",
                "rank r gives r + 1 rows",
                rank -> {
                    int all = rank.n() * (rank.n() + 1) / 2;
                    List<NDArray> outputs = rank.each(from -> rank.full(-1, from + 1, all, all));
                    NDArray input = rank.full(2, rank.r() + 1, all, all);
                    rank.group().allGather(outputs, input).await();
                    outputs.forEach(output -> rank.all(2, output));
                });
        for (boolean stacked : new boolean[] {false, true}) {
            table.agrees(
                    "test_all_gather_into_" + (stacked ? "stack" : "cat") + "_tensor_cuda",
                    "2 x 2 of each rank, " + (stacked ? "stacked" : "concatenated"),
                    rank -> {
                        NDArray output =
                                stacked
                                        ? rank.full(-1, rank.n(), 2, 2)
                                        : rank.full(-1, 2L * rank.n(), 2);
                        NDArray input = rank.full(rank.r(), 2, 2);
                        rank.group().allGatherIntoTensor(output, input).await();
                        for (int from = 0; from < rank.n(); from++) {
                            String rows = 2 * from + ":" + 2 * (from + 1);
                            rank.all(from, stacked ? output.get(from) : output.get(rows));
                        }
                    });
        }
        table.agrees(
                "test_all_gather_coalesced_with_empty",
                "tensors without elements beside others",
                rank -> {
                    List<NDArray> inputs =
                            List.of(
                                    rank.full(rank.r(), 2, 2),
                                    rank.full(0, 0),
                                    rank.full(rank.r() + 1, 3, 3),
                                    rank.full(0, 0));
                    List<NDArray> outputs =
                            List.of(
                                    rank.full(-1, rank.n(), 2, 2),
                                    rank.full(-1, 0),
                                    rank.full(-1, rank.n(), 3, 3),
                                    rank.full(-1, 0));
                    rank.group().allGatherCoalesced(outputs, inputs).await();
                    for (int from = 0; from < rank.n(); from++) {
                        rank.all(from, outputs.get(0).get(from));
                        rank.all(from + 1, outputs.get(2).get(from));
                    }
                });
        table.agrees(
                "test_scatter_checks",
                "only the root passes the list",
                rank -> {
                    NDArray output = rank.full(-1, 1);
                    List<NDArray> inputs = rank.r() == 0 ? rank.each(to -> rank.full(to, 1)) : null;
                    rank.group().scatter(output, inputs, 0).await();
                    rank.all(rank.r(), output);
                });
        table.agrees(
                "test_gather_checks",
                "only the root passes the list",
                rank -> {
                    List<NDArray> outputs =
                            rank.r() == 0 ? rank.each(from -> rank.full(-1, 1)) : null;
                    rank.group().gather(outputs, rank.full(rank.r(), 1), 0).await();
                    if (rank.r() == 0) {
                        ranks(rank, outputs);
                    }
                });
    }

    private static void threads(Table<Body> table) {
        table.agrees(
                "test_allgather",
                "3 x 3 of each rank",
                rank -> {
                    List<NDArray> outputs = rank.each(from -> rank.full(-1, 3, 3));
                    rank.group().allGather(outputs, rank.full(rank.r(), 3, 3)).await();
                    ranks(rank, outputs);
                });
        table.agrees(
                "test_broadcast",
                "3 x 3 from each rank",
                rank -> {
                    for (int root = 0; root < rank.n(); root++) {
                        NDArray tensor = rank.full(rank.r(), 3, 3);
                        rank.group().broadcast(tensor, root).await();
                        rank.all(root, tensor);
                    }
                });
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.c10d;

import static org.djlx.collectives.c10d.Rank.cpu;
import static org.djlx.collectives.c10d.Rank.least;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.nio.FloatBuffer;
import java.util.Collections;
import java.util.List;
import java.util.function.BiConsumer;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.c10d.Expectation.Table;
import org.djlx.collectives.c10d.Rank.Body;
import org.djlx.nativeops.torch.ScalarType;

/**
 * What PyTorch's tests expect of wrong arguments: refused on each rank, before anything is sent.
 */
final class Refusals {

    private static final String ONE_DEVICE = "a rank has one device";

    private Refusals() {}

    /** The tensors of PyTorch's tests: t1 and others of another type and another shape. */
    private record Tensors(Rank rank, NDArray one, NDArray doubles, NDArray two) {

        static Tensors of(Rank rank) {
            return new Tensors(
                    rank,
                    rank.full(0, 1),
                    rank.full(ScalarType.FLOAT64, new Shape(1), 0),
                    rank.full(0, 2));
        }

        List<NDArray> list(NDArray tensor, int more) {
            return Collections.nCopies(Math.max(0, rank.n() + more), tensor);
        }
    }

    private static Body refused(BiConsumer<ProcessGroup, Tensors> call) {
        return rank -> rank.refuses(() -> call.accept(rank.group(), Tensors.of(rank)));
    }

    static List<Expectation<Body>> rows() {
        Table<Body> gloo = Table.of("test_c10d_gloo.py");
        roots(gloo);
        reductions(gloo);
        scatters(gloo);
        gathers(gloo);
        allGathers(gloo);
        nccl(gloo.file("test_c10d_ops_nccl.py"));
        gloo.file("test_c10d_common.py")
                .differs(
                        "test_all_to_all_single",
                        "an input that is not contiguous is refused",
                        "accepted",
                        "tensors that are not contiguous are copied",
                        rank -> {
                            NDArray input = rank.full(rank.r(), 2, rank.n()).transpose();
                            NDArray output = rank.full(-1, rank.n(), 2);
                            rank.group().allToAllSingle(output, input).await();
                            for (int from = 0; from < rank.n(); from++) {
                                rank.all(from, output.get(from));
                            }
                        });
        return gloo.rows();
    }

    private interface Rooted {
        void call(ProcessGroup group, Tensors tensors, int root);
    }

    private static void roots(Table<Body> table) {
        roots(table, "broadcast", (group, t, root) -> group.broadcast(t.one, root));
        roots(table, "reduce", (group, t, root) -> group.reduce(t.one, root, ReduceOp.SUM));
        roots(table, "scatter", (group, t, root) -> group.scatter(t.one, null, root));
        roots(table, "gather", (group, t, root) -> group.gather(null, t.one, root));
    }

    private static void roots(Table<Body> table, String name, Rooted rooted) {
        String test = "test_" + name + "_checks";
        table.agrees(test, "root -1 is refused", refused((group, t) -> rooted.call(group, t, -1)));
        table.agrees(
                test,
                "root n is refused",
                refused((group, t) -> rooted.call(group, t, t.rank.n())));
    }

    private static void reductions(Table<Body> table) {
        for (String says :
                List.of(
                        "root tensor -1 is refused",
                        "root tensor 1 of one is refused",
                        "two tensors of different types are refused",
                        "two tensors of different sizes are refused")) {
            table.differs(
                    "test_broadcast_checks",
                    says,
                    "a call takes one tensor",
                    ONE_DEVICE,
                    refused((group, t) -> group.broadcast(null, 0)));
        }
        table.agrees(
                "test_allreduce_checks",
                "a call without a tensor is refused",
                refused((group, t) -> group.allReduce(null, ReduceOp.SUM)));
        for (String what : List.of("types", "sizes")) {
            table.differs(
                    "test_allreduce_checks",
                    "two tensors of different " + what + " are refused",
                    "`allReduceCoalesced` reduces tensors of different types and sizes",
                    "one operation for each element type",
                    rank -> {
                        Tensors t = Tensors.of(rank);
                        NDArray other = what.equals("types") ? t.doubles : t.two;
                        rank.group()
                                .allReduceCoalesced(List.of(t.one, other), ReduceOp.SUM)
                                .await();
                        rank.all(0, other);
                    });
        }
        String coalesced = "test_allreduce_coalesced_checks";
        table.agrees(
                coalesced,
                "an empty list is refused",
                refused((group, t) -> group.allReduceCoalesced(List.of(), ReduceOp.SUM)));
        table.differs(
                coalesced,
                "tensors of different types are refused",
                "accepted",
                "one operation for each element type",
                rank -> {
                    Tensors t = Tensors.of(rank);
                    List<NDArray> both = List.of(t.one, t.doubles);
                    rank.group().allReduceCoalesced(both, ReduceOp.MAX).await();
                    rank.all(0, t.doubles);
                });
        for (String test :
                List.of(
                        "test_allreduce_coalesced_checks",
                        "test_sparse_allreduce_checks",
                        "test_sparse_allreduce_basics")) {
            table.differs(
                    test,
                    "gloo sums sparse tensors, but not beside dense ones",
                    "sparse tensors are refused",
                    "no backend has them; make them dense first",
                    cpu(
                            rank -> {
                                FloatBuffer values = FloatBuffer.wrap(new float[] {1});
                                long[][] indices = {{0}, {0}};
                                NDArray sparse =
                                        rank.manager().createCoo(values, indices, new Shape(2, 2));
                                rank.refuses(() -> rank.group().allReduce(sparse, ReduceOp.SUM));
                            }));
        }
    }

    private static void scatters(Table<Body> table) {
        String test = "test_scatter_checks";
        table.agrees(
                test,
                "no output is refused",
                refused((group, t) -> group.scatter(null, t.list(t.one, 0), t.rank.r())));
        table.differs(
                test,
                "two outputs are refused",
                "a call takes one output",
                ONE_DEVICE,
                refused((group, t) -> group.scatter(null, null, 0)));
        table.agrees(
                test,
                "no list on the root is refused",
                refused((group, t) -> group.scatter(t.one, null, t.rank.r())));
        table.agrees(
                test,
                "a list of n - 1 tensors is refused",
                refused((group, t) -> group.scatter(t.one, t.list(t.one, -1), t.rank.r())));
        table.agrees(
                test,
                "a list of n + 1 tensors is refused",
                refused((group, t) -> group.scatter(t.one, t.list(t.one, 1), t.rank.r())));
        table.agrees(
                test,
                "a list of another type is refused",
                refused((group, t) -> group.scatter(t.one, t.list(t.doubles, 0), t.rank.r())));
        table.agrees(
                test,
                "a list of another size is refused",
                refused((group, t) -> group.scatter(t.one, t.list(t.two, 0), t.rank.r())));
        table.agrees(
                test,
                "a list on a rank that is not the root is refused",
                least(
                        2,
                        refused(
                                (group, t) ->
                                        group.scatter(t.one, t.list(t.one, 0), t.rank.next()))));
    }

    private static void gathers(Table<Body> table) {
        String test = "test_gather_checks";
        table.agrees(
                test,
                "no input is refused",
                refused((group, t) -> group.gather(t.list(t.one, 0), null, t.rank.r())));
        table.differs(
                test,
                "two inputs are refused",
                "a call takes one input",
                ONE_DEVICE,
                refused((group, t) -> group.gather(null, null, 0)));
        table.agrees(
                test,
                "no list on the root is refused",
                refused((group, t) -> group.gather(null, t.one, t.rank.r())));
        table.agrees(
                test,
                "a list of n - 1 tensors is refused",
                refused((group, t) -> group.gather(t.list(t.one, -1), t.one, t.rank.r())));
        table.agrees(
                test,
                "a list of n + 1 tensors is refused",
                refused((group, t) -> group.gather(t.list(t.one, 1), t.one, t.rank.r())));
        table.agrees(
                test,
                "a list of another type is refused",
                refused((group, t) -> group.gather(t.list(t.doubles, 0), t.one, t.rank.r())));
        table.agrees(
                test,
                "a list of another size is refused",
                refused((group, t) -> group.gather(t.list(t.two, 0), t.one, t.rank.r())));
        table.agrees(
                test,
                "a list on a rank that is not the root is refused",
                least(
                        2,
                        refused(
                                (group, t) ->
                                        group.gather(t.list(t.one, 0), t.one, t.rank.next()))));
    }

    private static void allGathers(Table<Body> table) {
        String test = "test_allgather_checks";
        table.agrees(
                test,
                "no input is refused",
                refused((group, t) -> group.allGather(t.list(t.one, 0), null)));
        table.agrees(
                test, "no outputs are refused", refused((g, t) -> g.allGather(List.of(), t.one)));
        table.agrees(
                test,
                "n - 1 outputs are refused",
                refused((group, t) -> group.allGather(t.list(t.one, -1), t.one)));
        table.agrees(
                test,
                "n + 1 outputs are refused",
                refused((group, t) -> group.allGather(t.list(t.one, 1), t.one)));
        table.agrees(
                test,
                "outputs of another type are refused",
                refused((group, t) -> group.allGather(t.list(t.doubles, 0), t.one)));
        table.agrees(
                test,
                "an output of another size than the own input is refused",
                refused((group, t) -> group.allGather(t.list(t.two, 0), t.one)));
        table.differs(
                test,
                "outputs of different sizes are refused by gloo",
                "accepted, if each has the size of its rank's input",
                "NCCL accepts them, too: test_all_gather_v",
                rank -> {
                    List<NDArray> outputs = rank.each(from -> rank.full(-1, from % 2 + 1));
                    rank.group().allGather(outputs, rank.full(7, rank.r() % 2 + 1)).await();
                    outputs.forEach(output -> rank.all(7, output));
                });
        String coalesced = "test_allgather_coalesced_checks";
        table.agrees(
                coalesced,
                "an output of another size is refused",
                refused(
                        (group, t) ->
                                group.allGatherCoalesced(
                                        List.of(t.rank.full(0, t.rank.n() + 1)), List.of(t.one))));
        table.agrees(
                coalesced,
                "an output of another type is refused",
                refused(
                        (group, t) ->
                                group.allGatherCoalesced(
                                        List.of(
                                                t.rank.full(
                                                        ScalarType.FLOAT64,
                                                        new Shape(t.rank.n()),
                                                        0)),
                                        List.of(t.one))));
        table.agrees(
                coalesced,
                "more outputs than inputs are refused",
                refused(
                        (group, t) -> {
                            NDArray output = t.rank.full(0, t.rank.n());
                            NDArray another = t.rank.full(0, t.rank.n());
                            group.allGatherCoalesced(List.of(output, another), List.of(t.one));
                        }));
    }

    private static void nccl(Table<Body> table) {
        table.agrees(
                "test_allgather_base_basics",
                "an output of n + 1 elements is refused",
                refused((g, t) -> g.allGatherIntoTensor(t.rank.full(0, t.rank.n() + 1), t.one)));
        table.agrees(
                "test_allgather_base_basics",
                "an output of another type is refused",
                refused(
                        (group, t) -> {
                            Shape shape = new Shape(t.rank.n());
                            NDArray output = t.rank.full(ScalarType.INT64, shape, 0);
                            group.allGatherIntoTensor(output, t.one);
                        }));
        table.agrees(
                "test_reduce_scatter_base_basics",
                "an output of n + 1 elements is refused",
                refused(
                        (group, t) -> {
                            NDArray output = t.rank.full(0, t.rank.n() + 1);
                            group.reduceScatterTensor(output, t.one, ReduceOp.SUM);
                        }));
        table.agrees(
                "test_reduce_scatter_base_basics",
                "an output of another type is refused",
                refused(
                        (group, t) -> {
                            NDArray output = t.rank.full(ScalarType.INT64, new Shape(1), 0);
                            NDArray input = t.rank.full(0, t.rank.n());
                            group.reduceScatterTensor(output, input, ReduceOp.SUM);
                        }));
        for (String test : List.of("test_gather_checks", "test_scatter_checks")) {
            boolean gathers = test.contains("gather");
            for (int more : new int[] {-1, 0}) {
                table.agrees(
                        test,
                        "root " + (more < 0 ? "-1" : "n") + " is refused",
                        refused(
                                (group, t) -> {
                                    int root = more < 0 ? -1 : t.rank.n();
                                    if (gathers) {
                                        group.gather(t.list(t.one, 0), t.one, root);
                                    } else {
                                        group.scatter(t.one, t.list(t.one, 0), root);
                                    }
                                }));
            }
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.torchscript;

import ai.djl.ndarray.NDArray;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.function.BiFunction;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.fusedops.FusedOps;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchArguments;
import org.djlx.nativeops.torch.TorchLibrary;

/**
 * Registers operators over a group with libtorch, for TorchScript models to call:
 *
 * <pre>
 * torch.ops.cuda_p2p.all_reduce(Tensor input, *, int reduce_op=0) -> Tensor
 * torch.ops.cuda_p2p.all_gather_matmul(Tensor A_shard, Tensor B, int gather_dim) -> Tensor
 * torch.ops.cuda_p2p.matmul_reduce_scatter(
 *         Tensor A, Tensor B, int scatter_dim, *, int reduce_op=0) -> Tensor
 * </pre>
 *
 * <ul>
 *   <li>{@code all_reduce} returns a new tensor, like PyTorch's functional collectives. The other
 *       operators are {@link FusedOps#allGatherMatmul} and {@link FusedOps#matmulReduceScatter}.
 *   <li>{@code reduce_op} has c10d's numbers: 0 SUM, 1 AVG, 2 PRODUCT, 3 MIN, 4 MAX, 5 BAND, 6 BOR,
 *       7 BXOR. {@code matmul_reduce_scatter} takes 0 and 1.
 *   <li>{@code all_gather_matmul} takes one B, because libtorch's stable ABI passes no lists of
 *       tensors. For several Bs, save the model with the Bs side by side ({@code torch.cat(bs, 1)})
 *       and split the product by columns: A is then gathered once, as with a list.
 *   <li>The operators work with any backend, on the CPU too, despite the namespace.
 * </ul>
 *
 * <p>Each rank loads its own model after {@link #register}, and runs it within {@link #call}, which
 * sets the group of its operators:
 *
 * <pre>{@code
 * TorchOperators.register();
 * RankPool<NDList, NDList> pool =
 *         RankPool.start(
 *                 "mlp",
 *                 ProcessGroups.local(2),
 *                 group -> {
 *                     Predictor<NDList, NDList> predictor = load(group).newPredictor();
 *                     return input -> TorchOperators.call(group, () -> predictor.predict(input));
 *                 });
 * NDList output = pool.submit(input).get();
 * }</pre>
 *
 * <p>{@link TorchScriptLoader} does this for a directory with a file for each rank.
 *
 * <p>Rules:
 *
 * <ul>
 *   <li>All ranks call the same operators in the same order. libtorch assumes that operators have
 *       no side effects, and omits an operator if its result is not used. Results must therefore be
 *       used on all ranks or on none.
 *   <li>The operators have no gradient: with gradient mode on, an input that requires a gradient is
 *       refused.
 *   <li>Refused arguments and failures of the group end the model's call. {@link #call} throws
 *       them.
 *   <li>Operators fail in code that a model forks ({@code torch.jit.fork}), because this code runs
 *       on libtorch's threads.
 * </ul>
 */
public final class TorchOperators {

    private static final String NAMESPACE = "cuda_p2p";
    private static final List<ReduceOp> REDUCE_OPS = ReduceOp.constants(); // in c10d's order

    private static final ThreadLocal<ProcessGroup> GROUP = new ThreadLocal<>();

    private static boolean registered; // guarded by the class

    private TorchOperators() {}

    /**
     * Registers the operators with libtorch, for the life of the process. Idempotent. Call it
     * before loading models that use the operators.
     *
     * @throws ai.djl.engine.EngineException if another library has registered operators with these
     *     names
     * @throws UnsupportedOperationException if {@link TorchLibrary#define} is not supported
     */
    public static synchronized void register() {
        if (registered) {
            return;
        }
        define(
                "all_reduce(Tensor input, *, int reduce_op=0) -> Tensor",
                1,
                (group, arguments) ->
                        allReduce(group, arguments.tensor(0), reduceOp(arguments.integer(1))));
        define(
                "all_gather_matmul(Tensor A_shard, Tensor B, int gather_dim) -> Tensor",
                2,
                (group, arguments) ->
                        FusedOps.allGatherMatmul(
                                        arguments.tensor(0),
                                        List.of(arguments.tensor(1)),
                                        Math.toIntExact(arguments.integer(2)),
                                        group,
                                        false)
                                .outputs()
                                .get(0));
        define(
                "matmul_reduce_scatter(Tensor A, Tensor B, int scatter_dim, *, int reduce_op=0)"
                        + " -> Tensor",
                2,
                (group, arguments) ->
                        FusedOps.matmulReduceScatter(
                                arguments.tensor(0),
                                arguments.tensor(1),
                                reduceOp(arguments.integer(3)),
                                Math.toIntExact(arguments.integer(2)),
                                group));
        registered = true;
    }

    private static void define(
            String schema, int tensors, BiFunction<ProcessGroup, TorchArguments, NDArray> kernel) {
        String name = NAMESPACE + "::" + schema.substring(0, schema.indexOf('('));
        TorchLibrary.define(
                NAMESPACE + "::" + schema,
                arguments -> {
                    ProcessGroup group = GROUP.get();
                    if (group == null) {
                        throw new IllegalStateException(
                                name
                                        + " was called on a thread without a group: run the model"
                                        + " within TorchOperators.call");
                    }
                    return call(name, group, arguments, tensors, kernel);
                });
    }

    private static NDArray call(
            String name,
            ProcessGroup group,
            TorchArguments arguments,
            int tensors,
            BiFunction<ProcessGroup, TorchArguments, NDArray> kernel) {
        NDArray[] arrays = new NDArray[tensors];
        for (int i = 0; i < tensors; i++) {
            arrays[i] = arguments.tensor(i);
        }
        try {
            for (NDArray array : arrays) {
                if (NoGradient.isRecorded(array)) {
                    throw new IllegalArgumentException(
                            "an input requires a gradient, but the operator has none: run the model"
                                    + " without gradients");
                }
            }
            return NoGradient.get(() -> kernel.apply(group, arguments));
        } catch (IllegalArgumentException | ArithmeticException e) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s on rank %d of %d, with tensors of shapes %s: %s",
                            name,
                            group.rank(),
                            group.worldSize(),
                            Arrays.stream(arrays).map(NDArray::getShape).toList(),
                            e.getMessage()),
                    e);
        }
    }

    private static NDArray allReduce(ProcessGroup group, NDArray input, ReduceOp op) {
        ScalarType type = Torch.scalarType(input);
        NDArray result = Torch.cast(input, type); // a contiguous copy
        group.allReduce(result, op, false);
        return result;
    }

    private static ReduceOp reduceOp(long number) {
        if (number < 0 || number >= REDUCE_OPS.size()) {
            throw new IllegalArgumentException(
                    "reduce_op is " + number + ", but must be 0 to " + (REDUCE_OPS.size() - 1));
        }
        return REDUCE_OPS.get((int) number);
    }

    /**
     * Runs code that calls a rank's model, on the calling thread. If an operator fails, throws the
     * operator's exception and adds the code's exception as suppressed. May be nested.
     *
     * @throws IllegalArgumentException if an operator has refused its arguments, before anything
     *     was sent
     * @throws org.djlx.collectives.CollectiveException if the group fails
     */
    public static <T> T call(ProcessGroup group, Callable<T> code) throws Exception {
        if (group == null || code == null) {
            throw new IllegalArgumentException(
                    "TorchOperators.call: the " + (group == null ? "group" : "code") + " is null");
        }
        ProcessGroup outer = GROUP.get();
        GROUP.set(group);
        try {
            return TorchLibrary.call(code);
        } finally {
            if (outer == null) {
                GROUP.remove();
            } else {
                GROUP.set(outer);
            }
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.gradient.DifferentiableCollectives;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.collectives.spi.OpType;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.internal.allgathermatmul.AllGatherMatmul;
import org.djlx.fusedops.internal.allgathermatmul.AllGatherMatmul.Output;
import org.djlx.fusedops.internal.allreducermsnorm.AllReduceRmsNormPlan;
import org.djlx.fusedops.internal.alltoall.DeviceAllToAll;
import org.djlx.fusedops.internal.gradient.FusedGradients;
import org.djlx.fusedops.internal.matmulallreduce.MatmulAllReduce;
import org.djlx.fusedops.internal.matmulreducescatter.MatmulReduceScatter;
import org.djlx.fusedops.internal.path.Fallbacks;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.OperandChecks;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.pipelined.CallerPipeline;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Tensor-parallel operators that fuse a matmul with the collective before or after it, like
 * PyTorch's {@code torch.ops.symm_mem.fused_all_gather_matmul} and {@code
 * fused_matmul_reduce_scatter}; and {@link #allReduceRmsNorm}, which documents its own rules.
 *
 * <p>An MLP, with tokens divided among the ranks, W1 split by columns and W2 by rows:
 *
 * <pre>{@code
 * GatheredMatmul up = FusedOps.allGatherMatmul(x, List.of(w1), 0, group);
 * NDArray hidden = Activation.gelu(up.outputs().get(0));
 * NDArray y = FusedOps.matmulReduceScatter(hidden, w2, ReduceOp.SUM, 0, group);
 * }</pre>
 *
 * <p><b>Arrays.</b>
 *
 * <ul>
 *   <li>PyTorch arrays of float32, float64, float16 or bfloat16, on the device of the group. They
 *       need not be contiguous. {@link #allGatherScaledMatmul} and {@link
 *       #scaledMatmulReduceScatter} take float8, and document their own rules.
 *   <li>The gathered A has the same shape on all ranks, and so has the scattered product.
 *   <li>Results belong to the manager of A.
 * </ul>
 *
 * <p><b>Calls.</b>
 *
 * <ul>
 *   <li>All ranks of the group call the same operators in the same order. An operator is one
 *       operation of the group, except that {@code matmulAllReduce} is an all-reduce for each of
 *       its pieces, and that the scales of rows in float8 are gathered before.
 *   <li>On the CPU a call returns when the result is computed. On a GPU it returns when the
 *       operator is enqueued on the current stream.
 *   <li>Any thread may call, one thread at a time on a group.
 *   <li>An invalid argument throws {@link IllegalArgumentException}; nothing has been sent then.
 *   <li>The first call with given shapes, strides, type and dimension makes a plan. Later calls
 *       reuse it. A group keeps the plans used last.
 * </ul>
 *
 * <p><b>Paths.</b> All ranks take the same {@link Path}, because it depends only on values that all
 * ranks know. One exception: in an all-gather + matmul some ranks may take FUSED and others
 * PIPELINED. {@link UsageCounter} counts which path the calls took, and why.
 *
 * <p>The page {@code docs/fused-operators.md} says what each path runs and needs, and which is
 * taken. FUSED uses all SMs: call operators of groups that share GPUs in the same order on all
 * ranks.
 *
 * <p><b>Numerics.</b> Paths differ only in the order in which a matmul sums, and in rounding. On
 * the path NCCL on GPUs libtorch computes the matmul, and may round 16-bit sums several times. An
 * all-gather along the last dimension on the path PIPELINED adds one product for each rank: the
 * products, in the element type, are added in rank order, in float32 for 16-bit types.
 *
 * <p><b>Gradients.</b> Within a {@link GradientScope} gradients flow through the operators:
 *
 * <ul>
 *   <li>The gradient of A comes from the other operator, the gradient of B from a matmul with the
 *       gathered array.
 *   <li>If B is a {@linkplain GradientScope#recordConversion conversion} of master weights, the
 *       gradients of the master weights are computed instead; on a GPU float32 gradients are not
 *       rounded to 16 bits.
 *   <li>Results are leaves that require a gradient.
 *   <li>Outside of a scope, with gradients on, an input that requires a gradient is refused with an
 *       {@link IllegalArgumentException}.
 * </ul>
 *
 * <p><b>Failures.</b> Mismatched calls and missing ranks end as in any operation of a {@link
 * ProcessGroup}. On a GPU this may happen after the operator has returned. The group is then
 * broken, and the result holds arbitrary values, NaN among them. The next call on the group, or
 * {@code await} of one of its works, throws the error.
 */
public final class FusedOps {

    private static final List<String> OPERATORS =
            Stream.of(
                            AllGatherMatmul.TYPE,
                            AllGatherMatmul.SCALED,
                            MatmulReduceScatter.TYPE,
                            MatmulAllReduce.TYPE,
                            MatmulReduceScatter.SCALED,
                            AllReduceRmsNormPlan.TYPE,
                            LowContention.ALL_GATHER,
                            LowContention.REDUCE_SCATTER,
                            CallerPipeline.ALL_GATHER,
                            CallerPipeline.ALL_TO_ALL,
                            DeviceAllToAll.VDEV,
                            DeviceAllToAll.VDEV_2D,
                            DeviceAllToAll.VDEV_2D_OFFSET)
                    .map(OpType::toString)
                    .toList();

    private FusedOps() {}

    /**
     * Gathers A along a dimension and multiplies it with one or several matrices, like {@code
     * allGather(A) @ B}. Also returns the gathered A.
     *
     * @param aShard this rank's part of A, of shape (…, K) with 2 or more dimensions; the same
     *     shape on all ranks
     * @param bs matrices of shape (K, N). K is the last size of the gathered A. N may differ
     *     between matrices and between ranks
     * @param gatherDim the dimension along which the parts are concatenated, in rank order. A
     *     negative dimension counts from the back
     * @return the gathered A, and its product with each matrix, of shape (…, N)
     */
    public static GatheredMatmul allGatherMatmul(
            NDArray aShard, List<NDArray> bs, int gatherDim, ProcessGroup group) {
        return allGatherMatmul(aShard, bs, gatherDim, group, true);
    }

    /**
     * Gathers A along a dimension and multiplies it with one or several matrices.
     *
     * @param returnGathered whether the result holds the gathered A; false saves a copy
     * @return the products, and the gathered A if {@code returnGathered} is true
     */
    public static GatheredMatmul allGatherMatmul(
            NDArray aShard,
            List<NDArray> bs,
            int gatherDim,
            ProcessGroup group,
            boolean returnGathered) {
        OperandChecks checks = new OperandChecks(AllGatherMatmul.TYPE.toString());
        checks.checkNotNull("the group", group);
        if (bs == null || bs.isEmpty()) {
            throw checks.wrong("there is no B to multiply with: pass 1 or more");
        }
        Operands operands = checks.operands(Operands.of(aShard, bs), "aShard");
        if (checks.recording() != null) {
            return FusedGradients.allGatherMatmul(
                    checks.recording(), aShard, bs, gatherDim, group, returnGathered);
        }
        Output output = returnGathered ? Output.PRODUCTS_AND_A : Output.PRODUCTS;
        return AllGatherMatmul.run(checks, operands, gatherDim, group, output);
    }

    /**
     * Gathers A along its first dimension and computes {@code silu(A @ gates) * (A @ values)}, the
     * first half of a Llama's MLP. A rank on the path FUSED whose kernel supports the sizes runs
     * one kernel, which does not round the products before the activation. Other ranks run {@link
     * #allGatherMatmul(NDArray, List, int, ProcessGroup, boolean)} and the given activation.
     *
     * @param aShard this rank's part of A, of shape (…, K) with 2 or more dimensions; the same
     *     shape on all ranks
     * @param gatesAndValues of shape (K, 2 N): the columns of the gates, then the columns of the
     *     values. N may differ between ranks
     * @param activation computes {@code silu(gates) * values} of an array of shape (…, 2 N), which
     *     it may close. Within a {@link GradientScope} gradients flow through it
     * @return the product, of shape (…, N)
     */
    public static NDArray allGatherGated(
            NDArray aShard,
            NDArray gatesAndValues,
            UnaryOperator<NDArray> activation,
            ProcessGroup group) {
        OperandChecks checks = new OperandChecks(AllGatherMatmul.TYPE.toString());
        checks.checkNotNull("the group", group);
        checks.checkNotNull("the activation", activation);
        Operands operands = checks.operands(Arrays.asList(aShard, gatesAndValues), "aShard");
        if (gatesAndValues.getShape().dimension() == 2
                && gatesAndValues.getShape().get(1) % 2 != 0) {
            throw checks.wrong(
                    "gatesAndValues have %d columns; pass as many values as gates, an even number",
                    gatesAndValues.getShape().get(1));
        }
        if (checks.recording() == null) {
            List<NDArray> gated =
                    AllGatherMatmul.run(checks, operands, 0, group, Output.GATED_PRODUCT).outputs();
            if (!gated.isEmpty()) {
                return gated.get(0);
            }
        }
        List<NDArray> both = List.of(gatesAndValues);
        return activation.apply(allGatherMatmul(aShard, both, 0, group, false).outputs().get(0));
    }

    /**
     * Multiplies A and B, reduces the products over all ranks, and scatters the result along a
     * dimension, like {@code reduceScatter(A @ B)}. Each rank holds a part of the inner dimension
     * K.
     *
     * @param a of shape (…, K) with 2 or more dimensions; the same shape on all ranks, except for K
     * @param b a matrix of shape (K, N); N is the same on all ranks, K may differ between them
     * @param op {@link ReduceOp#SUM} or {@link ReduceOp#AVG}; the products, in the element type of
     *     the arrays, are reduced in rank order. 16-bit types are reduced in float32 and rounded
     *     once. On the path NCCL on GPUs, NCCL chooses order and rounding
     * @param scatterDim the dimension of the product (…, N) along which the result is divided, in
     *     rank order. Its size is a multiple of the world size. A negative dimension counts from
     *     the back
     * @return this rank's part of the result
     */
    public static NDArray matmulReduceScatter(
            NDArray a, NDArray b, ReduceOp op, int scatterDim, ProcessGroup group) {
        OperandChecks checks = new OperandChecks(MatmulReduceScatter.TYPE.toString());
        checks.checkNotNull("the group", group);
        Operands operands = checks.operands(Arrays.asList(a, b), "A");
        checks.checkSum(op);
        if (checks.recording() != null) {
            return FusedGradients.matmulReduceScatter(
                    checks.recording(), a, b, op, scatterDim, group);
        }
        return MatmulReduceScatter.run(checks, operands, op, scatterDim, group);
    }

    /**
     * Multiplies A and B and sums the products over all ranks, like {@code allReduce(A @ B)}: the
     * row-parallel layer of tensor-parallel inference without sequence parallelism. Each rank holds
     * a part of the inner dimension K.
     *
     * <ul>
     *   <li>On GPUs a product of many rows is computed in pieces of rows. The all-reduce of a piece
     *       overlaps the matmul of the next piece. Each piece is one all-reduce of the group.
     *   <li>The products are rounded to the element type before they are summed. The all-reduce
     *       decides order and rounding of the sum, see {@link ProcessGroup#allReduce}.
     *   <li>Within a {@link GradientScope} the result counts once, as in {@link
     *       DifferentiableCollectives#leaveParallel}: the gradients are {@code dY Bᵀ} and {@code Aᵀ
     *       dY}, without communication.
     * </ul>
     *
     * @param a of shape (…, K) with 2 or more dimensions; the same shape on all ranks, except for K
     * @param b a matrix of shape (K, N); N is the same on all ranks, K may differ between them
     * @return the sum of the products, of shape (…, N); the same on all ranks
     */
    public static NDArray matmulAllReduce(NDArray a, NDArray b, ProcessGroup group) {
        OperandChecks checks = new OperandChecks(MatmulAllReduce.TYPE.toString());
        checks.checkNotNull("the group", group);
        Operands operands = checks.operands(Arrays.asList(a, b), "A");
        MatmulAllReduce operator = MatmulAllReduce.of(checks, group, operands);
        try {
            return checks.recording() == null
                    ? operator.run(group, a, b)
                    : DifferentiableCollectives.leaveParallel(Torch.matMul(a, b), group);
        } catch (EngineException | VirtualMachineError e) {
            GroupPlans.failed(group, e);
            throw e;
        }
    }

    /**
     * Pipelined all-gather with a computation of the caller: calls the consumer with the shard of
     * each rank, this rank's first, while the next shards are on their way. Like PyTorch's {@code
     * _pipelined_all_gather_and_consume}.
     *
     * <ul>
     *   <li>On the CPU the consumer runs on the thread of the group's operations, and on a GPU on
     *       the calling thread, on its current stream. It runs without gradients, and must not call
     *       operations of the group.
     *   <li>The order of the shards differs between ranks.
     *   <li>On the CPU the method returns after the last call of the consumer, and on a GPU when
     *       all work is enqueued.
     *   <li>If the consumer throws, it is not called again. The exchange goes on, so other ranks
     *       are not affected, and the method throws the consumer's exception.
     *   <li>Without P2P buffers, the group's all-gather runs before the first call.
     * </ul>
     *
     * @param shard this rank's shard, of any element type; the same shape on all ranks. There is no
     *     gradient: with gradients on, a shard that requires a gradient is refused
     * @param consumer called once for each rank
     */
    public static void pipelinedAllGather(
            NDArray shard, ShardConsumer consumer, ProcessGroup group) {
        CallerPipeline.allGather(shard, consumer, group);
    }

    /**
     * Pipelined all-to-all with a computation of the caller: calls the producer for the chunk of
     * each rank, this rank's last, while earlier chunks are on their way. Like PyTorch's {@code
     * _pipelined_produce_and_all2all}.
     *
     * <ul>
     *   <li>The producer runs where the consumer of {@link #pipelinedAllGather} runs, by the same
     *       rules.
     *   <li>If the producer throws, the other ranks would get a chunk with arbitrary elements. So
     *       the operation fails and the group is broken, as if the code of {@link
     *       ProcessGroup#execute} throws. A rank that gets all its chunks may still return; its
     *       next operation fails.
     *   <li>Without P2P buffers, the group's all-to-all runs after the last call. If the producer
     *       throws on {@code nccl}, the other ranks wait until this rank leaves, or until their
     *       timeout.
     * </ul>
     *
     * @param producer called once for each rank
     * @param output receives the chunks from all ranks in rank order, along its first dimension:
     *     contiguous, of any element type, the same shape on all ranks. The first size is a
     *     multiple of the world size. On a GPU it is written when the current stream gets there.
     *     The producer must not use it
     * @throws org.djlx.collectives.CollectiveException on the CPU, if the producer or the group
     *     fails; the cause is the producer's exception. On a GPU the next call on the group may
     *     throw it
     */
    public static void pipelinedProduceAndAllToAll(
            ChunkProducer producer, NDArray output, ProcessGroup group) {
        CallerPipeline.allToAll(producer, output, group);
    }

    /**
     * Gathers a float8 A along its first dimension and multiplies it with one or several float8
     * matrices, like PyTorch's {@code fused_all_gather_scaled_matmul}: {@code (aScale A) (bScale
     * B)}.
     *
     * <p>Scales are float32 and contiguous, in one of two forms for all operands of a call, the
     * same on all ranks:
     *
     * <ul>
     *   <li>Per tensor: one value of shape () or (1) for A, and one for each B. All ranks pass the
     *       same {@code aScale}, which is not checked.
     *   <li>Per row of A, of shape (…, 1), and per column of B, of shape (1, N). The rows' scales
     *       are gathered first, by {@link LowContention#allGather}.
     * </ul>
     *
     * <p>Numerics: products are summed in float32, multiplied by the scales in float32, and rounded
     * once to bfloat16. On the CPU the error of an element against float64 is at most
     * 2<sup>-8</sup> of its value, plus (K + 1) 2<sup>-23</sup> of the sum of its products'
     * absolute values.
     *
     * <p>Numerics of Hopper's float8 tensor cores: they sum 32 products at a time, and keep 13 bits
     * below the leading bit of the sum so far, or of the largest of the products. So the kernels
     * sum at most 128 products there, and add these sums in float32. The error of an element is at
     * most 132 2<sup>-13</sup> of the sum of its products' absolute values, in addition to the
     * above, and far less for products of both signs.
     *
     * <p>Paths: all; {@code docs/fused-operators.md}, float8, says what each needs.
     *
     * <p>There is no gradient: with gradients on, an input that requires a gradient is refused.
     *
     * @param aShard this rank's part of A, of shape (…, K) with 2 or more dimensions, in {@link
     *     ScalarType#FLOAT8_E4M3FN}; the same shape on all ranks
     * @param bs column-major matrices of shape (K, N) and the same type, such as the transpose of a
     *     contiguous (N, K). N may differ between matrices and between ranks
     * @param aScale the scale of {@code aShard}, or of each of its rows
     * @param bScales the scale of each B, or of each of its columns
     * @param gatherDim the first dimension of A: 0, or its negative index
     * @return the products in bfloat16, of shape (…, N), and the gathered A if {@code
     *     returnGathered} is true
     */
    public static GatheredMatmul allGatherScaledMatmul(
            NDArray aShard,
            List<NDArray> bs,
            NDArray aScale,
            List<NDArray> bScales,
            int gatherDim,
            ProcessGroup group,
            boolean returnGathered) {
        OperandChecks checks = new OperandChecks(AllGatherMatmul.SCALED.toString(), true);
        Operands operands = scaled(checks, "aShard", aShard, bs, aScale, bScales, group);
        Output output = returnGathered ? Output.PRODUCTS_AND_A : Output.PRODUCTS;
        return AllGatherMatmul.run(checks, operands, gatherDim, group, output);
    }

    /**
     * Multiplies float8 A and B, reduces the products over all ranks, and scatters the rows of the
     * result, like PyTorch's {@code fused_scaled_matmul_reduce_scatter}. Each rank holds a part of
     * the inner dimension K, and its own scales.
     *
     * <p>Scales, paths, gradients and the numerics of each rank's product are those of {@link
     * #allGatherScaledMatmul}. The products in bfloat16 are reduced in rank order in float32 and
     * rounded once. On the path NCCL on GPUs, NCCL chooses order and rounding.
     *
     * @param a of shape (…, K) with 2 or more dimensions, in {@link ScalarType#FLOAT8_E4M3FN}; the
     *     same shape on all ranks, except for K
     * @param b a column-major matrix of shape (K, N) and the same type; N is the same on all ranks
     * @param aScale the scale of A, of shape () or (1), or of each row, of shape (…, 1)
     * @param bScale the scale of B, of shape () or (1), or of each column, of shape (1, N)
     * @param op {@link ReduceOp#SUM} or {@link ReduceOp#AVG}
     * @param scatterDim the first dimension of the product: 0, or its negative index. Its size is a
     *     multiple of the world size
     * @return this rank's part of the result, in bfloat16
     */
    public static NDArray scaledMatmulReduceScatter(
            NDArray a,
            NDArray b,
            NDArray aScale,
            NDArray bScale,
            ReduceOp op,
            int scatterDim,
            ProcessGroup group) {
        OperandChecks checks = new OperandChecks(MatmulReduceScatter.SCALED.toString(), true);
        checks.checkNotNull("B", b);
        checks.checkNotNull("the scale of B", bScale);
        Operands operands = scaled(checks, "A", a, List.of(b), aScale, List.of(bScale), group);
        checks.checkSum(op);
        return MatmulReduceScatter.run(checks, operands, op, scatterDim, group);
    }

    /** Returns the operands of a scaled operator. Checks the scales, which no plan depends on. */
    private static Operands scaled(
            OperandChecks checks,
            String roleOfA,
            NDArray a,
            List<NDArray> bs,
            NDArray aScale,
            List<NDArray> bScales,
            ProcessGroup group) {
        checks.checkNotNull("the group", group);
        if (bs == null || bs.isEmpty() || bScales == null || bScales.size() != bs.size()) {
            throw checks.wrong("pass 1 or more B, and as many scales of B");
        }
        Operands matrices = checks.operands(Operands.of(a, bs), roleOfA);
        List<NDArray> scales = Operands.of(aScale, bScales);
        for (int i = 0; i < scales.size(); i++) {
            String role =
                    i == 0 ? "aScale" : "the scale of " + OperandChecks.roleOfB(i - 1, bs.size());
            checks.checkNotNull(role, scales.get(i));
        }
        Operands operands = new Operands(matrices.arrays(), matrices.infos(), scales);
        checks.checkScales(operands);
        return operands;
    }

    /**
     * Adds the sum of all ranks' partials to a residual and normalises its rows: the operator
     * between the layers of a tensor-parallel model, as in TensorRT-LLM and FlashInfer.
     *
     * <pre>
     *   sum      = partials of all ranks, as allReduce gives them
     *   residual = residual + sum
     *   norm     = residual / sqrt(mean(residual²) + epsilon) * weight
     * </pre>
     *
     * <p>Numerics:
     *
     * <ul>
     *   <li>Each line is computed in float32 and rounded once to the element type.
     *   <li>The sum is in rank order, unless NCCL reduces (see Paths). The new residual then has
     *       the same bits on the CPU, on GPUs, and as an all-reduce and an addition would give.
     *   <li>The norm is computed from the rounded residual. It has the same bits on GPUs of one
     *       architecture, except for rows of more than 47 KiB. Otherwise squares may be added in
     *       another order, and a factor may be rounded once more or less in float32.
     *   <li>All ranks get the same bits if they pass the same residual, weight and epsilon. This is
     *       not checked.
     * </ul>
     *
     * <p>Paths:
     *
     * <ul>
     *   <li>One kernel, on GPUs with peer access to each other. At most 2 MiB, at most a one-shot
     *       all-reduce (see {@link org.djlx.collectives.CudaP2pOptions#oneShotBytes(int)}), and
     *       rows of at most 47 KiB.
     *   <li>On other GPUs, and for larger inputs: the group's all-reduce, then one kernel. If NCCL
     *       reduces, it chooses order and rounding.
     *   <li>On the CPU, and for longer rows: the group's all-reduce, then libtorch.
     * </ul>
     *
     * <p>The paths on GPUs that use a kernel can be recorded into a CUDA graph.
     *
     * <p>There is no gradient: with gradients on, an input that requires a gradient is refused.
     *
     * @param partial this rank's part of the sum, of shape (…, hidden), in float32, float16 or
     *     bfloat16; the same shape and type on all ranks
     * @param residual of the same shape and type
     * @param weight of shape (hidden) and the same type
     * @param epsilon the number added to the mean of squares, finite and at least 0
     * @return new arrays in the manager of the partial; no input is changed
     */
    public static NormedResidual allReduceRmsNorm(
            NDArray partial, NDArray residual, NDArray weight, float epsilon, ProcessGroup group) {
        return AllReduceRmsNormPlan.call(partial, residual, weight, epsilon, group).run();
    }

    /**
     * As {@link #allReduceRmsNorm(NDArray, NDArray, NDArray, float, ProcessGroup)}, but writes to
     * given arrays: a CUDA graph of many layers can then reuse a few arrays.
     *
     * @param outputs the arrays for the results: contiguous, of the partial's shape and type. The
     *     new residual may be the array of the partial. Otherwise the arrays share no memory with
     *     each other or with an input
     */
    public static void allReduceRmsNorm(
            NormedResidual outputs,
            NDArray partial,
            NDArray residual,
            NDArray weight,
            float epsilon,
            ProcessGroup group) {
        AllReduceRmsNormPlan.call(partial, residual, weight, epsilon, group).runInto(outputs);
    }

    /**
     * As {@link #allReduceRmsNorm(NormedResidual, NDArray, NDArray, NDArray, float, ProcessGroup)},
     * but writes the norm in e4m3, for {@link #allGatherScaledMatmul} or another matmul of float8
     * matrices. The norm is first rounded to the element type. Each row is then scaled so that its
     * largest magnitude becomes 448, the largest number of e4m3; the scale of the row is that
     * magnitude divided by 448.
     *
     * <p>Needs a GPU of compute capability 8.0 or later, and rows in float16 or bfloat16 of a
     * multiple of 8 elements, up to 47 KiB.
     *
     * @param outputs the arrays for the new residual, and for the norm in {@link
     *     ScalarType#FLOAT8_E4M3FN}; the address of the norm is a multiple of 8
     * @param scales the array for the scales in float32, contiguous, of the partial's shape with 1
     *     as the last dimension
     * @throws IllegalArgumentException if an array, the type or the device is not supported
     */
    public static void allReduceRmsNorm(
            NormedResidual outputs,
            NDArray scales,
            NDArray partial,
            NDArray residual,
            NDArray weight,
            float epsilon,
            ProcessGroup group) {
        AllReduceRmsNormPlan.call(partial, residual, weight, epsilon, group)
                .runInto(outputs, scales);
    }

    /**
     * {@return whether {@link #allReduceRmsNorm(NDArray, NDArray, NDArray, float, ProcessGroup)}
     * runs as one kernel; the same on all ranks}
     *
     * @param rows the number of rows, at least 1
     * @param hidden the number of elements of a row, at least 1
     */
    public static boolean isFused(ScalarType type, long rows, long hidden, ProcessGroup group) {
        return AllReduceRmsNormPlan.isFused(type, rows, hidden, group);
    }

    /**
     * Returns the shapes of the results of {@link #allGatherMatmul} and {@link
     * #allGatherScaledMatmul}, without arrays and without a group.
     *
     * @param aShard the shape of a rank's part of A
     * @param bs the shapes of the matrices
     * @return the shape of the gathered A, then that of each product
     * @throws IllegalArgumentException as the operator, if the shapes do not fit
     */
    public static List<Shape> shapesOfAllGatherMatmul(
            Shape aShard, List<Shape> bs, int gatherDim, int worldSize) {
        OperandChecks checks = new OperandChecks(AllGatherMatmul.TYPE.toString());
        checks.checkNotNull("the list of shapes", bs);
        return AllGatherMatmul.shapes(checks, aShard, bs, gatherDim, worldSize);
    }

    /**
     * Returns the shape of a rank's result of {@link #matmulReduceScatter} and {@link
     * #scaledMatmulReduceScatter}, as {@link #shapesOfAllGatherMatmul}.
     */
    public static Shape shapeOfMatmulReduceScatter(
            Shape a, Shape b, int scatterDim, int worldSize) {
        OperandChecks checks = new OperandChecks(MatmulReduceScatter.TYPE.toString());
        return MatmulReduceScatter.shape(checks, a, b, scatterDim, worldSize);
    }

    /** Returns the shape of the result of {@link #matmulAllReduce}, for any world size. */
    public static Shape shapeOfMatmulAllReduce(Shape a, Shape b) {
        OperandChecks checks = new OperandChecks(MatmulAllReduce.TYPE.toString());
        return MatmulReduceScatter.product(checks, a, b);
    }

    /** Starts counting the calls in this JVM by path. Close the counter to end counting. */
    public static UsageCounter countUsage() {
        return new UsageCounter();
    }

    /**
     * Makes all calls in this JVM fall back to {@link Path#NCCL} until the scope is closed: for
     * tests and debugging. Open it on all ranks of a group or on none.
     */
    public static Scope forceFallback() {
        return once(Fallbacks.force(Path.NCCL));
    }

    /**
     * As {@link #forceFallback()}, for one operator.
     *
     * @param operator the operator's name, see {@link UsageCounter#calls(String, Path)}
     * @throws IllegalArgumentException if there is no such operator; the message names all
     *     operators
     */
    public static Scope forceFallback(String operator) {
        if (!OPERATORS.contains(operator)) {
            throw new IllegalArgumentException(
                    "forceFallback: \"%s\" is not an operator; use one of %s"
                            .formatted(operator, OPERATORS));
        }
        return once(Fallbacks.force(operator));
    }

    /**
     * As {@link #forceFallback()}, for any path. A call takes another path where this one is not
     * possible; {@link UsageCounter} tells.
     */
    public static Scope force(Path path) {
        new OperandChecks("force").checkNotNull("the path", path);
        return once(Fallbacks.force(path));
    }

    /**
     * Makes a rank's calls with new sizes measure their paths, until the scope is closed, instead
     * of predicting the fastest. For programs that use the same sizes many times: open the scope,
     * run one step, close the scope.
     *
     * <pre>{@code
     * try (FusedOps.Scope measuring = FusedOps.measurePaths(group)) {
     *     trainingStep(); // takes some milliseconds more for each new size
     * }
     * }</pre>
     *
     * <ul>
     *   <li>Each rank opens it before the same call, and closes it after the same call.
     *   <li>The first eager call of {@link #allGatherMatmul} or {@link #matmulReduceScatter} with
     *       given sizes runs each possible path with its operands about 50 times. Then the ranks
     *       agree on the fastest path for eager calls, and on the fastest for calls recorded into a
     *       graph. Later calls take these paths until the group is destroyed.
     *   <li>Two sizes may differ between ranks, and do not decide: the columns of B of {@link
     *       #allGatherMatmul}, and the inner dimension of {@link #matmulReduceScatter}. If calls
     *       differ in these alone, they all take the path with the least time in total.
     *   <li>While the scope is open, every eager call waits for all ranks.
     *   <li>Times are kept in files {@code paths-*} of the kernels' cache, by GPU, driver, kernels
     *       and sizes. Ranks that all find their times there measure nothing. Delete the files to
     *       measure again, for example if another program used the GPUs meanwhile.
     *   <li>Paths may differ in the last bits of results, and another machine may measure another
     *       winner. Without this scope, each run takes the same paths.
     *   <li>Float8, calls recorded into a graph, and groups on the CPU are not measured.
     * </ul>
     */
    public static Scope measurePaths(ProcessGroup group) {
        new OperandChecks("measurePaths").checkNotNull("the group", group);
        return once(GroupPlans.of(group).measurePaths());
    }

    /** Returns a scope that ends when it is closed first. */
    private static Scope once(Runnable end) {
        AtomicBoolean isClosed = new AtomicBoolean();
        return () -> {
            if (isClosed.compareAndSet(false, true)) {
                end.run();
            }
        };
    }

    /** A setting that applies until it is closed. Closing it again does nothing. */
    @FunctionalInterface
    public interface Scope extends AutoCloseable {

        @Override
        void close();
    }
}

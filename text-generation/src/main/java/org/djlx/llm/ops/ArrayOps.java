// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.ReduceOp;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.NormedResidual;
import org.djlx.llm.model.LayerConfig;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Operators over libtorch's arrays, a row for each token. The residual stream is either
 *
 * <ul>
 *   <li>complete on all ranks, and partial sums are combined by all-reduce; or,
 *   <li>with many tokens, divided among ranks by tokens (sequence parallelism), and projections are
 *       all-gather + matmul and matmul + reduce-scatter.
 * </ul>
 */
abstract class ArrayOps implements LayerOps<Operand> {

    // The minimum number of tokens per rank for sequence parallelism.
    private static final int SEQUENCE_PARALLEL_TOKENS = 16;

    final RankModel model;
    final boolean divided; // whether sequence parallelism is used
    private final NDManager step;
    private final List<Adapters.Segment> segments; // rows with adapters
    private NDManager scope; // of the activations since the last norm
    private NDArray residual;
    private NDArray partial; // with sequence parallelism the sum of all ranks; null at first

    /**
     * Begins a step, which owns the activations. The subclass calls {@link #begin} before the first
     * operator.
     */
    ArrayOps(RankModel model, NDManager step, int tokens, List<Adapters.Segment> segments) {
        this.model = model;
        this.segments = segments;
        this.step = step;
        scope = step.newSubManager();
        int ranks = model.ranks();
        // Adapters need the rows of all tokens.
        divided = ranks > 1 && tokens >= SEQUENCE_PARALLEL_TOKENS * ranks && segments.isEmpty();
    }

    /** Sets the residual stream before the first layer. */
    final void begin(NDArray embedded) {
        residual = embedded;
    }

    /** Returns the residual stream: of all tokens, or of this rank's tokens. */
    final NDArray residual() {
        return residual;
    }

    /** Returns the manager of activations that the next norm frees. */
    final NDManager scope() {
        return scope;
    }

    /** Multiplies rows by a projection, without the bias. */
    abstract NDArray multiply(Operand x, ModelWeights.Linear linear);

    abstract Operand norm(NDArray rows, NDArray weight);

    /** Returns {@code activation(gates) * values}; a row has its gates, then its values. */
    abstract NDArray gated(NDArray gateUp, LayerConfig.Mlp mlp);

    /** The residual stream, and its RMSNorm. */
    record Sum(NDArray residual, Operand norm) {}

    /** Returns the sum of the residual stream and all ranks' partial sums. */
    abstract Sum add(NDArray residual, NDArray partial, NDArray postNorm, NDArray norm);

    /** As {@link #add}, by one operator: for a stream that is complete on all ranks. */
    final Sum allReduceAndAdd(NDArray residual, NDArray partial, NDArray norm) {
        NormedResidual sum =
                FusedOps.allReduceRmsNorm(partial, residual, norm, model.epsilon(), model.group());
        return new Sum(sum.residual(), new Operand(sum.norm()));
    }

    /** Adds the partial sums to the residual stream, and returns its norm. */
    final Operand addAndNorm(NDArray postNorm, NDArray norm) {
        NDManager next = step.newSubManager();
        Sum sum =
                partial == null
                        ? new Sum(residual, norm(residual, norm))
                        : add(residual, partial, postNorm, norm);
        residual = sum.residual;
        partial = null;
        residual.attach(next);
        sum.norm.attach(next);
        scope.close();
        scope = next;
        return sum.norm;
    }

    @Override
    public Operand project(NDArray postNorm, NDArray norm, ModelWeights.Linear linear) {
        return new Operand(columnParallel(addAndNorm(postNorm, norm), linear));
    }

    @Override
    public void projectBack(Operand x, ModelWeights.Linear linear) {
        NDArray sum = divided ? multiplyAndScatter(x, linear) : multiplyAndAdapt(x, linear);
        boolean biased = linear.bias() != null && (divided || model.group().rank() == 0);
        setPartial(biased ? sum.addi(linear.bias()) : sum);
    }

    /**
     * Multiplies the rows of all tokens, without the bias. Returns this rank's rows of the sum over
     * all ranks.
     */
    NDArray multiplyAndScatter(Operand x, ModelWeights.Linear linear) {
        return linear.isFusible()
                ? FusedOps.matmulReduceScatter(
                        x.elements(), linear.weight(), ReduceOp.SUM, 0, model.group())
                : sum(multiply(x, linear));
    }

    @Override
    public void experts(
            NDArray postNorm, NDArray norm, ModelWeights.Layer layer, LayerConfig.Mlp mlp) {
        NDArray x = addAndNorm(postNorm, norm).elements();
        NDArray all = divided ? model.gather(x) : x;
        NDArray own = mixture(all, product(all, layer.router()), layer, mlp);
        setPartial(divided ? sum(own) : own);
    }

    /**
     * Returns this rank's part of a mixture of experts; {@code logits} are the router's. Here the
     * host chooses the experts, and libtorch multiplies by their weights.
     */
    NDArray mixture(NDArray x, NDArray logits, ModelWeights.Layer layer, LayerConfig.Mlp mlp) {
        Map<Integer, ExpertRouter> routes =
                ExpertRouter.route(
                        mlp.experts(), Torch.cast(logits, ScalarType.FLOAT32).toFloatArray());
        NDManager manager = x.getManager();
        NDArray sum = manager.zeros(x.getShape());
        for (Map.Entry<Integer, ExpertRouter> route : routes.entrySet()) {
            try (NDManager temporary = manager.newSubManager()) {
                ModelWeights.Mlp expert = layer.mlps().get(route.getKey());
                ExpertRouter chosen = route.getValue();
                NDIndex rows = new NDIndex("{}", temporary.create(chosen.tokens()));
                NDArray own = x.get(temporary, rows);
                NDArray inner = gated(product(own, expert.gateUp()), mlp);
                boolean isFirst = model.group().rank() == 0; // the rank that adds the bias
                ModelWeights.Linear down = isFirst ? expert.down() : expert.down().withBias(null);
                NDArray result =
                        Torch.cast(product(inner, down), ScalarType.FLOAT32)
                                .mul(temporary.create(chosen.weights()).expandDims(1));
                sum.set(rows, sum.get(temporary, rows).add(result));
            }
        }
        return Torch.cast(sum, model.config().type());
    }

    /** Multiplies rows by libtorch, and adds the bias. */
    private static NDArray product(NDArray x, ModelWeights.Linear linear) {
        NDArray product = linear.multiply(x);
        return linear.bias() == null ? product : product.addi(linear.bias());
    }

    /** Multiplies rows of all tokens, and adds their adapters. */
    private NDArray multiplyAndAdapt(Operand x, ModelWeights.Linear linear) {
        NDArray product = multiply(x, linear);
        for (Adapters.Segment segment : segments) {
            Adapters.LowRank part = segment.parts().get(linear);
            if (part != null) {
                NDArray rows = Torch.narrow(x.elements(), 0, segment.first(), segment.rows());
                NDArray added = part.b().multiply(part.a().multiply(rows));
                Torch.narrow(product, 0, segment.first(), segment.rows()).addi(added);
            }
        }
        return product;
    }

    final void setPartial(NDArray partial) {
        this.partial = partial;
    }

    /** Multiplies all tokens by this rank's columns of the weight, and adds the bias. */
    final NDArray columnParallel(Operand x, ModelWeights.Linear linear) {
        NDArray product = divided ? gatherAndMultiply(x, linear) : multiplyAndAdapt(x, linear);
        return linear.bias() == null ? product : product.addi(linear.bias());
    }

    /** Gathers the rows of all ranks, and multiplies them, without the bias. */
    NDArray gatherAndMultiply(Operand x, ModelWeights.Linear linear) {
        if (!linear.isFusible()) {
            return multiply(new Operand(model.gather(x.elements())), linear);
        }
        List<NDArray> products =
                FusedOps.allGatherMatmul(x.elements(), linear.weights(), 0, model.group(), false)
                        .outputs();
        return products.size() == 1 ? products.get(0) : NDArrays.concat(new NDList(products), 1);
    }

    /** Returns the sum over all ranks; with sequence parallelism, only this rank's rows. */
    final NDArray sum(NDArray x) {
        int ranks = model.ranks();
        if (ranks == 1) {
            return x;
        }
        if (!divided) {
            model.group().allReduce(x, ReduceOp.SUM, false);
            return x;
        }
        Shape shape = x.getShape();
        Shape part = new Shape(shape.get(0) / ranks, shape.get(1));
        NDArray output = Torch.empty(x.getManager(), part, model.config().type());
        model.complete(model.group().reduceScatterTensor(output, x, ReduceOp.SUM));
        return output;
    }
}

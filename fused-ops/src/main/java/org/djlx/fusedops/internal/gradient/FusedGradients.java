// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.gradient.DifferentiableCollectives;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.GatheredMatmul;
import org.djlx.fusedops.internal.allgathermatmul.AllGatherMatmul;
import org.djlx.fusedops.internal.matmulreducescatter.MatmulReduceScatter;
import org.djlx.fusedops.internal.path.Axes;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;

/**
 * The fused operators within a {@link GradientScope}. Each computes the gradient of the other:
 *
 * <pre>
 *   operator            gradient of A       gradient of B
 *   Y = gather(A) B     scatter(dY Bᵀ)      gather(A)ᵀ dY
 *   Y = scatter(A B)    gather(dY) Bᵀ       Aᵀ gather(dY)
 * </pre>
 *
 * <p>In the second row, one all-gather + matmul returns the gathered dY, too.
 *
 * <p>If the scope knows that B was converted from master weights, the master weights are the
 * inputs. Each gradient is computed in the type of its master weight. On a GPU the matmul adds the
 * product to the gradient that the weight already has.
 */
public final class FusedGradients {

    private FusedGradients() {}

    public static GatheredMatmul allGatherMatmul(
            GradientScope scope,
            NDArray aShard,
            List<NDArray> bs,
            int gatherDim,
            ProcessGroup group,
            boolean returnGathered) {
        boolean gatheredIsNeeded = bs.stream().anyMatch(Torch::requiresGradient);
        boolean keep = gatheredIsNeeded && !scope.isRegathering();
        GatheredMatmul result =
                NoGradient.get(
                        () ->
                                FusedOps.allGatherMatmul(
                                        aShard, bs, gatherDim, group, returnGathered || keep));
        NDArray gathered = result.gathered().orElse(null);
        List<NDArray> inputs = new ArrayList<>(List.of(aShard));
        int[] originals = new int[bs.size()];
        for (int i = 0; i < originals.length; i++) {
            List<NDArray> own = scope.originals(bs.get(i));
            inputs.addAll(own);
            originals[i] = own.size();
        }
        List<NDArray> used = new ArrayList<>(bs);
        if (gatheredIsNeeded) {
            used.add(keep ? gathered : aShard);
        }
        List<NDArray> outputs = new ArrayList<>(result.outputs());
        if (returnGathered && Torch.requiresGradient(aShard)) {
            outputs.add(gathered);
        }
        scope.record(
                AllGatherMatmul.TYPE.toString(),
                inputs,
                used,
                outputs,
                (ins, kept, gradients) ->
                        allGatherMatmulGradients(
                                ins, originals, kept, gradients, !keep, gatherDim, group));
        if (returnGathered) {
            return result;
        }
        if (keep) {
            gathered.close();
        }
        return new GatheredMatmul(null, result.outputs());
    }

    private static List<NDArray> allGatherMatmulGradients(
            List<NDArray> inputs,
            int[] originals,
            List<NDArray> kept,
            List<NDArray> gradients,
            boolean regather,
            int gatherDim,
            ProcessGroup group) {
        NDArray aShard = inputs.get(0);
        List<NDArray> weights = inputs.subList(1, inputs.size());
        List<NDArray> bs = kept.subList(0, originals.length);
        List<NDArray> products = gradients.subList(0, bs.size());
        List<NDArray> results = new ArrayList<>();
        if (Torch.requiresGradient(aShard)) {
            int last = aShard.getShape().dimension() - 1;
            NDArray gradient =
                    FusedOps.matmulReduceScatter(
                            concatenated(products, last),
                            concatenated(bs, 1).transpose(),
                            ReduceOp.SUM,
                            gatherDim,
                            group);
            if (gradients.size() > bs.size()) {
                gradient.addi(
                        DifferentiableCollectives.reduceScatter(
                                gradients.get(bs.size()), gatherDim, group));
            }
            results.add(gradient);
        } else {
            results.add(null);
        }
        NDArray gathered = null;
        if (weights.stream().anyMatch(Torch::requiresGradient)) {
            gathered =
                    regather
                            ? DifferentiableCollectives.allGather(aShard, gatherDim, group)
                            : kept.get(bs.size());
        }
        int first = 0;
        for (int i = 0; i < bs.size(); i++) {
            List<NDArray> own = weights.subList(first, first + originals[i]);
            results.addAll(weightGradients(own, gathered, products.get(i), group));
            first += originals[i];
        }
        return results;
    }

    public static NDArray matmulReduceScatter(
            GradientScope scope,
            NDArray a,
            NDArray b,
            ReduceOp op,
            int scatterDim,
            ProcessGroup group) {
        NDArray result =
                NoGradient.get(() -> FusedOps.matmulReduceScatter(a, b, op, scatterDim, group));
        List<NDArray> inputs = new ArrayList<>(List.of(a));
        inputs.addAll(scope.originals(b));
        scope.record(
                MatmulReduceScatter.TYPE.toString(),
                inputs,
                List.of(b, a),
                List.of(result),
                (ins, kept, gradients) ->
                        matmulReduceScatterGradients(
                                ins, kept.get(0), gradients.get(0), op, scatterDim, group));
        return result;
    }

    private static List<NDArray> matmulReduceScatterGradients(
            List<NDArray> inputs,
            NDArray b,
            NDArray ofResult,
            ReduceOp op,
            int scatterDim,
            ProcessGroup group) {
        NDArray a = inputs.get(0);
        List<NDArray> weights = inputs.subList(1, inputs.size());
        boolean ofA = Torch.requiresGradient(a);
        boolean ofB = weights.stream().anyMatch(Torch::requiresGradient);
        NDArray gradient = ofResult;
        if (op == ReduceOp.AVG) {
            gradient = Torch.cast(ofResult, Torch.scalarType(ofResult));
            TorchInPlace.div(gradient, group.worldSize());
        }
        List<NDArray> results = new ArrayList<>();
        NDArray gathered = null;
        if (ofA) {
            GatheredMatmul product =
                    FusedOps.allGatherMatmul(
                            gradient, List.of(b.transpose()), scatterDim, group, ofB);
            results.add(product.outputs().get(0));
            gathered = product.gathered().orElse(null);
        } else {
            results.add(null);
            gathered = DifferentiableCollectives.allGather(gradient, scatterDim, group);
        }
        results.addAll(weightGradients(weights, a, gathered, group));
        return results;
    }

    /**
     * Returns Aᵀ dY for weights side by side, with all dimensions except the last merged. A
     * weight's entry is null if the weight requires no gradient, or if its gradient has already
     * been added.
     */
    private static List<NDArray> weightGradients(
            List<NDArray> weights, NDArray a, NDArray gradient, ProcessGroup group) {
        List<NDArray> results = new ArrayList<>();
        long from = 0;
        for (NDArray weight : weights) {
            long columns = weight.getShape().get(1);
            if (!Torch.requiresGradient(weight)) {
                results.add(null);
            } else {
                NDArray left = Axes.matrix(a).transpose();
                NDArray right = Axes.matrix(gradient);
                if (weights.size() > 1) {
                    right = Torch.narrow(right, 1, from, columns);
                }
                results.add(
                        Torch.scalarType(weight) == Torch.scalarType(a)
                                ? Torch.matMul(left, right)
                                : convertedProduct(weight, left, right, group));
            }
            from += columns;
        }
        return results;
    }

    /**
     * Computes the gradient of a weight with another type than A. Returns null if the product has
     * been added to the weight's gradient.
     */
    private static NDArray convertedProduct(
            NDArray weight, NDArray left, NDArray right, ProcessGroup group) {
        ScalarType type = Torch.scalarType(weight);
        try (NDArray own = weight.hasGradient() ? JniUtils.getGradient((PtNDArray) weight) : null) {
            if (type == ScalarType.FLOAT32) {
                Optional<NDArray> sum =
                        ProductSums.of(group).flatMap(sums -> sums.multiply(own, left, right));
                if (sum.isPresent()) {
                    if (own != null) {
                        return null;
                    }
                    if (!weight.hasGradient()) {
                        return sum.get();
                    }
                    try (NDArray gradient = sum.get()) {
                        Torch.setGradient(weight, gradient); // Autograd would make a copy.
                        return null;
                    }
                }
            }
            NDArray product = Torch.matMul(left, right);
            if (own == null) {
                return Torch.cast(product, type);
            }
            TorchInPlace.add(own, product);
            return null;
        }
    }

    private static NDArray concatenated(List<NDArray> arrays, int dimension) {
        return arrays.size() == 1 ? arrays.get(0) : NDArrays.concat(new NDList(arrays), dimension);
    }
}

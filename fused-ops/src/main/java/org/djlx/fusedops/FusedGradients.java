/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.gradient.DifferentiableCollectives;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.NoGradient;
import org.djlx.nativeops.Torch;

/**
 * The fused operators within a {@link GradientScope}. With Y = gather(A) B, the gradient of A is
 * scatter(dY Bᵀ), which is the other operator, and that of B is gather(A)ᵀ dY. With Y = scatter(A
 * B), the gradient of A is gather(dY) Bᵀ, and that of B is Aᵀ gather(dY), where the gathered dY is
 * what the other operator returns beside its product.
 */
final class FusedGradients {

    private FusedGradients() {}

    static GatheredMatmul allGatherMatmul(
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
        inputs.addAll(bs);
        List<NDArray> outputs = new ArrayList<>(result.outputs());
        if (returnGathered && Torch.requiresGradient(aShard)) {
            outputs.add(gathered);
        }
        scope.record(
                AllGatherMatmulPlan.TYPE.toString(),
                inputs,
                keep ? List.of(gathered) : List.of(),
                outputs,
                (ins, kept, gradients) ->
                        allGatherMatmulGradients(ins, kept, gradients, gatherDim, group));
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
            List<NDArray> kept,
            List<NDArray> gradients,
            int gatherDim,
            ProcessGroup group) {
        NDArray aShard = inputs.get(0);
        List<NDArray> bs = inputs.subList(1, inputs.size());
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
        if (bs.stream().anyMatch(Torch::requiresGradient)) {
            gathered =
                    kept.isEmpty()
                            ? DifferentiableCollectives.allGather(aShard, gatherDim, group)
                            : kept.get(0);
        }
        for (int i = 0; i < bs.size(); i++) {
            results.add(
                    Torch.requiresGradient(bs.get(i))
                            ? weightGradient(gathered, products.get(i))
                            : null);
        }
        return results;
    }

    static NDArray matmulReduceScatter(
            GradientScope scope,
            NDArray a,
            NDArray b,
            ReduceOp op,
            int scatterDim,
            ProcessGroup group) {
        NDArray result =
                NoGradient.get(() -> FusedOps.matmulReduceScatter(a, b, op, scatterDim, group));
        scope.record(
                MatmulReduceScatterPlan.TYPE.toString(),
                List.of(a, b),
                List.of(),
                List.of(result),
                (inputs, kept, gradients) ->
                        matmulReduceScatterGradients(
                                inputs, gradients.get(0), op, scatterDim, group));
        return result;
    }

    private static List<NDArray> matmulReduceScatterGradients(
            List<NDArray> inputs,
            NDArray ofResult,
            ReduceOp op,
            int scatterDim,
            ProcessGroup group) {
        NDArray a = inputs.get(0);
        NDArray b = inputs.get(1);
        boolean ofA = Torch.requiresGradient(a);
        boolean ofB = Torch.requiresGradient(b);
        NDArray gradient = ofResult;
        if (op == ReduceOp.AVG) {
            gradient = Torch.cast(ofResult, Torch.scalarType(ofResult));
            Torch.divInPlace(gradient, group.worldSize());
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
        results.add(ofB ? weightGradient(a, gathered) : null);
        return results;
    }

    /** Returns Aᵀ dY, where all dimensions but the last are those of one. */
    private static NDArray weightGradient(NDArray a, NDArray gradient) {
        return matrix(a).transpose().matMul(matrix(gradient));
    }

    private static NDArray matrix(NDArray array) {
        Shape shape = array.getShape();
        long last = shape.get(shape.dimension() - 1);
        long rows = shape.slice(0, shape.dimension() - 1).size();
        return array.reshape(rows, last);
    }

    private static NDArray concatenated(List<NDArray> arrays, int dimension) {
        return arrays.size() == 1 ? arrays.get(0) : NDArrays.concat(new NDList(arrays), dimension);
    }
}

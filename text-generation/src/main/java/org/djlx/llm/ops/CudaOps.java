// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;
import org.djlx.collectives.ReduceOp;
import org.djlx.fusedops.FusedOps;
import org.djlx.llm.model.LayerConfig;

/**
 * The operators of a prefill on a GPU, by kernels on the current stream. Only on Hopper GPUs are
 * experts computed by kernels; elsewhere libtorch computes them. Models with a {@code postNorm} use
 * {@link TorchOps} instead.
 */
final class CudaOps extends ArrayOps {

    private final ModelKernels gpu;
    private final CudaAttention attention;
    private final CudaAttention.Metadata metadata;
    private final NDManager step;

    CudaOps(
            RankModel model,
            NDManager step,
            ModelKernels gpu,
            CudaAttention attention,
            CudaAttention.Metadata metadata) {
        super(model, step, metadata.inputs().tokens(), List.of());
        this.gpu = gpu;
        this.attention = attention;
        this.metadata = metadata;
        this.step = step;
        begin(sum(gpu.embed(metadata.inputs(), model.weights())));
    }

    @Override
    NDArray multiply(Operand x, ModelWeights.Linear linear) {
        return gpu.multiply(x, linear);
    }

    @Override
    NDArray gatherAndMultiply(Operand x, ModelWeights.Linear linear) {
        if (!x.isE4m3()) {
            return dequantized(linear, of -> super.gatherAndMultiply(x, of));
        }
        return FusedOps.allGatherScaledMatmul(
                        x.elements(),
                        List.of(linear.quantized().operand(scope())),
                        x.scales(),
                        List.of(linear.quantized().operandScales(scope())),
                        0,
                        model.group(),
                        false)
                .outputs()
                .get(0);
    }

    @Override
    NDArray multiplyAndScatter(Operand rows, ModelWeights.Linear linear) {
        Operand x = gpu.forMatmul(rows);
        if (!x.isE4m3()) {
            return dequantized(linear, of -> super.multiplyAndScatter(x, of));
        }
        return FusedOps.scaledMatmulReduceScatter(
                x.elements(),
                linear.quantized().operand(scope()),
                x.scales(),
                linear.quantized().operandScales(scope()),
                ReduceOp.SUM,
                0,
                model.group());
    }

    /**
     * Calls an operator with a projection, dequantised to 16 bits if it is quantised. The
     * dequantised weight is freed afterwards.
     */
    private NDArray dequantized(
            ModelWeights.Linear linear, Function<ModelWeights.Linear, NDArray> operator) {
        if (linear.quantized() == null) {
            return operator.apply(linear);
        }
        try (NDManager temporary = scope().newSubManager()) {
            return operator.apply(gpu.dequantized(linear, temporary));
        }
    }

    @Override
    Operand norm(NDArray rows, NDArray weight) {
        return gpu.rmsNorm(rows, weight);
    }

    @Override
    Sum add(NDArray residual, NDArray partial, NDArray postNorm, NDArray norm) {
        return divided || model.ranks() == 1
                ? new Sum(partial, gpu.addRmsNorm(partial, residual, norm))
                : allReduceAndAdd(residual, partial, norm);
    }

    @Override
    NDArray gated(NDArray gateUp, LayerConfig.Mlp mlp) {
        return gpu.activate(gateUp);
    }

    @Override
    public Operand projectGated(
            NDArray postNorm, NDArray norm, ModelWeights.Linear gateUp, LayerConfig.Mlp mlp) {
        Operand x = addAndNorm(postNorm, norm);
        if (divided && gateUp.bias() == null && !x.isE4m3()) {
            return new Operand(
                    dequantized(
                            gateUp,
                            of ->
                                    FusedOps.allGatherGated(
                                            x.elements(),
                                            of.weight(),
                                            gpu::activate,
                                            model.group())));
        }
        return gpu.siluAndMul(columnParallel(x, gateUp));
    }

    @Override
    NDArray mixture(NDArray x, NDArray logits, ModelWeights.Layer layer, LayerConfig.Mlp mlp) {
        Optional<WideExperts> experts = gpu.wideExperts();
        if (experts.isEmpty()) {
            return super.mixture(x, logits, layer, mlp);
        }
        int inner = mlp.intermediateSize() / model.ranks();
        return experts.get().compute(x, logits, layer.router(), mlp.experts(), inner);
    }

    @Override
    public Operand attend(int layer, Operand qkv) {
        return new Operand(attention.apply(scope(), layer, qkv.elements(), metadata));
    }

    /** Computes only keys and values of a layer, and writes them to the cache. */
    void cacheKeysAndValues(int layer) {
        ModelWeights.Layer weights = model.weights().layer(layer);
        ModelWeights.Linear keysAndValues =
                attention.keysAndValues(step, weights.queriesKeysValues());
        Operand keysValues = project(null, weights.attentionNorm(), keysAndValues);
        gpu.rotate(model, layer, keysValues.elements(), metadata.inputs());
    }

    /** Not supported: {@link Decoder#finishPrefill} computes the logits of a prefill. */
    @Override
    public NDArray logits(NDArray postNorm, NDArray norm, ModelWeights.Linear output) {
        throw new IllegalStateException("a decode step computes the logits of a prefill");
    }
}

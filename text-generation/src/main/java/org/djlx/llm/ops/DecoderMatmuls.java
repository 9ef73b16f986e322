// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.NormedResidual;
import org.djlx.fusedops.kernel.Product;
import org.djlx.fusedops.kernel.RmsNormKernels;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Quantization;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * The matmuls of a {@link Decoder}'s steps, the RMSNorms of their residual stream, and the buffers
 * between them. {@link ExpertKernels} multiplies by the weights of experts. The kernel of any other
 * matmul depends on the step:
 *
 * <ul>
 *   <li>{@linkplain #isLarge large} steps: {@link WideMatmul} if it supports the matmul, else
 *       cuBLASLt;
 *   <li>few rows, one rank, Hopper: {@link MatmulChain}, in which one kernel computes all matmuls
 *       and norms between two attentions;
 *   <li>otherwise: {@link DecoderKernels#matmul}.
 * </ul>
 *
 * <p>Use it on the decoder's thread, while the decoder's stream is torch's current stream: some
 * kernels are launched on the one, some on the other.
 */
final class DecoderMatmuls implements AutoCloseable {

    /**
     * The most rows of a step with adapters that {@link DecoderKernels#matmul} multiplies: with 8
     * it is faster than {@link WideMatmul}.
     */
    private static final int FEW_ROWS = 8;

    private static final int ROUTER_ALIGNMENT = 8; // elements; of rows of router logits

    private final ModelConfig config;
    private final ProcessGroup group;
    private final ModelWeights weights;
    private final ModelKernels gpu;
    private final DecoderKernels kernels;
    private final CudaStream stream;
    private final int inner; // largest MLP of a layer without experts, on this rank; or 0
    private final boolean batchInvariant;
    private final MatmulChain chain; // null with several ranks, or if the GPU is not of Hopper
    private final WideMatmul wideMatmul; // null if it does not support the weights or the GPU

    // Buffers for the maximum number of rows. A step of fewer rows uses the first rows.
    private final NDArray[] residuals = new NDArray[3];
    private final NDArray zeros;
    private final NDArray norm;
    private final NDArray gateUp; // before activation; for cuBLASLt
    private final NDArray activated; // large steps with fp8 weights read e4m3Rows instead
    private final NDArray e4m3Rows; // left operands in large steps with fp8 weights
    private final NDArray e4m3Scales;
    private final NDArray chainArrivals; // counter of the chain's barrier

    private final Optional<Experts> experts; // empty if no layer has experts

    // The index of each projection that may have adapters, in an adapter's table.
    private final Map<ModelWeights.Linear, Integer> projections = new IdentityHashMap<>();

    /**
     * The kernels and arrays of layers with experts.
     *
     * @param logits of a layer's router
     * @param tables by router, the {@link ExpertKernels#table} of its experts
     */
    private record Experts(
            ExpertKernels kernels, NDArray logits, Map<ModelWeights.Linear, NDArray> tables) {}

    /**
     * Allocates buffers and clears some, on the current stream. The caller synchronizes it before
     * the first step. If {@code batchInvariant}, no step is large.
     */
    DecoderMatmuls(
            RankModel model,
            ModelKernels gpu,
            NDManager manager,
            CudaStream stream,
            int maxRows,
            boolean batchInvariant) {
        config = model.config();
        group = model.group();
        weights = model.weights();
        this.gpu = gpu;
        this.stream = stream;
        this.batchInvariant = batchInvariant;
        kernels = gpu.kernels();
        wideMatmul = kernels.wideMatmul(manager);
        int ranks = group.worldSize();
        int hidden = config.hiddenSize();
        int attentionSize = model.queryHeads() * config.headSize();
        inner =
                config.layerConfigs().stream()
                                .map(LayerConfig::mlp)
                                .filter(mlp -> mlp.experts() == null)
                                .mapToInt(LayerConfig.Mlp::intermediateSize)
                                .max()
                                .orElse(0)
                        / ranks;
        chain = ranks > 1 ? null : kernels.chain(hidden, attentionSize, inner);
        for (int i = 0; i < residuals.length; i++) {
            residuals[i] = rows(manager, maxRows, hidden);
        }
        zeros = Torch.zeros(manager, new Shape(maxRows, hidden), config.type());
        norm = rows(manager, maxRows, hidden);
        gateUp = rows(manager, maxRows, 2 * inner);
        activated = rows(manager, maxRows, inner);
        int deepest = Math.max(Math.max(hidden, inner), attentionSize);
        e4m3Rows =
                Torch.empty(manager, new Shape((long) maxRows * deepest), ScalarType.FLOAT8_E4M3FN);
        e4m3Scales = Torch.empty(manager, new Shape(maxRows, 1), ScalarType.FLOAT32);
        chainArrivals = manager.zeros(new Shape(1), DataType.INT32);
        List<ModelWeights.Linear> adaptable = Adapters.projections(model);
        IntStream.range(0, adaptable.size()).forEach(i -> projections.put(adaptable.get(i), i));
        experts = config.hasExperts() ? Optional.of(experts(manager, maxRows)) : Optional.empty();
    }

    private Experts experts(NDManager manager, int maxRows) {
        int count = 0;
        int chosen = 0;
        int widest = 0;
        Map<ModelWeights.Linear, NDArray> tables = new IdentityHashMap<>();
        for (int i = 0; i < config.layers(); i++) {
            LayerConfig.Mlp mlp = config.layer(i).mlp();
            if (mlp.experts() != null) {
                count = Math.max(count, mlp.experts().count());
                chosen = Math.max(chosen, mlp.experts().chosen());
                widest = Math.max(widest, mlp.intermediateSize() / group.worldSize());
                ModelWeights.Layer layer = weights.layer(i);
                tables.put(layer.router(), ExpertKernels.table(manager, layer.mlps()));
            }
        }
        int stride = (count + ROUTER_ALIGNMENT - 1) / ROUTER_ALIGNMENT * ROUTER_ALIGNMENT;
        NDArray logits = rows(manager, maxRows, stride);
        ExpertKernels expertKernels =
                new ExpertKernels(
                        gpu.device(),
                        config.type(),
                        manager,
                        maxRows * chosen,
                        config.hiddenSize(),
                        widest);
        return new Experts(expertKernels, logits, tables);
    }

    private NDArray rows(NDManager manager, int rows, int size) {
        return Torch.empty(manager, new Shape(rows, size), config.type());
    }

    /**
     * The first partial sum of a step: what this rank has of the first layer's input, zeros in the
     * rows of other ranks. The step overwrites it.
     */
    NDArray firstPartial() {
        return residuals[0];
    }

    /**
     * Returns whether a step is large, which depends on its number of rows:
     *
     * <ul>
     *   <li>with adapters, on GPUs with a {@link WideMatmul}: more than {@value #FEW_ROWS}, because
     *       the adapters' kernels do not fit on an SM beside {@link DecoderKernels#matmul}
     *   <li>otherwise: more than {@link ModelKernels#matmulRows}
     *   <li>batch-invariant decoder or INT4 weights: never
     * </ul>
     *
     * @param adapted whether rows may have adapters
     */
    boolean isLarge(int rows, boolean adapted) {
        // With INT4, reading the weights again for each 32 rows is faster than converting them.
        Quantization quantization = weights.format().quantization();
        if (batchInvariant || quantization == Quantization.INT4) {
            return false;
        }
        boolean besideAdapters = adapted && wideMatmul != null;
        return rows > (besideAdapters ? FEW_ROWS : ModelKernels.matmulRows(quantization, false));
    }

    /**
     * Begins to record or launch a step. Its kernels read {@link #firstPartial} when they run.
     *
     * @param lora launches the kernels of the rows' adapters; empty if no row has an adapter
     */
    Step begin(int rows, Optional<LoraKernels.Step> lora) {
        return new Step(rows, lora);
    }

    private static NDArray first(NDArray array, int rows) {
        return array.get(new NDIndex().addSliceDim(0, rows));
    }

    /** Returns the first {@code width} rows of a weight. */
    private static QuantizeKernels.Matrix matrix(
            ModelWeights.Linear linear, long width, long depth) {
        QuantizedMatrix quantized = linear.quantized();
        return quantized == null
                ? new QuantizeKernels.Matrix(
                        16, Torch.dataPointer(linear.weight()), 0, width, depth)
                : new QuantizeKernels.Matrix(
                        quantized.format().bits(),
                        quantized.weights(),
                        quantized.scales(),
                        width,
                        depth);
    }

    private static long bias(ModelWeights.Linear linear) {
        return linear.bias() == null ? 0 : Torch.dataPointer(linear.bias());
    }

    @Override
    public void close() {
        experts.ifPresent(of -> of.kernels.close());
    }

    /** A step that is being recorded or launched. */
    final class Step {

        private final int rows;
        private final boolean large;
        private final boolean chained;
        private final Optional<LoraKernels.Step> lora; // empty if no row has an adapter
        // Those of the next matmul; empty if it has none.
        private Optional<LoraKernels.Step> adapters = Optional.empty();
        private final List<MatmulChain.Link> links = new ArrayList<>(); // of the next chain
        private NDArray partial; // this rank's addend of the residual stream
        private Product.Scales scales; // of the partial's rows and columns, to be applied; or null
        private NDArray sum; // the residual stream; zeros at first
        private NDArray free; // for the next partial sum, or in a chain for the next sum
        private NDArray spare; // becomes free at the first norm, in place of zeros; then null

        private Step(int rows, Optional<LoraKernels.Step> lora) {
            this.rows = rows;
            this.lora = lora;
            large = DecoderMatmuls.this.isLarge(rows, lora.isPresent());
            // A chain normalises rows itself, but lora_shrink reads normalised rows.
            chained = chain != null && !large && lora.isEmpty() && chain.isFor(rows);
            partial = first(residuals[0], rows);
            sum = first(zeros, rows);
            free = first(residuals[1], rows);
            spare = first(residuals[2], rows);
        }

        boolean isLarge() {
            return large;
        }

        /** Returns whether matmuls wait for {@link #launchChain}. */
        boolean isChained() {
            return chained;
        }

        /** Launches the matmuls since the last chain. No-op if there are none. */
        void launchChain() {
            if (!links.isEmpty()) {
                chain.launch(stream, rows, Torch.dataPointer(chainArrivals), links);
                links.clear();
            }
        }

        /**
         * Adds all ranks' partial sums to the residual stream, and multiplies the RMSNorm of the
         * sum by a projection, bias included. Writes {@code width} columns of {@code out} from
         * {@code column} on; with a bias they must be all of its columns. If the step is chained,
         * {@link #launchChain} launches it.
         */
        void multiplyNormed(
                NDArray out,
                int column,
                NDArray normWeight,
                ModelWeights.Linear linear,
                int width) {
            multiplyNormed(false, out, column, normWeight, linear, width);
        }

        /**
         * Computes this rank's partial sum, which is added to the residual stream next. With one
         * rank, an e4m3 product by cuBLASLt without a bias is left unscaled; {@link #scales} then
         * has its scales.
         */
        void multiplyToPartial(NDArray x, ModelWeights.Linear linear) {
            int depth = (int) x.getShape().get(1);
            shrink(linear, x, depth);
            // The bias is added once by all ranks together.
            ModelWeights.Linear own = group.rank() == 0 ? linear : linear.withBias(null);
            int hidden = config.hiddenSize();
            boolean usesCublas = large && !usesWideMatmul(hidden, hidden);
            boolean isAlone = group.worldSize() == 1;
            if (isAlone && usesCublas && own.quantized() != null && own.bias() == null) {
                long to = Torch.dataPointer(partial);
                scales = gpu.multiplyUnscaled(e4m3(x, depth), own.quantized(), to, hidden);
            } else {
                scales = null;
                multiply(false, partial, 0, x, own, hidden, depth, null);
            }
        }

        /**
         * As {@link #multiplyNormed}, for gates and values: returns {@code silu(gates) * values},
         * in a buffer.
         */
        NDArray multiplyGated(NDArray normWeight, ModelWeights.Linear gateUp) {
            multiplyNormed(true, activated, 0, normWeight, gateUp, inner);
            return activated;
        }

        /** Returns whether a matmul becomes a part of the next chain; if not, launches that. */
        private boolean isChained(ModelWeights.Linear linear) {
            if (chained && chain.isFor(matrix(linear, 0, 0))) {
                return true;
            }
            launchChain();
            return false;
        }

        private void multiplyNormed(
                boolean gated,
                NDArray out,
                int column,
                NDArray normWeight,
                ModelWeights.Linear linear,
                int width) {
            MatmulChain.Norm chainNorm = null;
            NDArray x;
            if (isChained(linear)) {
                x = partial;
                NDArray oldSum = sum;
                chainNorm =
                        new MatmulChain.Norm(
                                Torch.dataPointer(normWeight),
                                Torch.dataPointer(sum),
                                Torch.dataPointer(free),
                                (float) config.epsilon());
                sum = free;
                free(oldSum);
            } else {
                x = nextNorm(normWeight);
            }
            shrink(linear, x, config.hiddenSize());
            multiply(gated, out, column, x, linear, width, config.hiddenSize(), chainNorm);
        }

        /** Returns the norm of the sum of residual stream and partial sum, the next residual. */
        private NDArray nextNorm(NDArray normWeight) {
            NDArray oldSum = sum;
            NDArray x = addAndNorm(normWeight);
            sum = partial;
            partial = free;
            free(oldSum);
            return x;
        }

        private void free(NDArray oldSum) {
            free = spare == null ? oldSum : spare;
            spare = null;
        }

        /**
         * Adds all ranks' partial sums to the residual stream, and computes a mixture of experts of
         * the RMSNorm of the sum. The result is this rank's next partial sum.
         *
         * @param positions as {@link ExpertKernels.Mixture#positions}
         */
        void experts(
                NDArray normWeight, ModelWeights.Layer layer, LayerConfig.Mlp mlp, long positions) {
            launchChain(); // Experts read normalised rows, which a chain does not store.
            NDArray x = nextNorm(normWeight);
            scales = null;
            int hidden = config.hiddenSize();
            Experts of = experts.orElseThrow();
            shrink(layer.router(), x, hidden);
            multiply(false, of.logits, 0, x, layer.router(), mlp.experts().count(), hidden, null);
            launchChain();
            of.kernels.launch(
                    stream,
                    rows,
                    new ExpertKernels.Mixture(
                            mlp.experts(),
                            mlp.intermediateSize() / group.worldSize(),
                            Torch.dataPointer(of.tables.get(layer.router())),
                            Torch.dataPointer(of.logits),
                            of.logits.getShape().get(1),
                            positions,
                            Torch.dataPointer(x),
                            Torch.dataPointer(partial)));
        }

        /** Launches the first kernel of the next matmul's adapters, if it may have adapters. */
        private void shrink(ModelWeights.Linear linear, NDArray x, int depth) {
            adapters = lora.filter(step -> projections.containsKey(linear));
            adapters.ifPresent(
                    step -> step.shrink(projections.get(linear), Torch.dataPointer(x), depth));
        }

        /** Launches the second kernel; returns the addend. {@code outputs}: rows of the weight. */
        private DecoderKernels.Addend expand(long outputs) {
            return adapters.map(step -> step.expand(outputs)).orElse(DecoderKernels.Addend.NONE);
        }

        /**
         * Writes the sum in place of the partial sum, and returns its norm, in e4m3 for a large
         * step of quantized weights.
         */
        private NDArray addAndNorm(NDArray weight) {
            int hidden = config.hiddenSize();
            float epsilon = (float) config.epsilon();
            boolean isRounded = large && weights.format().quantization() != Quantization.NONE;
            if (group.worldSize() > 1 && isRounded) {
                NDArray rounded =
                        Torch.narrow(e4m3Rows, 0, 0, (long) rows * hidden).reshape(rows, hidden);
                NormedResidual to = new NormedResidual(partial, rounded);
                NDArray roundedScales = Torch.narrow(e4m3Scales, 0, 0, rows);
                FusedOps.allReduceRmsNorm(to, roundedScales, partial, sum, weight, epsilon, group);
                return e4m3Rows;
            }
            if (group.worldSize() > 1) {
                NormedResidual to = new NormedResidual(partial, first(norm, rows));
                FusedOps.allReduceRmsNorm(to, partial, sum, weight, epsilon, group);
                return norm;
            }
            long address = Torch.dataPointer(partial);
            RmsNormKernels.Rows arrays =
                    new RmsNormKernels.Rows(
                            address,
                            Torch.dataPointer(norm),
                            address,
                            Torch.dataPointer(sum),
                            Torch.dataPointer(weight),
                            config.type(),
                            rows,
                            hidden);
            if (!isRounded) {
                gpu.norms().add(arrays, epsilon);
                return norm;
            }
            gpu.quantize().norm(arrays, scales, epsilon, e4m3Rows(hidden));
            return e4m3Rows;
        }

        /**
         * Multiplies x by a weight and adds its bias; if the step is chained, only adds the matmul
         * to the chain. If {@code gated}, the weight has {@code width} rows of gates, then of
         * values, and the result is {@code silu(gates) * values}. {@code chainNorm} normalises x
         * first; null for none.
         */
        private void multiply(
                boolean gated,
                NDArray out,
                int column,
                NDArray x,
                ModelWeights.Linear linear,
                int width,
                int depth,
                MatmulChain.Norm chainNorm) {
            if (large) {
                multiplyLarge(gated, out, column, x, linear, width, depth);
                return;
            }
            MatmulChain.Link link =
                    new MatmulChain.Link(
                            gated,
                            Torch.dataPointer(out) + (long) column * config.type().itemSize(),
                            out.getShape().get(1),
                            Torch.dataPointer(x),
                            matrix(linear, gated ? 2L * width : width, depth),
                            bias(linear),
                            chainNorm);
            if (isChained(linear)) {
                links.add(link);
            } else {
                kernels.matmul(stream, rows, link, expand(link.weight().rows()));
            }
        }

        /** As {@link #multiply}, by {@link WideMatmul} if it supports the matmul, else cuBLASLt. */
        private void multiplyLarge(
                boolean gated,
                NDArray out,
                int column,
                NDArray x,
                ModelWeights.Linear linear,
                int width,
                int depth) {
            QuantizedMatrix quantized = linear.quantized();
            long to = Torch.dataPointer(out) + (long) column * config.type().itemSize();
            int stride = (int) out.getShape().get(1);
            if (usesWideMatmul(width, stride)) {
                QuantizeKernels.Matrix left =
                        quantized == null
                                ? new QuantizeKernels.Matrix(
                                        16, Torch.dataPointer(x), 0, rows, depth)
                                : e4m3(x, depth);
                QuantizeKernels.Matrix right = matrix(linear, gated ? 2L * width : width, depth);
                wideMatmul.launch(
                        stream, gated, left, right, bias(linear), to, stride, expand(right.rows()));
                if (gated && quantized != null) {
                    gpu.quantize().quantize(to, e4m3Rows(width));
                }
                return;
            }
            if (gated) {
                multiplyLarge(false, gateUp, 0, x, linear, 2 * width, depth);
                if (quantized == null) {
                    kernels.activate(stream, to, Torch.dataPointer(gateUp), rows, width);
                } else {
                    gpu.quantize().activate(Torch.dataPointer(gateUp), e4m3Rows(width));
                }
                return;
            }
            if (quantized == null) {
                gpu.product(config.type(), rows, width, depth, stride, false)
                        .run(to, Torch.dataPointer(x), Torch.dataPointer(linear.weight()), null);
            } else {
                gpu.multiply(e4m3(x, depth), quantized, to, stride, false);
            }
            adapters.ifPresent(step -> step.expandInto(to, width, stride));
            if (linear.bias() != null) {
                try (NDArray product = first(out, rows)) {
                    product.addi(linear.bias());
                }
            }
        }

        private boolean usesWideMatmul(int width, int stride) {
            return wideMatmul != null && wideMatmul.isFor(rows, width, stride);
        }

        /**
         * Returns x in e4m3, in {@code e4m3Rows}. If x is {@code e4m3Rows} or {@code activated},
         * the previous kernel has written it there already.
         */
        private QuantizeKernels.Matrix e4m3(NDArray x, int depth) {
            QuantizeKernels.Matrix to = e4m3Rows(depth);
            if (x != e4m3Rows && x != activated) {
                gpu.quantize().quantize(Torch.dataPointer(x), to);
            }
            return to;
        }

        private QuantizeKernels.Matrix e4m3Rows(int depth) {
            return new QuantizeKernels.Matrix(
                    8, Torch.dataPointer(e4m3Rows), Torch.dataPointer(e4m3Scales), rows, depth);
        }
    }
}

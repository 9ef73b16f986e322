// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.jni.JniUtils;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.LongStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.WeightMap;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.CpuKernels;
import org.djlx.nativeops.host.HostCopier;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Decode steps on a CPU with {@link CpuKernels}. Each row is a token; several rows may be adjacent
 * tokens of one sequence. Reads weights where they are, once for a few rows. All activations are
 * float32, whatever the model's type; keys and values are rounded to that type. A sequence's logits
 * do not depend on the other sequences.
 */
final class CpuDecoder implements AutoCloseable {

    private static final ScalarType FLOAT = ScalarType.FLOAT32;

    private final ModelConfig config;
    private final ProcessGroup group;
    private final Attention attention;
    private final HostCopier copier = new HostCopier();
    private final NDManager constants; // norms and biases in float32
    private final List<Layer> layers = new ArrayList<>();
    private final NDArray embedding;
    private final float embeddingScale; // rounded to the model's type
    private final long finalNorm;
    private final Projection output;
    private final int hidden;
    private final int queryHeads;
    private final int kvHeads;
    private final int threads;
    private final float epsilon;
    private int capacity; // the rows that the buffers have
    private NativeMemory memory; // of the buffers; null at first
    private long residual; // (rows, hidden size)
    private long normed; // (rows, hidden size)
    private long partial; // (rows, hidden size): this rank's addend of the residual, then the sum
    private long wide; // (rows, outputs of queriesKeysValues, gateUp or router)
    private long narrow; // (rows, inputs of attentionOut or down)
    private long positions; // (rows), int
    private long slots; // (rows, longest sequence), int

    /**
     * A projection.
     *
     * @param parts the address of {@code count} parts for {@link CpuKernels#djlx_cpu_products}
     */
    private record Projection(long inputs, long outputs, long count, long parts) {

        /** Writes the product of x to out. */
        void multiply(int threads, long rows, long x, long out) {
            multiplyAndAdd(threads, rows, x, 0, out);
        }

        /** Adds factor times the product of x to out; overwrites out if the factor is 0. */
        void multiplyAndAdd(int threads, long rows, long x, float factor, long out) {
            CpuKernels.djlx_cpu_products(
                    threads, rows, inputs, count, parts, outputs, x, factor, out);
        }
    }

    /** A layer. Vectors, tables and caches are addresses; a norm is 0 if there is none. */
    private record Layer(
            long attentionNorm,
            Projection queriesKeysValues,
            long cosines,
            long sines,
            long keys,
            long values,
            long queryNorm,
            long keyNorm,
            Projection attentionOut,
            long attentionPostNorm,
            long mlpNorm,
            Projection router,
            List<Projection> gateUps,
            List<Projection> downs,
            long mlpPostNorm) {}

    /** {@return whether a device can decode with kernels} */
    static boolean supports(Device device) {
        return !device.isGpu() && NativeLibrary.CPU_KERNELS.isAvailable();
    }

    CpuDecoder(
            ModelConfig config,
            ProcessGroup group,
            ModelWeights weights,
            KvCache cache,
            Attention attention,
            NDManager manager) {
        this.config = config;
        this.group = group;
        this.attention = attention;
        constants = manager.newSubManager();
        hidden = config.hiddenSize();
        queryHeads = config.heads() / group.worldSize();
        kvHeads = WeightMap.kvHeads(config, group.worldSize());
        threads = JniUtils.getNumThreads();
        epsilon = (float) config.epsilon();
        embedding = weights.embedding();
        try (NDArray scale = constants.create((float) config.embeddingScale());
                NDArray rounded = Torch.cast(scale, config.type());
                NDArray widened = Torch.cast(rounded, FLOAT)) {
            embeddingScale = widened.getFloat();
        }
        finalNorm = constant(weights.norm());
        output = projection(weights.output());
        for (int i = 0; i < config.layers(); i++) {
            layers.add(layer(i, weights.layer(i), cache));
        }
    }

    private Layer layer(int index, ModelWeights.Layer of, KvCache cache) {
        Attention.Tables tables = attention.tables(index);
        List<Projection> gateUps = new ArrayList<>();
        List<Projection> downs = new ArrayList<>();
        for (ModelWeights.Mlp mlp : of.mlps()) {
            gateUps.add(projection(mlp.gateUp()));
            downs.add(rowParallel(mlp.down()));
        }
        return new Layer(
                constant(of.attentionNorm()),
                projection(of.queriesKeysValues()),
                Torch.dataPointer(tables.cosines()),
                Torch.dataPointer(tables.sines()),
                Torch.dataPointer(cache.keys(index)),
                Torch.dataPointer(cache.values(index)),
                constant(of.queryNorm()),
                constant(of.keyNorm()),
                rowParallel(of.attentionOut()),
                constant(of.attentionPostNorm()),
                constant(of.mlpNorm()),
                of.router() == null ? null : projection(new ModelWeights.Linear(of.router(), null)),
                gateUps,
                downs,
                constant(of.mlpPostNorm()));
    }

    /** Returns a projection that is summed over ranks: only rank 0 adds the bias. */
    private Projection rowParallel(ModelWeights.Linear linear) {
        return projection(linear.withBias(group.rank() == 0 ? linear.bias() : null));
    }

    private Projection projection(ModelWeights.Linear linear) {
        long bias = constant(linear.bias());
        QuantizedMatrix quantized = linear.quantized();
        if (quantized != null) {
            long outputs = quantized.outputs();
            long stride = 0; // not read
            long[] part = {quantized.type(), outputs, stride, quantized.weights(), bias};
            return projection(quantized.inputs(), outputs, part);
        }
        LongStream.Builder parts = LongStream.builder();
        long inputs = 0;
        long outputs = 0;
        for (NDArray weight : linear.weights()) { // transposed views: (inputs, outputs)
            inputs = weight.getShape().get(0);
            parts.add(Torch.scalarType(weight).code())
                    .add(weight.getShape().get(1))
                    .add(Torch.info(weight).strides()[1])
                    .add(Torch.dataPointer(weight))
                    .add(bias == 0 ? 0 : bias + outputs * Float.BYTES);
            outputs += weight.getShape().get(1);
        }
        return projection(inputs, outputs, parts.build().toArray());
    }

    private Projection projection(long inputs, long outputs, long[] parts) {
        long address = Torch.dataPointer(constants.create(parts));
        return new Projection(inputs, outputs, parts.length / CpuKernels.PART_LONGS, address);
    }

    /** Returns the address of a vector in float32; 0 for null. */
    private long constant(NDArray vector) {
        if (vector == null) {
            return 0;
        }
        NDArray widened = Torch.cast(vector, FLOAT);
        widened.attach(constants);
        return Torch.dataPointer(widened);
    }

    /**
     * Computes tokens, and writes their keys and values to the cache. All ranks call this at the
     * same time.
     *
     * @param chunks the tokens: chunks of one token each
     * @param manager the manager of the result
     * @return the logits of this rank's part of the vocabulary in float32, a row for each chunk
     *     that needs logits; null if there is none
     */
    NDArray decode(List<TokenBatch.Chunk> chunks, NDManager manager) {
        int rows = chunks.size();
        reserve(rows);
        int length = place(chunks);
        Shape shape = new Shape(rows, hidden);
        try (NDManager step = manager.newSubManager()) {
            NDArray residuals = Torch.view(step, memory, residual - memory.address(), shape, FLOAT);
            NDArray partials = Torch.view(step, memory, partial - memory.address(), shape, FLOAT);
            embed(chunks);
            allReduce(residuals);
            norm(rows, residual, 0, layers.get(0).attentionNorm, normed);
            for (int i = 0; i < layers.size(); i++) {
                Layer layer = layers.get(i);
                layer.queriesKeysValues.multiply(threads, rows, normed, wide);
                attend(i, rows, length);
                layer.attentionOut.multiply(threads, rows, narrow, partial);
                allReduce(partials);
                addAndNorm(rows, layer.attentionPostNorm, layer.mlpNorm);
                mlp(layer, config.layer(i).mlp(), rows);
                allReduce(partials);
                boolean last = i + 1 == layers.size();
                addAndNorm(rows, layer.mlpPostNorm, last ? 0 : layers.get(i + 1).attentionNorm);
            }
        }
        return logits(chunks, manager);
    }

    /** Makes room for rows. */
    private void reserve(int rows) {
        if (rows <= capacity) {
            return;
        }
        long head = config.headSize();
        long inner = config.intermediateSize() / group.worldSize();
        long wideSize = Math.max((queryHeads + 2L * kvHeads) * head, 2 * inner);
        for (Layer layer : layers) {
            wideSize = Math.max(wideSize, layer.router == null ? 0 : layer.router.outputs());
        }
        long narrowSize = Math.max(queryHeads * head, inner);
        // Of residual, normed, partial, wide, narrow, positions and slots.
        long[] sizes = {hidden, hidden, hidden, wideSize, narrowSize, 1, attention.maxLength()};
        long[] offsets = new long[sizes.length + 1];
        for (int i = 0; i < sizes.length; i++) {
            long bytes = rows * sizes[i] * Float.BYTES;
            offsets[i + 1] = offsets[i] + (bytes + 63) / 64 * 64;
        }
        NativeMemory larger = NativeMemory.allocateZeros(offsets[sizes.length], false);
        close(); // frees the old buffers
        memory = larger;
        capacity = rows;
        long address = larger.address();
        residual = address;
        normed = address + offsets[1];
        partial = address + offsets[2];
        wide = address + offsets[3];
        narrow = address + offsets[4];
        positions = address + offsets[5];
        slots = address + offsets[6];
    }

    /** Writes positions and slots; returns the length of the longest sequence. */
    private int place(List<TokenBatch.Chunk> chunks) {
        int length = chunks.stream().mapToInt(TokenBatch.Chunk::length).max().orElseThrow();
        int[] starts = chunks.stream().mapToInt(TokenBatch.Chunk::start).toArray();
        copier.write(positions, starts, starts.length);
        long address = slots;
        for (TokenBatch.Chunk chunk : chunks) {
            copier.write(address, chunk.slots(), chunk.length());
            address += (long) length * Integer.BYTES;
        }
        return length;
    }

    /** Looks up this rank's part of the vocabulary; other tokens are zeros. */
    private void embed(List<TokenBatch.Chunk> chunks) {
        long own = embedding.getShape().get(0);
        ScalarType type = config.type();
        long row = 0;
        for (TokenBatch.Chunk chunk : chunks) {
            long token = chunk.tokens()[0] - own * group.rank();
            boolean here = token >= 0 && token < own;
            long offset = (here ? token : 0) * hidden * type.itemSize();
            CpuKernels.djlx_cpu_widen(
                    type.code(),
                    hidden,
                    here ? embeddingScale : 0,
                    Torch.dataPointer(embedding) + offset,
                    residual + row++ * hidden * Float.BYTES);
        }
    }

    private void allReduce(NDArray rows) {
        if (group.worldSize() > 1) {
            group.allReduce(rows, ReduceOp.SUM, false);
        }
    }

    /**
     * Adds {@code partial}, normed first unless {@code postNorm} is 0, to {@code residual}. Then
     * writes the norm of {@code residual} to {@code normed}, unless {@code norm} is 0.
     */
    private void addAndNorm(int rows, long postNorm, long norm) {
        if (postNorm != 0) {
            norm(rows, partial, 0, postNorm, partial);
        }
        norm(rows, residual, partial, norm, norm == 0 ? 0 : normed);
    }

    /** Adds delta to x, unless delta is 0; then writes the norm of x to out, unless out is 0. */
    private void norm(int rows, long x, long delta, long weight, long out) {
        CpuKernels.djlx_cpu_rms_norm(rows, hidden, x, delta, weight, epsilon, out);
    }

    private void attend(int index, int rows, int length) {
        LayerConfig.Attention of = config.layer(index).attention();
        Layer layer = layers.get(index);
        CpuKernels.djlx_cpu_attention(
                threads,
                config.type().code(),
                rows,
                queryHeads,
                kvHeads,
                config.headSize(),
                length,
                of.window(),
                (float) of.scale(),
                (float) of.cap(),
                epsilon,
                wide,
                layer.queryNorm,
                layer.keyNorm,
                layer.cosines,
                layer.sines,
                positions,
                slots,
                layer.keys,
                layer.values,
                narrow);
    }

    private void mlp(Layer layer, LayerConfig.Mlp mlp, int rows) {
        if (layer.router == null) {
            gate(layer, 0, mlp, rows, normed);
            layer.downs.get(0).multiply(threads, rows, narrow, partial);
            return;
        }
        layer.router.multiply(threads, rows, normed, wide);
        float[] routerLogits = new float[rows * (int) layer.router.outputs()];
        copier.read(wide, routerLogits, routerLogits.length);
        float[] zeros = new float[rows * hidden];
        copier.write(partial, zeros, zeros.length);
        Map<Integer, ExpertRouter> routes = ExpertRouter.route(mlp.experts(), routerLogits);
        routes.forEach(
                (expert, route) -> {
                    for (int i = 0; i < route.tokens().length; i++) {
                        long offset = route.tokens()[i] * hidden * Float.BYTES;
                        float factor = route.weights()[i];
                        gate(layer, expert, mlp, 1, normed + offset);
                        Projection down = layer.downs.get(expert);
                        down.multiplyAndAdd(threads, 1, narrow, factor, partial + offset);
                    }
                });
    }

    /** Writes an expert's gated activations of x to {@code narrow}. */
    private void gate(Layer layer, int expert, LayerConfig.Mlp mlp, int rows, long x) {
        Projection gateUp = layer.gateUps.get(expert);
        gateUp.multiply(threads, rows, x, wide);
        int gelu = mlp.activation() == LayerConfig.Activation.GELU_TANH ? 1 : 0;
        CpuKernels.djlx_cpu_gate(rows, gateUp.outputs() / 2, gelu, wide, narrow);
    }

    private NDArray logits(List<TokenBatch.Chunk> chunks, NDManager manager) {
        int count = 0;
        for (int row = 0; row < chunks.size(); row++) {
            if (chunks.get(row).needsLogits()) {
                long size = (long) hidden * Float.BYTES;
                norm(1, residual + row * size, 0, finalNorm, normed + count++ * size);
            }
        }
        if (count == 0) {
            return null;
        }
        NDArray logits = Torch.empty(manager, new Shape(count, output.outputs()), FLOAT);
        output.multiply(threads, count, normed, Torch.dataPointer(logits));
        return logits;
    }

    @Override
    public void close() {
        if (memory != null) {
            memory.close();
        }
    }
}

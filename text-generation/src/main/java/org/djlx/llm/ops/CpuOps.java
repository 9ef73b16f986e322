// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.jni.JniUtils;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.LoraConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.CpuKernels;
import org.djlx.nativeops.host.HostCopier;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * The operators of decode steps on a CPU and, with quantized weights, of prompts, with {@link
 * CpuKernels}; rows are given by address. Each row is a token; several rows may be adjacent tokens
 * of one sequence. Reads weights where they are, once for a few rows. All activations are float32,
 * whatever the model's type; keys and values are rounded to that type. A sequence's logits do not
 * depend on the other sequences.
 */
final class CpuOps implements LayerOps<Long>, AutoCloseable {

    private static final ScalarType FLOAT = ScalarType.FLOAT32;
    private static final int MAX_ROWS = 512; // whose activations fit into L2, or nearly

    private final RankModel model;
    private final ModelConfig config;
    private final ProcessGroup group;
    private final HostCopier copier = new HostCopier();
    private final NDManager constants; // norms and biases in float32

    // What kernels read of projections and norms, by the objects of ModelWeights.
    private final Map<Object, Projection> projections = new IdentityHashMap<>();
    private final Map<NDArray, Long> vectors = new IdentityHashMap<>();
    private final NDArray embedding;
    private final int hidden;
    private final int queryHeads;
    private final int kvHeads;
    private final int threads;
    private int capacity; // the rows that the buffers have
    private NativeMemory memory; // of the buffers; null at first
    private long residual; // (rows, hidden size)
    private long normed; // (rows, hidden size)
    private long partial; // (rows, hidden size)
    private long wide; // (rows, outputs of queriesKeysValues, gateUp or router)
    private long narrow; // (rows, inputs of attentionOut or down)
    private long lowRank; // (rows, outputs of an adapter's A)
    private long positions; // (rows), int
    private long slots; // (rows, longest sequence), int

    // The step.
    private List<TokenBatch.Chunk> chunks;
    private List<Adapters.Segment> segments; // rows with adapters
    private NDManager manager; // of the logits
    private int rows;
    private int length; // of the longest sequence
    private boolean hasPartial;

    /**
     * A projection: {@code parts} is the address of {@code count} parts for {@link
     * CpuKernels#djlx_cpu_products}.
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

    static boolean supports(Device device, ModelConfig config) {
        return !device.isGpu()
                && NativeLibrary.CPU_KERNELS.isAvailable()
                && config.layerConfigs().stream().allMatch(CpuOps::supports);
    }

    /** Returns whether chunks of several tokens are computed as well as by libtorch, or better. */
    boolean supportsPrompts() {
        return model.weights().layers().stream()
                .allMatch(
                        layer ->
                                layer.router() == null
                                        && layer.queriesKeysValues().quantized() != null);
    }

    private static boolean supports(LayerConfig layer) {
        return !layer.attention().sinks()
                && layer.mlp().activation() != LayerConfig.Activation.CLAMPED_SILU;
    }

    CpuOps(RankModel model, NDManager manager) {
        this.model = model;
        config = model.config();
        group = model.group();
        constants = manager.newSubManager();
        hidden = config.hiddenSize();
        queryHeads = model.queryHeads();
        kvHeads = model.kvHeads();
        threads = JniUtils.getNumThreads();
        embedding = model.weights().embedding();
    }

    /** Returns a column-parallel projection as kernels take it. */
    private Projection columns(ModelWeights.Linear linear) {
        return projections.computeIfAbsent(linear, key -> projection(linear));
    }

    /** Returns a projection that is summed over ranks: only rank 0 adds the bias. */
    private Projection rows(ModelWeights.Linear linear) {
        return projections.computeIfAbsent(
                linear, key -> projection(group.rank() == 0 ? linear : linear.withBias(null)));
    }

    private Projection projection(ModelWeights.Linear linear) {
        long bias = constant(linear.bias());
        QuantizedMatrix quantized = linear.quantized();
        if (quantized != null) {
            return projection(quantized.inputs(), quantized.outputs(), quantized.kernelParts(bias));
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
        return vector == null ? 0 : vectors.computeIfAbsent(vector, this::widened);
    }

    private long widened(NDArray vector) {
        NDArray widened = Torch.cast(vector, FLOAT);
        widened.attach(constants);
        return Torch.dataPointer(widened);
    }

    /**
     * Computes chunks, and writes their keys and values to the cache. All ranks call this at the
     * same time. Returns the logits of this rank's part of the vocabulary in float32, a row for
     * each chunk that needs logits, in arrays of some chunks each.
     */
    List<NDArray> compute(List<TokenBatch.Chunk> chunks, NDManager manager) {
        this.manager = manager;
        List<NDArray> logits = new ArrayList<>();
        List<TokenBatch.Chunk> pass = new ArrayList<>();
        int tokens = 0;
        for (TokenBatch.Chunk chunk : chunks) {
            for (TokenBatch.Chunk piece : pieces(chunk)) {
                if (tokens > 0 && tokens + piece.tokens().length > MAX_ROWS) {
                    compute(pass).ifPresent(logits::add);
                    pass.clear();
                    tokens = 0;
                }
                pass.add(piece);
                tokens += piece.tokens().length;
            }
        }
        if (!pass.isEmpty()) {
            compute(pass).ifPresent(logits::add);
        }
        return logits;
    }

    /** Divides a chunk into equal pieces of at most {@link #MAX_ROWS} tokens. */
    private static List<TokenBatch.Chunk> pieces(TokenBatch.Chunk chunk) {
        int tokens = chunk.tokens().length;
        if (tokens <= MAX_ROWS) {
            return List.of(chunk);
        }
        int count = (tokens + MAX_ROWS - 1) / MAX_ROWS;
        return IntStream.range(0, count)
                .mapToObj(i -> chunk.part(tokens * i / count, tokens * (i + 1) / count))
                .toList();
    }

    private Optional<NDArray> compute(List<TokenBatch.Chunk> pass) {
        chunks = pass;
        segments = model.adapters().segments(chunks);
        rows = chunks.stream().mapToInt(chunk -> chunk.tokens().length).sum();
        hasPartial = false;
        reserve();
        place();
        embed();
        allReduce(residual);
        ForwardPass.layers(model, this, 0, config.layers());
        return Optional.ofNullable(ForwardPass.logits(model, this));
    }

    private void reserve() {
        if (rows <= capacity) {
            return;
        }
        long head = config.headSize();
        long inner = config.intermediateSize() / group.worldSize();
        long wideSize = Math.max((queryHeads + 2L * kvHeads) * head, 2 * inner);
        for (LayerConfig layer : config.layerConfigs()) {
            LayerConfig.Experts experts = layer.mlp().experts();
            wideSize = Math.max(wideSize, experts == null ? 0 : experts.count());
        }
        long narrowSize = Math.max(queryHeads * head, inner);
        long lowRankSize = 3L * LoraConfig.MAX_RANK; // of queries, keys and values
        // Of residual, normed, partial, wide, narrow, lowRank, positions and slots.
        long[] sizes = {
            hidden, hidden, hidden, wideSize, narrowSize, lowRankSize, 1, model.tables().maxLength()
        };
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
        lowRank = address + offsets[5];
        positions = address + offsets[6];
        slots = address + offsets[7];
    }

    private void place() {
        length = chunks.stream().mapToInt(TokenBatch.Chunk::length).max().orElseThrow();
        int[] starts =
                chunks.stream()
                        .flatMapToInt(chunk -> IntStream.range(chunk.start(), chunk.length()))
                        .toArray();
        copier.write(positions, starts, starts.length);
        long address = slots;
        for (TokenBatch.Chunk chunk : chunks) {
            copier.write(address, chunk.slots(), chunk.length());
            address += (long) length * Integer.BYTES;
        }
    }

    /** Looks up this rank's part of the vocabulary; other tokens are zeros. */
    private void embed() {
        long own = embedding.getShape().get(0);
        ScalarType type = config.type();
        long row = 0;
        for (TokenBatch.Chunk chunk : chunks) {
            for (int id : chunk.tokens()) {
                long token = id - own * group.rank();
                boolean here = token >= 0 && token < own;
                long offset = (here ? token : 0) * hidden * type.itemSize();
                CpuKernels.djlx_cpu_widen(
                        type.code(),
                        hidden,
                        here ? (float) config.embeddingScale() : 0,
                        Torch.dataPointer(embedding) + offset,
                        residual + row++ * hidden * Float.BYTES);
            }
        }
    }

    private void allReduce(long address) {
        if (group.worldSize() > 1) {
            Shape shape = new Shape(rows, hidden);
            try (NDArray view =
                    Torch.view(constants, memory, address - memory.address(), shape, FLOAT)) {
                group.allReduce(view, ReduceOp.SUM, false);
            }
        }
    }

    /**
     * Adds {@code partial} of all ranks to {@code residual}, normed first unless {@code postNorm}
     * is null. Returns {@code normed} with the norm of {@code residual}, or {@code residual} if
     * {@code norm} is null.
     */
    private long addAndNorm(NDArray postNorm, NDArray norm) {
        long delta = hasPartial ? partial : 0;
        if (hasPartial) {
            allReduce(partial);
            if (postNorm != null) {
                norm(rows, partial, 0, constant(postNorm), partial);
            }
        }
        norm(rows, residual, delta, constant(norm), norm == null ? 0 : normed);
        hasPartial = false;
        return norm == null ? residual : normed;
    }

    /** Adds delta to x, unless delta is 0; then writes the norm of x to out, unless out is 0. */
    private void norm(int rows, long x, long delta, long weight, long out) {
        CpuKernels.djlx_cpu_rms_norm(threads, rows, hidden, x, delta, weight, model.epsilon(), out);
    }

    @Override
    public Long project(NDArray postNorm, NDArray norm, ModelWeights.Linear linear) {
        long x = addAndNorm(postNorm, norm);
        columns(linear).multiply(threads, rows, x, wide);
        adapt(linear, x, wide);
        return wide;
    }

    /** Adds the adapters of rows to a projection of x. */
    private void adapt(ModelWeights.Linear linear, long x, long out) {
        for (Adapters.Segment segment : segments) {
            Adapters.LowRank part = segment.parts().get(linear);
            if (part == null) {
                continue;
            }
            NDArray a = part.a().weight();
            NDArray b = part.b().weight();
            long row = (long) segment.first() * Float.BYTES;
            add(segment.rows(), x + row * a.getShape().get(0), a, 0, lowRank);
            add(segment.rows(), lowRank, b, 1, out + row * b.getShape().get(1));
        }
    }

    /**
     * As {@link Projection#multiplyAndAdd}, for the weight of an adapter: its address must not be
     * kept, because the adapter may be removed.
     */
    private void add(long rows, long x, NDArray weight, float factor, long out) {
        long inputs = weight.getShape().get(0);
        long outputs = weight.getShape().get(1);
        CpuKernels.djlx_cpu_product(
                threads,
                config.type().code(),
                rows,
                inputs,
                outputs,
                inputs,
                outputs,
                x,
                Torch.dataPointer(weight),
                0,
                factor,
                out);
    }

    @Override
    public Long projectGated(
            NDArray postNorm, NDArray norm, ModelWeights.Linear gateUp, LayerConfig.Mlp mlp) {
        long x = addAndNorm(postNorm, norm);
        columns(gateUp).multiply(threads, rows, x, wide);
        adapt(gateUp, x, wide);
        gate(mlp, rows, columns(gateUp).outputs / 2);
        return narrow;
    }

    @Override
    public void projectBack(Long x, ModelWeights.Linear linear) {
        rows(linear).multiply(threads, rows, x, partial);
        adapt(linear, x, partial);
        hasPartial = true;
    }

    @Override
    public Long attend(int index, Long qkv) {
        LayerConfig.Attention of = config.layer(index).attention();
        ModelWeights.Layer layer = model.weights().layer(index);
        RotaryTables.Tables tables = model.tables().of(index);
        boolean normsEach = of.headNorms() == LayerConfig.HeadNorms.EACH_HEAD;
        if (of.headNorms() == LayerConfig.HeadNorms.ALL_HEADS) {
            normAllHeads(layer, qkv);
        }
        int row = 0;
        for (int first = 0; first < chunks.size(); ) {
            int tokens = chunks.get(first).tokens().length;
            int end = first + 1;
            while (tokens == 1 && end < chunks.size() && chunks.get(end).tokens().length == 1) {
                end++;
            }
            int count = tokens == 1 ? end - first : tokens;
            long bytes = (long) row * Float.BYTES;
            CpuKernels.djlx_cpu_attention(
                    threads,
                    config.type().code(),
                    count,
                    queryHeads,
                    kvHeads,
                    config.headSize(),
                    tokens == 1 ? length : 0,
                    of.window(),
                    (float) of.scale(),
                    (float) of.cap(),
                    model.epsilon(),
                    qkv + bytes * (queryHeads + 2L * kvHeads) * config.headSize(),
                    normsEach ? constant(layer.queryNorm()) : 0,
                    normsEach ? constant(layer.keyNorm()) : 0,
                    Torch.dataPointer(tables.cosines()),
                    Torch.dataPointer(tables.sines()),
                    positions + (long) row * Integer.BYTES,
                    slots + (long) first * length * Integer.BYTES,
                    Torch.dataPointer(model.cache().keys(index)),
                    Torch.dataPointer(model.cache().values(index)),
                    narrow + bytes * queryHeads * config.headSize());
            row += count;
            first = end;
        }
        return narrow;
    }

    private void normAllHeads(ModelWeights.Layer layer, long qkv) {
        Shape shape = new Shape(rows, queryHeads + 2L * kvHeads, config.headSize());
        try (NDManager step = constants.newSubManager()) {
            NDArray heads = Torch.view(step, memory, qkv - memory.address(), shape, FLOAT);
            NDArray normed = model.normAllHeads(heads, layer);
            Torch.copy(Torch.narrow(heads, 1, 0, queryHeads + kvHeads), normed);
        }
    }

    @Override
    public void experts(
            NDArray postNorm, NDArray norm, ModelWeights.Layer layer, LayerConfig.Mlp mlp) {
        long x = addAndNorm(postNorm, norm);
        Projection router = columns(layer.router());
        router.multiply(threads, rows, x, wide);
        float[] routerLogits = new float[rows * (int) router.outputs()];
        copier.read(wide, routerLogits, routerLogits.length);
        float[] zeros = new float[rows * hidden];
        copier.write(partial, zeros, zeros.length);
        Map<Integer, ExpertRouter> routes = ExpertRouter.route(mlp.experts(), routerLogits);
        routes.forEach(
                (expert, route) -> {
                    for (int i = 0; i < route.tokens().length; i++) {
                        long offset = route.tokens()[i] * hidden * Float.BYTES;
                        float factor = route.weights()[i];
                        Projection gateUp = columns(layer.mlps().get(expert).gateUp());
                        gateUp.multiply(threads, 1, x + offset, wide);
                        gate(mlp, 1, gateUp.outputs / 2);
                        Projection down = rows(layer.mlps().get(expert).down());
                        down.multiplyAndAdd(threads, 1, narrow, factor, partial + offset);
                    }
                });
        hasPartial = true;
    }

    /** Writes the gated activations of {@code wide} to {@code narrow}. */
    private void gate(LayerConfig.Mlp mlp, int rows, long inner) {
        int gelu = mlp.activation() == LayerConfig.Activation.GELU_TANH ? 1 : 0;
        CpuKernels.djlx_cpu_gate(threads, rows, inner, gelu, wide, narrow);
    }

    @Override
    public NDArray logits(NDArray postNorm, NDArray norm, ModelWeights.Linear linear) {
        addAndNorm(postNorm, null);
        int count = 0;
        long end = residual;
        for (TokenBatch.Chunk chunk : chunks) {
            long size = (long) hidden * Float.BYTES;
            end += chunk.tokens().length * size;
            if (chunk.needsLogits()) {
                norm(1, end - size, 0, constant(norm), normed + count++ * size);
            }
        }
        if (count == 0) {
            return null;
        }
        Projection output = columns(linear);
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

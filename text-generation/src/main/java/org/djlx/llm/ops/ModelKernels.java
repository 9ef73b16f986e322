// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.kernel.Compute;
import org.djlx.fusedops.kernel.Product;
import org.djlx.fusedops.kernel.RmsNormKernels;
import org.djlx.llm.model.KvCacheDtype;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.model.WeightMap;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.MatrixLayout;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * The kernels of a model on one rank's GPU, and the prefill operations that launch them on the
 * current stream. Kernels compute in float32 and round once. Use it on the rank's thread only.
 */
public final class ModelKernels implements AutoCloseable {

    private static final int FP8_CAPABILITY = 9; // as a major number, for products by cuBLASLt
    private static final String NO_KERNELS =
            "%s need kernels, which this model, its type or these GPUs do not have:"
                    + " docs/text-generation.md says which have them; use %s";

    private final ModelConfig config;
    private final ProcessGroup group;
    private final int kvHeads;
    private final CudaDevice device;
    private final CurrentStreams currentStreams;
    private final DecoderKernels kernels;
    private final RmsNormKernels norms;
    private final QuantizeKernels quantize; // null if weights are not quantized
    private final boolean hasE4m3Prefill; // matmuls of prefills take activations in e4m3
    private final NDManager manager;
    private final NDArray one; // in float32
    private final Compute compute;
    private final Map<List<Object>, Product> products = new HashMap<>(); // by type and sizes
    private final Optional<WideExperts> wideExperts; // empty without experts or Hopper

    private ModelKernels(
            ModelConfig config, ProcessGroup group, WeightFormat format, boolean batchInvariant) {
        this.config = config;
        this.group = group;
        int ranks = group.worldSize();
        kvHeads = WeightMap.kvHeads(config, ranks);
        device = CudaDevice.open(group.device());
        currentStreams = new CurrentStreams(device);
        KernelCompiler compiler = new KernelCompiler(KernelCache.user());
        kernels =
                new DecoderKernels(device, compiler, model(config, ranks, format, batchInvariant));
        quantize =
                format.quantization() == Quantization.NONE
                        ? null
                        : new QuantizeKernels(group.device(), config.type(), format);
        hasE4m3Prefill = format.quantization() == Quantization.FP8;
        manager = NDManager.newBaseManager(group.device());
        one = manager.create(1f);
        compute = new Compute(group.device(), ranks, manager);
        norms = new RmsNormKernels(device, currentStreams, compiler, ranks);
        wideExperts =
                config.hasExperts() && WideExperts.isSupported(device)
                        ? Optional.of(
                                new WideExperts(
                                        device, currentStreams, compiler, config.type(), manager))
                        : Optional.empty();
    }

    private static DecoderKernels.Model model(
            ModelConfig config, int ranks, WeightFormat format, boolean batchInvariant) {
        return new DecoderKernels.Model(
                config.type(),
                format,
                matmulRows(format.quantization(), batchInvariant),
                config.headSize(),
                config.heads() / ranks / WeightMap.kvHeads(config, ranks),
                KvCache.BLOCK_TOKENS,
                config.kvCacheDtype() == KvCacheDtype.FP8 ? 8 : 16);
    }

    /**
     * Returns the largest number of rows that {@link DecoderKernels#matmul} multiplies at a time.
     *
     * <p>Steps of more rows use a {@code WideMatmul} or cuBLASLt, unless the engine is
     * batch-invariant; their bits depend on the number of rows. With INT4 the kernel runs again for
     * each further 32 rows.
     */
    static int matmulRows(Quantization quantization, boolean batchInvariant) {
        return switch (quantization) {
            case NONE -> batchInvariant ? DecoderKernels.MATMUL_ROWS : 32;
            case FP8 -> batchInvariant ? DecoderKernels.QUANTIZED_ROWS : 8;
            default -> DecoderKernels.QUANTIZED_ROWS;
        };
    }

    /**
     * Running compilations. They run on their own threads, so ranks can connect and read weights
     * while kernels that are not cached are compiled. {@link ModelKernels#create} waits for them.
     */
    public static final class Compilations implements AutoCloseable {

        private final CudaDevice device;
        private final List<CompletableFuture<Void>> ends;

        private Compilations(CudaDevice device, List<CompletableFuture<Void>> ends) {
            this.device = device;
            this.ends = ends;
        }

        /** Waits for the compilations, so that none continues after loading a model has failed. */
        @Override
        public void close() {
            ends.forEach(CompletableFuture::join);
            device.close();
        }
    }

    /**
     * Starts to compile the kernels that {@link #create} needs, before a group exists, for a GPU of
     * the same kind as those of all ranks. Empty if there are no kernels for the model. Close the
     * result after all ranks have created their kernels.
     */
    public static Optional<Compilations> compile(
            ModelConfig config,
            Device device,
            int ranks,
            WeightFormat format,
            boolean batchInvariant) {
        // A GPU that does not exist is reported when the group is created.
        if (!device.isGpu() || device.getDeviceId() >= CudaDevice.count()) {
            return Optional.empty();
        }
        CudaDevice gpu = CudaDevice.open(device);
        if (!isSupported(config, gpu, ranks, format)) {
            gpu.close();
            return Optional.empty();
        }
        KernelCompiler compiler = new KernelCompiler(KernelCache.user());
        CompletableFuture<Void> own =
                DecoderKernels.prepare(gpu, compiler, model(config, ranks, format, batchInvariant));
        CompletableFuture<Void> norms = RmsNormKernels.prepare(gpu, compiler, ranks);
        List<CompletableFuture<Void>> all = new ArrayList<>(List.of(own, norms));
        if (config.hasExperts()) {
            all.add(ExpertKernels.prepare(gpu, compiler, config.type()));
            if (WideExperts.isSupported(gpu)) {
                all.add(WideExperts.prepare(gpu, compiler, config.type()));
            }
        }
        return Optional.of(new Compilations(gpu, all));
    }

    /**
     * Compiles the kernels. All ranks call this, and all get kernels or none does.
     *
     * @return the kernels; empty in any of these cases:
     *     <ul>
     *       <li>CPU ranks, a compute capability below 8.0, or no NVRTC
     *       <li>float32
     *       <li>experts with biases or quantized weights; more than {@link
     *           ExpertKernels#MAX_EXPERTS} in a layer, or more than {@link
     *           ExpertKernels#MAX_CHOSEN} for a token
     *       <li>GELU; norms after attention or MLP; limited scores or logits
     *       <li>a head size above 128, or not a multiple of 16
     *       <li>a vocabulary of more than {@value DecoderKernels#MAX_TOKENS} tokens
     *       <li>more than 8 query heads for each KV head
     *       <li>a hidden size, query size of a rank, or intermediate size of a rank (of the MLP or
     *           of an expert) that is not a multiple of 8
     *       <li>no peer access between the ranks
     *     </ul>
     *
     * @throws IllegalArgumentException if there are no kernels, but weights are quantized on a GPU
     *     or the KV cache is in fp8
     */
    static Optional<ModelKernels> create(
            ModelConfig config, ProcessGroup group, WeightFormat format, boolean batchInvariant) {
        if (!group.device().isGpu() || config.type() == ScalarType.FLOAT32) {
            requireKernels(config, Quantization.NONE, false, true);
            return Optional.empty();
        }
        if (!isPossibleOnAll(config, group, format)) {
            requireKernels(config, format.quantization(), false, false);
            return Optional.empty();
        }
        return Optional.of(new ModelKernels(config, group, format, batchInvariant));
    }

    /**
     * Checks that a device, of the same kind as those of all ranks, can compute with quantized
     * weights, and with a KV cache in fp8. That all ranks have peer access is checked later.
     *
     * @throws IllegalArgumentException if the device, or the kernels for this model, cannot
     * @throws UnsatisfiedLinkError if the CPU lacks the kernels
     */
    public static void check(
            ModelConfig config, Device device, int ranks, Quantization quantization) {
        boolean fp8Cache = config.kvCacheDtype() == KvCacheDtype.FP8;
        if (quantization == Quantization.NONE && !fp8Cache) {
            return;
        }
        if (!device.isGpu()) {
            Required.check(
                    !fp8Cache,
                    "fp8 keys and values are for GPUs; set a GPU as the device, or the KV cache"
                            + " dtype auto");
            Required.check(
                    quantization != Quantization.FP8,
                    "fp8 weights are for GPUs; set a GPU as the device, or use int8 or int4");
            NativeLibrary.CPU_KERNELS.ensureAvailability();
            return;
        }
        boolean possible = config.type() != ScalarType.FLOAT32 && computes(config);
        requireKernels(config, Quantization.NONE, possible, true);
        boolean fp8 = quantization == Quantization.FP8;
        Required.check(
                quantization == Quantization.NONE || !config.hasExperts(),
                "on GPUs, experts need weights of 16 bits, not %s; use no quantization",
                quantization);
        Required.check(
                quantization != Quantization.INT8,
                "int8 weights are supported on CPUs only, not on %s; use fp8 or int4",
                device);
        Required.check(
                !fp8 || config.type() == ScalarType.BFLOAT16,
                "fp8 weights need a model in bfloat16, not in %s; set the data type bfloat16",
                config.type());
        if (device.getDeviceId() >= CudaDevice.count()) {
            return; // It is reported when the group is created.
        }
        try (CudaDevice gpu = CudaDevice.open(device)) {
            int major = gpu.attribute(CudaAttribute.COMPUTE_CAPABILITY_MAJOR);
            Required.check(
                    !fp8 || major >= FP8_CAPABILITY,
                    "fp8 weights need a GPU of compute capability %d.0 or later, and %s has"
                            + " %d.%d; use int4, or no quantization",
                    FP8_CAPABILITY,
                    device,
                    major,
                    gpu.attribute(CudaAttribute.COMPUTE_CAPABILITY_MINOR));
            requireKernels(
                    config,
                    quantization,
                    isSupported(config, gpu, ranks, new WeightFormat(Quantization.NONE)),
                    isSupported(config, gpu, ranks, new WeightFormat(quantization)));
        }
    }

    /**
     * Requires kernels for a KV cache in fp8 (with weights in 16 bits), and for quantized weights
     * as they are stored.
     */
    private static void requireKernels(
            ModelConfig config, Quantization quantization, boolean forCache, boolean forWeights) {
        Required.check(
                forCache || config.kvCacheDtype() != KvCacheDtype.FP8,
                NO_KERNELS,
                "fp8 keys and values",
                "the KV cache dtype auto");
        Required.check(
                forWeights || quantization == Quantization.NONE,
                NO_KERNELS,
                quantization + " weights",
                "no quantization");
    }

    private static boolean isPossibleOnAll(
            ModelConfig config, ProcessGroup group, WeightFormat format) {
        boolean own = isPossible(config, group, format);
        if (group.worldSize() == 1) { // It needs no communicator.
            return own;
        }
        try (NDManager manager = NDManager.newBaseManager(group.device());
                NDArray possible = manager.create(own ? 1f : 0f)) {
            // A sum, as ranks that share a GPU have no other reduction.
            group.allReduce(possible, ReduceOp.SUM).await();
            return possible.getFloat() == group.worldSize();
        }
    }

    private static boolean isPossible(ModelConfig config, ProcessGroup group, WeightFormat format) {
        int ranks = group.worldSize();
        boolean fused =
                ranks == 1
                        || FusedOps.isFused(
                                config.type(),
                                DecoderKernels.MATMUL_ROWS,
                                config.hiddenSize(),
                                group);
        try (CudaDevice device = CudaDevice.open(group.device())) {
            return fused && isSupported(config, device, ranks, format);
        }
    }

    /** Returns whether one GPU has kernels for a model; false for a GPU that does not exist. */
    static boolean isPossible(ModelConfig config, Device gpu, WeightFormat format) {
        if (gpu.getDeviceId() >= CudaDevice.count()) {
            return false;
        }
        try (CudaDevice device = CudaDevice.open(gpu)) {
            return isSupported(config, device, 1, format);
        }
    }

    private static boolean isSupported(
            ModelConfig config, CudaDevice device, int ranks, WeightFormat format) {
        IntStream inner =
                config.layerConfigs().stream()
                        .mapToInt(layer -> layer.mlp().intermediateSize() / ranks);
        int queries = config.heads() / ranks * config.headSize();
        return computes(config)
                && (format.quantization() == Quantization.NONE || !config.hasExperts())
                && config.vocabularySize() <= DecoderKernels.MAX_TOKENS
                && DecoderKernels.isSupported(
                        device,
                        model(config, ranks, format, false),
                        IntStream.concat(IntStream.of(config.hiddenSize(), queries), inner));
    }

    /** Returns whether the kernels compute all that the configuration describes. */
    static boolean computes(ModelConfig config) {
        return config.layerConfigs().stream().allMatch(layer -> hasKernels(config, layer))
                && config.embeddingScale() == 1
                && config.logitScale() == 1
                && config.logitCap() == 0;
    }

    private static boolean hasKernels(ModelConfig config, LayerConfig layer) {
        LayerConfig.Attention attention = layer.attention();
        return attention.withWindow(0).isPlain(config.headSize(), config.maxLength())
                && attention.headNorms() != LayerConfig.HeadNorms.ALL_HEADS
                && layer.mlp().activation() == LayerConfig.Activation.SILU
                && (layer.mlp().experts() == null || ExpertKernels.supports(layer.mlp()))
                && layer.norms() == LayerConfig.Norms.INPUTS;
    }

    CudaDevice device() {
        return device;
    }

    CurrentStreams currentStreams() {
        return currentStreams;
    }

    DecoderKernels kernels() {
        return kernels;
    }

    RmsNormKernels norms() {
        return norms;
    }

    /** Returns the kernels of experts in prefills, which these kernels own; empty without them. */
    Optional<WideExperts> wideExperts() {
        return wideExperts;
    }

    /** Returns the kernels that quantize; null if weights are not quantized. */
    QuantizeKernels quantize() {
        return quantize;
    }

    /**
     * Returns {@code out = x weight^T}, to be run on the current stream, with rows {@code stride}
     * elements apart. If {@code fast}, products of float8 matrices may be added in fewer bits than
     * float32.
     */
    Product product(ScalarType type, long rows, long width, long depth, long stride, boolean fast) {
        compute.begin();
        return products.computeIfAbsent(
                List.of(type, rows, width, depth, stride, fast),
                key ->
                        compute.product(
                                type,
                                new MatrixLayout(rows, width, stride, 1),
                                MatrixLayout.contiguous(rows, depth),
                                MatrixLayout.contiguous(width, depth).transposed(),
                                fast));
    }

    /** Multiplies contiguous rows, without the bias. */
    NDArray multiply(Operand x, ModelWeights.Linear linear) {
        QuantizedMatrix weights = linear.quantized();
        if (weights == null) {
            return x.elements().matMul(linear.weight());
        }
        NDManager step = x.elements().getManager();
        if (!hasE4m3Prefill) {
            try (NDManager temporary = step.newSubManager()) {
                return x.elements().matMul(dequantized(linear, temporary).weight());
            }
        }
        QuantizeKernels.Matrix of = forMatmul(x).matrix();
        long width = weights.outputs();
        NDArray product = Torch.empty(step, new Shape(of.rows(), width), config.type());
        multiply(of, weights, Torch.dataPointer(product), width, true);
        return product;
    }

    /** Returns rows for a prefill's matmul: rounded to e4m3 if the weights are in e4m3. */
    Operand forMatmul(Operand x) {
        if (!hasE4m3Prefill || x.isE4m3()) {
            return x;
        }
        Operand to = Operand.allocateE4m3(x.elements().getManager(), x.elements().getShape());
        quantize.quantize(Torch.dataPointer(x.elements()), to.matrix());
        return to;
    }

    /** Dequantises a projection of 4-bit weights to 16 bits; the manager owns the new weights. */
    ModelWeights.Linear dequantized(ModelWeights.Linear linear, NDManager manager) {
        QuantizedMatrix weights = linear.quantized();
        Shape shape = new Shape(weights.outputs(), weights.inputs());
        NDArray wide = Torch.empty(manager, shape, config.type());
        quantize.dequantize(weights.onGpu(), Torch.dataPointer(wide));
        return new ModelWeights.Linear(wide.transpose(), linear.bias());
    }

    /**
     * Multiplies rows in e4m3 by weights in e4m3, into rows {@code stride} elements apart at {@code
     * out}. If {@code fast}, products may be added in fewer bits than float32: the error is small
     * beside that of rounding to e4m3.
     */
    void multiply(
            QuantizeKernels.Matrix x,
            QuantizedMatrix weights,
            long out,
            long stride,
            boolean fast) {
        product(ScalarType.FLOAT8_E4M3FN, x.rows(), weights.outputs(), x.depth(), stride, fast)
                .run(
                        out,
                        x.elements(),
                        weights.weights(),
                        new Product.Scales(x.scales(), weights.scales(), true));
    }

    /**
     * As {@link #multiply}, without the scales, which it returns: cuBLASLt has faster algorithms
     * for few rows then.
     */
    Product.Scales multiplyUnscaled(
            QuantizeKernels.Matrix x, QuantizedMatrix weights, long out, long stride) {
        long unit = Torch.dataPointer(one);
        product(ScalarType.FLOAT8_E4M3FN, x.rows(), weights.outputs(), x.depth(), stride, false)
                .run(out, x.elements(), weights.weights(), new Product.Scales(unit, unit, false));
        return new Product.Scales(x.scales(), weights.scales(), true);
    }

    /**
     * The input of prefill kernels: chunks of sequences one after the other, padded. {@code inputs}
     * has int32: the tokens of all rows, the KV cache slots of all rows, then the positions of all
     * rows.
     */
    record PrefillInputs(NDArray inputs, int rows, int tokens) {

        private long slots() {
            return Torch.dataPointer(inputs) + (long) rows * Integer.BYTES;
        }

        private long positions() {
            return slots() + (long) rows * Integer.BYTES;
        }
    }

    /**
     * Copies the tokens, slots and positions of chunks to the device, padded to {@code rows}.
     * Padding rows repeat the last token. Tokens attend to padding rows with weight 0, so their
     * values must be finite.
     */
    static PrefillInputs inputs(NDManager manager, List<TokenBatch.Chunk> chunks, int rows) {
        int[] inputs = new int[3 * rows];
        int row = 0;
        for (TokenBatch.Chunk chunk : chunks) {
            for (int token : chunk.tokens()) {
                inputs[row++] = token;
            }
            for (int position = chunk.start(); position < chunk.length(); position++) {
                int of = row - chunk.length() + position;
                inputs[rows + of] = chunk.slots()[position];
                inputs[2 * rows + of] = position;
            }
        }
        Arrays.fill(inputs, row, rows, inputs[row - 1]);
        return new PrefillInputs(manager.create(inputs), rows, row);
    }

    /**
     * Looks up the embedding of tokens in this rank's part of the vocabulary; zeros for other
     * tokens.
     */
    NDArray embed(PrefillInputs prompts, ModelWeights weights) {
        Shape shape = new Shape(prompts.rows, config.hiddenSize());
        NDArray output = Torch.empty(prompts.inputs.getManager(), shape, config.type());
        long tokens = WeightMap.vocabularyPart(config, group.worldSize());
        kernels.embed(
                currentStreams.get(),
                prompts.rows,
                embedding ->
                        embedding
                                .put("output", Torch.dataPointer(output))
                                .put("tokens", Torch.dataPointer(prompts.inputs))
                                .put("slots", 0) // No token is a placeholder.
                                .put("sampled", 0)
                                .put("embedding", Torch.dataPointer(weights.embedding()))
                                .put("first", tokens * group.rank())
                                .put("count", tokens)
                                .put("hidden", config.hiddenSize()));
        return output;
    }

    /** Returns the RMSNorm of rows; in e4m3 if the next matmul takes that. */
    Operand rmsNorm(NDArray rows, NDArray weight) {
        try (NDArray zeros = Torch.empty(rows.getManager(), rows.getShape(), config.type())) {
            long byteSize = rows.size() * config.type().itemSize();
            currentStreams.get().memsetAsync(Torch.dataPointer(zeros), (byte) 0, byteSize);
            return addRmsNorm(rows, zeros, weight);
        }
    }

    /**
     * Returns {@code silu(gate) · up} of rows; in e4m3 if the next matmul takes that. Each row
     * holds the gate, then up.
     */
    Operand siluAndMul(NDArray gateUp) {
        if (!hasE4m3Prefill) {
            return new Operand(activate(gateUp));
        }
        Operand output = Operand.allocateE4m3(gateUp.getManager(), activated(gateUp));
        quantize.activate(Torch.dataPointer(gateUp), output.matrix());
        return output;
    }

    /** As {@link #siluAndMul}, always in the model's type. */
    NDArray activate(NDArray gateUp) {
        Shape shape = activated(gateUp);
        NDArray output = Torch.empty(gateUp.getManager(), shape, config.type());
        kernels.activate(
                currentStreams.get(),
                Torch.dataPointer(output),
                Torch.dataPointer(gateUp),
                shape.get(0),
                shape.get(1));
        return output;
    }

    private static Shape activated(NDArray gateUp) {
        return new Shape(gateUp.getShape().get(0), gateUp.getShape().get(1) / 2);
    }

    /**
     * Adds rows to {@code sum}, and returns the RMSNorm of the sum; in e4m3 if the next matmul
     * takes that. The residual does not change.
     */
    Operand addRmsNorm(NDArray sum, NDArray residual, NDArray weight) {
        Shape shape = sum.getShape();
        Operand norm =
                hasE4m3Prefill
                        ? Operand.allocateE4m3(sum.getManager(), shape)
                        : new Operand(Torch.empty(sum.getManager(), shape, config.type()));
        long address = Torch.dataPointer(sum);
        RmsNormKernels.Rows rows =
                new RmsNormKernels.Rows(
                        address,
                        Torch.dataPointer(norm.elements()),
                        address,
                        Torch.dataPointer(residual),
                        Torch.dataPointer(weight),
                        config.type(),
                        shape.get(0),
                        shape.get(1));
        float epsilon = (float) config.epsilon();
        if (hasE4m3Prefill) {
            quantize.norm(rows, null, epsilon, norm.matrix());
        } else {
            norms.add(rows, epsilon);
        }
        return norm;
    }

    /**
     * Applies head norms and rotary embedding to queries and keys in place, and writes keys and
     * values to the cache. {@code qkv} is contiguous, of shape (tokens, (query + 2 · KV heads) ·
     * head size), and may have no queries.
     */
    void rotate(RankModel model, int layer, NDArray qkv, PrefillInputs prompts) {
        int heads = (int) (qkv.getShape().get(1) / config.headSize());
        RotaryTables.Tables tables = model.tables().of(layer);
        int rows = (int) qkv.getShape().get(0);
        normHeads(currentStreams.get(), model.weights().layer(layer), rows, qkv);
        kernels.rotateAndCache(
                currentStreams.get(),
                prompts.tokens,
                rotation -> {
                    model.cache().addresses(layer).putTo(rotation);
                    rotation.put("qkv", Torch.dataPointer(qkv))
                            .put("slots", prompts.slots())
                            .put("positions", prompts.positions())
                            .put("cosines", Torch.dataPointer(tables.cosines()))
                            .put("sines", Torch.dataPointer(tables.sines()))
                            .put("queries", heads - 2 * kvHeads)
                            .put("heads", kvHeads);
                });
    }

    /**
     * Returns the keys and the values of the given int64 slots, of shape (slots, KV heads, head
     * size) in the model's type.
     */
    NDList gather(NDManager manager, int layer, NDArray slots, KvCache cache) {
        Shape shape = new Shape(slots.size(), kvHeads, config.headSize());
        NDArray keys = Torch.empty(manager, shape, config.type());
        NDArray values = Torch.empty(manager, shape, config.type());
        kernels.gather(
                currentStreams.get(),
                (int) slots.size(),
                gathering -> {
                    cache.addresses(layer).putTo(gathering);
                    gathering
                            .put("keys", Torch.dataPointer(keys))
                            .put("values", Torch.dataPointer(values))
                            .put("slots", Torch.dataPointer(slots))
                            .put("heads", kvHeads);
                });
        return new NDList(keys, values);
    }

    /**
     * Applies the norms of heads in place, if the layer has them. {@code qkv} is contiguous, and
     * may have no queries.
     */
    void normHeads(CudaStream stream, ModelWeights.Layer weights, int rows, NDArray qkv) {
        if (weights.queryNorm() == null) {
            return;
        }
        int heads = (int) (qkv.getShape().get(1) / config.headSize());
        kernels.normHeads(
                stream,
                rows,
                norms ->
                        norms.put("qkv", Torch.dataPointer(qkv))
                                .put("query_weights", Torch.dataPointer(weights.queryNorm()))
                                .put("key_weights", Torch.dataPointer(weights.keyNorm()))
                                .put("queries", heads - 2 * kvHeads)
                                .put("heads", kvHeads)
                                .put("epsilon", (float) config.epsilon()));
    }

    @Override
    public void close() {
        currentStreams.get().synchronize(); // The last prefill may still run.
        wideExperts.ifPresent(WideExperts::close);
        products.values().forEach(Product::close);
        compute.close();
        manager.close();
        if (quantize != null) {
            quantize.close();
        }
        norms.close();
        kernels.close();
        currentStreams.close();
        device.close();
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.tune;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.loss.Loss;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.SafetensorsWriter;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.LoraConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.PackedFormat;
import org.djlx.llm.model.Rope;
import org.djlx.llm.model.WeightMap;
import org.djlx.nativeops.host.FileWrites;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.training.nn.ColumnParallelLinear;
import org.djlx.training.nn.Lora;
import org.djlx.training.nn.ParallelEmbedding;
import org.djlx.training.nn.ParallelTransformerBlock;
import org.djlx.training.nn.RmsNorm;
import org.djlx.training.nn.RotaryEmbedding;
import org.djlx.training.nn.ShardedBlock;
import org.djlx.training.nn.VocabularyParallelCrossEntropy;

/**
 * A Llama, Mistral, Qwen 2 or Qwen 3 in Hugging Face's layout as a trainable DJL block. All weights
 * learn, or only {@linkplain Lora low-rank adapters}. The ranks of a group divide the model.
 *
 * <pre>{@code
 * TrainableModel tuned =
 *         TrainableModel.builder()
 *                 .setGroup(group)
 *                 .setDirectory(directory)
 *                 .optLora(Lora.of(8))
 *                 .build();
 * model.setBlock(tuned.block());
 * tuned.load(model.getNDManager());
 *
 * TrainingConfig config =
 *         new DefaultTrainingConfig(tuned.loss())
 *                 .optDevices(new Device[] {group.device()});
 * try (Trainer trainer = model.newTrainer(config)) {
 *     trainer.initialize(new Shape(1, 1));
 *     EasyTrain.fit(trainer, 3, chats, null);
 * }
 * tuned.saveAdapter(out.resolve("adapter"));
 * tuned.save(out);
 * }</pre>
 *
 * <ul>
 *   <li>Input: token ids of shape (batch, tokens); shorter sequences are padded on the right with
 *       any token. Output: logits of shape (batch, tokens, vocabulary), as {@link
 *       ColumnParallelLinear} divides them. See {@link Builder#optSequenceParallel} for tokens in
 *       one dimension.
 *   <li>Parameters are float32, whatever type the files have. {@link #save} converts them to the
 *       type of {@code config.json}.
 *   <li>With adapters, all other parameters are frozen.
 *   <li>Each rank has its own object. All ranks of the group call {@link #load}, {@link #full},
 *       {@link #save} and {@link #saveAdapter}, in the same order.
 * </ul>
 */
public final class TrainableModel {

    /** The label of tokens that {@link #loss} ignores, as in PyTorch. */
    public static final long IGNORED = -100;

    private static final long MAX_FILE_BYTES = 5_000_000_000L; // as transformers

    /** The module of each projection and norm of a layer. */
    private static final Map<String, String> MODULES =
            Map.of(
                    "query", "self_attn.q_proj",
                    "key", "self_attn.k_proj",
                    "value", "self_attn.v_proj",
                    "output", "self_attn.o_proj",
                    "queryNorm", "self_attn.q_norm",
                    "keyNorm", "self_attn.k_norm",
                    "gate", "mlp.gate_proj",
                    "up", "mlp.up_proj",
                    "down", "mlp.down_proj");

    /** The names of projections in {@code target_modules}, in order. */
    public static final List<String> TARGETS =
            Lora.PROJECTIONS.stream().map(TrainableModel::target).toList();

    private record Slot(ShardedBlock block, String parameter) {}

    private final ProcessGroup group;
    private final ModelConfig config;
    private final Path directory; // null if there are no files
    private final Path adapter; // null if there is no saved adapter
    private final Lora lora; // null for none
    private final long sequenceLength; // 0 for an input of (batch, tokens)
    private final boolean divided; // whether ranks divide activations between parallel regions
    private final SequentialBlock block = new SequentialBlock();
    private final Map<String, Slot> slots = new LinkedHashMap<>(); // by the tensor's name

    private TrainableModel(Builder builder, ModelConfig config, Lora lora) {
        group = builder.group;
        this.config = config;
        this.lora = lora;
        directory = builder.directory;
        adapter = builder.adapter;
        sequenceLength = builder.sequenceLength;
        divided = sequenceLength > 0 && group.worldSize() > 1;
        ParallelEmbedding embedding =
                ParallelEmbedding.builder()
                        .setGroup(group)
                        .optSequenceParallel(divided)
                        .setVocabulary(config.vocabularySize())
                        .setSize(config.hiddenSize())
                        .optComputeType(builder.type)
                        .build();
        add("model.embed_tokens", embedding);
        for (int i = 0; i < config.layers(); i++) {
            ParallelTransformerBlock layer = layer(config.layer(i));
            block.add(layer);
            String name = "model.layers." + i + '.';
            List<Block> parts = layer.getChildren().values();
            addSlots(name + "input_layernorm", parts.get(0));
            addSlots(name, parts.get(1));
            addSlots(name + "post_attention_layernorm", parts.get(2));
            addSlots(name, parts.get(3));
        }
        add(
                "model.norm",
                RmsNorm.builder()
                        .setGroup(group)
                        .optSequenceParallel(divided)
                        .optEpsilon((float) config.epsilon())
                        .build());
        ColumnParallelLinear.Builder head =
                ColumnParallelLinear.builder()
                        .setGroup(group)
                        .optSequenceParallel(divided)
                        .optBias(false);
        add(
                "lm_head",
                config.tied()
                        ? head.optTied(embedding).build()
                        : head.setUnits(config.vocabularySize()).optPadded(true).build());
        if (lora != null) {
            block.freezeParameters(true, parameter -> !isOfAdapter(parameter.getName()));
        }
    }

    public static Builder builder() {
        return new Builder();
    }

    private ParallelTransformerBlock layer(LayerConfig layer) {
        LayerConfig.Attention attention = layer.attention();
        Rope rope = attention.rope();
        RotaryEmbedding rotary =
                RotaryEmbedding.builder()
                        .setHeadSize(config.headSize())
                        .optFrequencies(
                                rope.frequencies(config.headSize(), 0, config.maxLength()),
                                rope.magnitude())
                        .build();
        return ParallelTransformerBlock.builder()
                .setGroup(group)
                .optSequenceParallel(divided)
                .optSequenceLength(sequenceLength)
                .setHeads(config.heads())
                .optKeyValueHeads(config.kvHeads())
                .setHeadSize(config.headSize())
                .setHidden(layer.mlp().intermediateSize())
                .optRotary(rotary)
                .optEpsilon((float) config.epsilon())
                .optLora(lora)
                .optAttention(
                        options -> {
                            options.optInputBias(attention.inputBias());
                            options.optWindow(attention.window());
                            if (attention.headNorms() == LayerConfig.HeadNorms.EACH_HEAD) {
                                options.optHeadNorms((float) config.epsilon());
                            }
                        })
                .build();
    }

    private void add(String name, ShardedBlock part) {
        block.add(part);
        addSlots(name, part);
    }

    /**
     * Adds slots for the parameters of a block, under the names of Hugging Face and PEFT, which
     * begin with the module, or the layer of several modules.
     */
    private void addSlots(String name, Block part) {
        for (String parameter : part.getDirectParameters().keys()) {
            String module = parameter.replaceFirst("(Bias|LoraA|LoraB)$", "");
            String suffix =
                    switch (parameter.substring(module.length())) {
                        case "Bias" -> ".bias";
                        case "LoraA" -> ".lora_A.weight";
                        case "LoraB" -> ".lora_B.weight";
                        default -> ".weight";
                    };
            slots.put(
                    name + MODULES.getOrDefault(module, "") + suffix,
                    new Slot((ShardedBlock) part, parameter));
        }
    }

    private static boolean isOfAdapter(String parameter) {
        return parameter.matches(".*(LoraA|LoraB|\\.lora_[AB]\\.weight)");
    }

    /**
     * {@return the block; it has no parameters before {@link #load}, or the trainer's initialize}
     */
    public SequentialBlock block() {
        return block;
    }

    public ModelConfig config() {
        return config;
    }

    /**
     * {@return the cross entropy of this model's logits} The label of a position is the id of the
     * next token, or {@link #IGNORED} to leave the position out of the mean.
     */
    public Loss loss() {
        return VocabularyParallelCrossEntropy.builder()
                .setGroup(group)
                .setVocabulary(config.vocabularySize())
                .optIgnoredLabel(IGNORED)
                .build();
    }

    /**
     * Reads the weights, and the saved adapter if one is set, into the block. A new adapter starts
     * with values of the engine's random generator.
     *
     * @throws IllegalArgumentException if the weights do not fit {@code config.json}, or the
     *     adapter does not fit the model
     * @throws IllegalStateException if no directory is set
     */
    public void load(NDManager manager) throws IOException {
        if (directory == null) {
            throw new IllegalStateException(
                    "this model was made from a configuration and has no files; call setDirectory");
        }
        check(manager != null, "the manager is null");
        try (Safetensors files = Safetensors.open(directory)) {
            WeightMap.check(config, files);
            block.setInitializer(Initializer.ZEROS, each -> !isOfAdapter(each.getName()));
            block.initialize(
                    manager,
                    DataType.FLOAT32,
                    sequenceLength > 0 ? new Shape(sequenceLength) : new Shape(1, 1));
            for (String name : WeightMap.shapes(config).keySet()) {
                read(files, name, name, manager);
            }
        }
        if (adapter != null) {
            try (Safetensors files = Safetensors.open(adapter.resolve(LoraConfig.WEIGHTS))) {
                checkAdapter(files);
                for (TensorSpec spec : adapterSpecs()) {
                    read(
                            files,
                            spec.name(),
                            spec.name().substring(LoraConfig.PREFIX.length()),
                            manager);
                }
            }
        }
    }

    private void read(Safetensors files, String name, String slotName, NDManager manager) {
        Slot slot = slots.get(slotName);
        try (NDManager temporary = manager.newSubManager()) {
            NDArray full = temporary.create(files.spec(name).shape(), DataType.FLOAT32);
            files.read(name, full);
            slot.block.setFull(slot.parameter, full);
        }
    }

    private void checkAdapter(Safetensors files) {
        List<TensorSpec> expected = adapterSpecs();
        for (TensorSpec spec : expected) {
            check(
                    files.contains(spec.name())
                            && files.spec(spec.name()).shape().equals(spec.shape()),
                    "the adapter must have a tensor '%s' of shape %s; take an adapter of this"
                            + " model",
                    spec.name(),
                    spec.shape());
        }
        check(
                files.specs().size() == expected.size(),
                "the adapter must have %d tensors, not %d; take an adapter of this model",
                expected.size(),
                files.specs().size());
    }

    /**
     * {@return the adapters that a configuration of PEFT describes}
     *
     * @throws IllegalArgumentException if a value is out of range, or its targets are not the names
     *     of projections, such as {@code q_proj}
     */
    public static Lora lora(LoraConfig config) {
        check(config != null, "the configuration is null");
        Map<String, String> projections = new HashMap<>();
        Lora.PROJECTIONS.forEach(each -> projections.put(target(each), each));
        check(
                !config.targets().isEmpty(),
                "target_modules must list the projections that have adapters: %s",
                TARGETS);
        for (String target : config.targets()) {
            check(
                    projections.containsKey(target),
                    "target_modules has '%s'; supported are %s",
                    target,
                    TARGETS);
        }
        return new Lora(
                config.rank(),
                config.alpha(),
                config.targets().stream().map(projections::get).collect(Collectors.toSet()),
                config.rsLora(),
                config.dropout());
    }

    private static LoraConfig config(Lora lora) {
        return new LoraConfig(
                lora.rank(),
                lora.alpha(),
                lora.rankStabilized(),
                lora.dropout(),
                Lora.PROJECTIONS.stream()
                        .filter(lora.targets()::contains)
                        .map(TrainableModel::target)
                        .toList());
    }

    private static String target(String projection) {
        return MODULES.get(projection).replaceFirst(".*\\.", "");
    }

    private static Lora readLora(Path directory) throws IOException {
        LoraConfig config = LoraConfig.read(directory);
        return Required.naming(directory.resolve(LoraConfig.CONFIG), () -> lora(config));
    }

    /**
     * Gathers a tensor of the model in float32 from all ranks, with its adapter merged, by its name
     * in the files, such as {@code model.layers.0.mlp.up_proj.weight}.
     *
     * @throws IllegalArgumentException if there is no such tensor
     */
    public NDArray full(String name, NDManager manager) {
        check(slots.containsKey(name), "there is no tensor '%s'", name);
        check(manager != null, "the manager is null");
        Slot slot = slots.get(name);
        String module = name.replaceFirst("weight$", "");
        if (!slots.containsKey(module + "lora_A.weight")) {
            return slot.block.full(slot.parameter, manager);
        }
        try (NDManager temporary = manager.newSubManager()) {
            NDArray weight = slot.block.full(slot.parameter, temporary);
            NDArray a = full(module + "lora_A.weight", temporary);
            NDArray b = full(module + "lora_B.weight", temporary);
            NDArray merged =
                    NoGradient.get(() -> weight.add(b.matMul(a).mul((float) lora.scale())));
            merged.attach(manager);
            return merged;
        }
    }

    /**
     * Writes a model directory that {@link org.djlx.llm.engine.TextEngine} and transformers load.
     * The first rank writes:
     *
     * <ul>
     *   <li>the weights with adapters merged, in the type of {@code config.json};
     *   <li>copies of the configuration, the tokenizer and the chat template. A model of {@link
     *       Builder#setConfig} has none: write {@code config.json} and the tokenizer yourself.
     * </ul>
     *
     * @param out the directory; created if missing; files of the same names and other weights in it
     *     are replaced
     */
    public void save(Path out) throws IOException {
        check(out != null, "the directory to write is null");
        List<TensorSpec> specs = WeightMap.tensors(config);
        write(
                specs,
                TensorSpec::name,
                values -> {
                    copyFiles(out);
                    SafetensorsWriter.writeModel(out, specs, MAX_FILE_BYTES, values);
                });
    }

    /**
     * Creates the directory if it is missing, and writes the adapter in PEFT's layout: {@code
     * adapter_config.json} and {@code adapter_model.safetensors}. The first rank writes.
     *
     * @throws IllegalStateException if the model has no adapters
     */
    public void saveAdapter(Path out) throws IOException {
        if (lora == null) {
            throw new IllegalStateException("the model has no adapters; call optLora");
        }
        check(out != null, "the directory to write is null");
        List<TensorSpec> specs = adapterSpecs();
        write(
                specs,
                spec -> spec.name().substring(LoraConfig.PREFIX.length()),
                values -> {
                    Files.createDirectories(out);
                    config(lora).write(out, directory);
                    SafetensorsWriter.write(out.resolve(LoraConfig.WEIGHTS), specs, values);
                });
    }

    /** Writes tensors to files. */
    private interface Writer {

        void write(Function<TensorSpec, NDArray> values) throws IOException;
    }

    /** Gathers tensors on all ranks, one at a time; the first rank writes them. */
    private void write(List<TensorSpec> specs, Function<TensorSpec, String> names, Writer writer)
            throws IOException {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            Function<TensorSpec, NDArray> values = spec -> full(names.apply(spec), manager);
            if (group.rank() == 0) {
                writer.write(values);
            } else {
                specs.forEach(spec -> values.apply(spec).close());
            }
        }
    }

    private List<TensorSpec> adapterSpecs() {
        Map<String, Shape> shapes = WeightMap.shapes(config);
        List<TensorSpec> specs = new ArrayList<>();
        for (String name : slots.keySet()) {
            if (isOfAdapter(name)) {
                Shape weight = shapes.get(name.replaceFirst("lora_[AB]\\.", ""));
                Shape shape =
                        name.contains("lora_A")
                                ? new Shape(lora.rank(), weight.get(1))
                                : new Shape(weight.get(0), lora.rank());
                specs.add(TensorSpec.of(LoraConfig.PREFIX + name, ScalarType.FLOAT32, shape));
            }
        }
        return specs;
    }

    private void copyFiles(Path out) throws IOException {
        Files.createDirectories(out);
        if (directory == null || Files.isSameFile(out, directory)) {
            return;
        }
        try (Stream<Path> files = Files.list(directory)) {
            for (Path file : files.filter(Files::isRegularFile).toList()) {
                String name = file.getFileName().toString();
                if (name.matches(".*\\.(json|jinja|txt|model|properties)")
                        && !name.endsWith(".index.json")) {
                    Path copy = out.resolve(name);
                    FileWrites.naming(
                            copy,
                            () -> Files.copy(file, copy, StandardCopyOption.REPLACE_EXISTING));
                }
            }
        }
    }

    public static final class Builder {

        private ProcessGroup group;
        private Path directory;
        private ModelConfig config;
        private Lora lora;
        private Path adapter;
        private ScalarType type;
        private long sequenceLength;

        private Builder() {}

        /**
         * Sets this rank's handle, which the caller closes, on the group whose ranks divide the
         * model. Required.
         */
        public Builder setGroup(ProcessGroup group) {
            this.group = group;
            return this;
        }

        /**
         * Sets a directory with {@code config.json} and safetensors files. Required, unless {@link
         * #setConfig} is called.
         */
        public Builder setDirectory(Path directory) {
            this.directory = directory;
            return this;
        }

        /** Sets the configuration of a model without files: it trains from random weights. */
        public Builder setConfig(ModelConfig config) {
            this.config = config;
            return this;
        }

        /** Adds new adapters, and freezes all other parameters; default null, none. */
        public Builder optLora(Lora lora) {
            this.lora = lora;
            return this;
        }

        /**
         * Continues with a saved adapter in PEFT's layout, and freezes all other parameters;
         * default null, none.
         */
        public Builder optAdapter(Path directory) {
            adapter = directory;
            return this;
        }

        /**
         * Sets the type of activations, such as bfloat16; null, the default, for float32.
         * Parameters stay float32.
         */
        public Builder optComputeType(ScalarType type) {
            this.type = type;
            return this;
        }

        /**
         * Sets sequence parallelism: the ranks divide activations between parallel regions. The
         * input is then token ids of shape (tokens): one sequence of this number of tokens after
         * the other; 0, the default, for none.
         */
        public Builder optSequenceParallel(long sequenceLength) {
            this.sequenceLength = sequenceLength;
            return this;
        }

        /**
         * {@return the model, without parameters: call {@link TrainableModel#load}}
         *
         * @throws IllegalArgumentException if the group or the directory is missing, or the model
         *     cannot be trained; the message says why
         */
        public TrainableModel build() throws IOException {
            check(group != null, "the group is not set; call setGroup");
            check((directory == null) != (config == null), "call either setDirectory or setConfig");
            check(lora == null || adapter == null, "call either optLora or optAdapter, not both");
            ModelConfig read = config == null ? ModelConfig.read(directory) : config;
            requireTrainable(read);
            check(
                    directory == null || PackedFormat.read(directory).isEmpty(),
                    "weights of 4 bits (AWQ, GPTQ) cannot be trained; take the model without"
                            + " quantization_config");
            Lora adapters = adapter == null ? lora : readLora(adapter);
            return new TrainableModel(this, read, adapters);
        }
    }

    private static void requireTrainable(ModelConfig config) {
        check(
                List.of("llama", "mistral", "qwen2", "qwen3").contains(config.modelType()),
                "models of type llama, mistral, qwen2 and qwen3 can be trained, not %s",
                config.modelType());
        for (LayerConfig layer : config.layerConfigs()) {
            check(
                    layer.mlp().activation() == LayerConfig.Activation.SILU,
                    "models with hidden_act silu can be trained, not %s",
                    layer.mlp().activation());
            check(
                    !layer.attention().outputBias() && !layer.mlp().bias(),
                    "models with a bias of the attention's output or the MLP cannot be trained");
            Rope rope = layer.attention().rope();
            check(
                    rope.growth() == 0 && 2 * rope.divisors().size() == config.headSize(),
                    "models with dynamic NTK or with heads that are rotated in part cannot be"
                            + " trained");
        }
    }

    private static void check(boolean condition, String problem, Object... values) {
        if (!condition) {
            throw new IllegalArgumentException("TrainableModel: " + String.format(problem, values));
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import ai.djl.Device;
import ai.djl.ndarray.types.DataType;
import ai.djl.util.Progress;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.pool.RankPool;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.llm.Generation;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.GeneratorStatistics;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.files.GgufDirectory;
import org.djlx.llm.files.ModelHub;
import org.djlx.llm.model.KvCacheDtype;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.model.SamplingDefaults;
import org.djlx.llm.sampling.Sampler;
import org.djlx.llm.sampling.Vocabulary;
import org.djlx.llm.text.TextTokenizer;
import org.djlx.nativeops.ContextLoader;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Generates text with a language model, tensor-parallel over CPU ranks or GPUs.
 *
 * <pre>{@code
 * try (TextGenerator generator =
 *         TextEngine.builder().setDirectory(directory).optRanks(2).build()) {
 *     Generation generation =
 *             generator.submit(
 *                     GenerationRequest.builder().setPrompt("Once").optMaxTokens(20).build());
 *     generation.await(Duration.ofMinutes(1)).forEach(piece -> System.out.print(piece.text()));
 * }
 * }</pre>
 *
 * <p><b>Files.</b> The model's directory has {@code config.json} and safetensors files in Hugging
 * Face's layout. Text prompts also require {@code tokenizer.json}. A GGUF file has all of these.
 * Each rank reads its part of the weights.
 *
 * <p><b>Memory.</b> Each rank holds its part of the weights and of the KV cache; the log states
 * both sizes. In addition a rank needs:
 *
 * <ul>
 *   <li>activations of a step, which grow with {@link Builder#optPrefillTokens};
 *   <li>if ranks are several GPUs, a P2P buffer of {@link
 *       org.djlx.collectives.CudaP2pOptions#DEFAULT_BUFFER_SIZE}, or the size that the {@linkplain
 *       Builder#optProcessGroup process group} was created with.
 * </ul>
 *
 * <p><b>Failures.</b> Ranks are threads of this JVM, or {@linkplain Builder#optProcessGroup
 * processes}. If a rank fails while requests run, all running and waiting requests fail. Then:
 *
 * <ul>
 *   <li>if ranks are threads, the model is loaded again; if a rank fails again before a request has
 *       finished, the generator becomes {@linkplain #unavailabilityCause unavailable};
 *   <li>if ranks are processes, the generator becomes unavailable; start all processes again.
 * </ul>
 */
public final class TextEngine implements TextGenerator {

    private static final Logger LOG = LoggerFactory.getLogger(TextEngine.class);

    /** The default maximum number of tokens of a prompt and its new tokens together. */
    public static final int DEFAULT_MAX_LENGTH = 8192;

    private final Path directory;
    private final ModelConfig config;
    private final SamplingDefaults samplingDefaults;
    private final TokenizerReader reader; // closes the tokenizer
    private final TextTokenizer tokenizer; // null if the model has none
    private Vocabulary vocabulary; // null until a request has a grammar
    private final GeneratorSettings settings;
    private final InputProcessor inputs;
    private final EngineCore engine;

    private TextEngine(Builder builder) throws IOException {
        directory = GgufDirectory.of(builder.source.directory());
        config = ModelConfig.read(directory, builder.type, builder.kvCacheDtype);
        samplingDefaults = SamplingDefaults.read(directory);
        settings = GeneratorSettings.of(builder, config);
        reader = new TokenizerReader(directory);
        EngineCore loaded = null;
        try {
            if (settings.group() != null) {
                reader.tokenizer(); // Fails before the ranks meet: close() waits for rank 0.
            }
            loaded = new EngineCore(directory, config, settings, builder.adapters);
            tokenizer = reader.tokenizer();
        } catch (Throwable e) {
            if (loaded != null) {
                loaded.close();
            }
            reader.close();
            throw e;
        }
        engine = loaded;
        inputs =
                new InputProcessor(
                        directory,
                        config,
                        settings.maxLength(),
                        tokenizer,
                        this::vocabulary,
                        engine::adapter);
    }

    private synchronized Vocabulary vocabulary() {
        if (vocabulary == null) {
            vocabulary = new Vocabulary(tokenizer.tokenBytes(), config.vocabularySize());
        }
        return vocabulary;
    }

    public static Builder builder() {
        return new Builder();
    }

    @Override
    public List<Generation> submitAll(List<GenerationRequest> requests) {
        InputProcessor.check(
                requests != null && !requests.isEmpty(), "the list of requests is empty or null");
        InputProcessor.check(
                requests.size() <= settings.maxQueued(),
                "%d requests at once are more than the queue holds: maxQueued is %d",
                requests.size(),
                settings.maxQueued());
        engine.checkAvailable(); // Before the tokenizer is used, which close() frees.
        List<Sequence> sequences =
                requests.stream().map(each -> inputs.sequence(each, engine::wake)).toList();
        Map<Object, Sequence> prompts = new HashMap<>();
        for (Sequence sequence : sequences) {
            sequence.awaitPrompt(prompts.putIfAbsent(sequence.prompt(), sequence));
        }
        engine.add(sequences);
        return sequences.stream().<Generation>map(sequence -> sequence.queue).toList();
    }

    @Override
    public int maxLength() {
        return settings.maxLength();
    }

    @Override
    public SamplingDefaults samplingDefaults() {
        return samplingDefaults;
    }

    @Override
    public Optional<TextTokenizer> tokenizer() {
        return Optional.ofNullable(tokenizer);
    }

    @Override
    public List<String> adapters() {
        return engine.adapters();
    }

    @Override
    public void loadAdapter(String name, Path directory) throws IOException {
        engine.loadAdapter(name, directory);
    }

    @Override
    public void unloadAdapter(String name) {
        engine.unloadAdapter(name);
    }

    /** {@return the model's directory; of a GGUF file, that of what its metadata says} */
    public Path directory() {
        return directory;
    }

    public ModelConfig config() {
        return config;
    }

    /**
     * {@return whether this process is a rank other than 0; false if ranks are threads} Only the
     * generator of rank 0 takes requests; followers run its steps.
     */
    public boolean isFollower() {
        return settings.isFollower();
    }

    /**
     * Waits until rank 0 has closed its generator. Throws if a rank has failed, or this process is
     * not a {@linkplain #isFollower follower}.
     */
    public void awaitEnd() throws InterruptedException {
        if (!isFollower()) {
            throw new IllegalStateException(
                    "awaitEnd() is for followers; this generator ends when it is closed");
        }
        pool().awaitEnd();
    }

    /** Returns the ranks, for tests. */
    RankPool<StepRequest, List<Sampler.SampledToken>> pool() {
        return engine.pool();
    }

    @Override
    public GeneratorStatistics statistics() {
        return engine.statistics();
    }

    @Override
    public Optional<String> unavailabilityCause() {
        return engine.unavailabilityCause();
    }

    /**
     * Cancels all requests and frees the model; see {@link TextGenerator#close}. libtorch keeps
     * freed GPU memory for later arrays of this process. A {@linkplain #isFollower follower} waits
     * until rank 0 has closed its generator, or has failed.
     */
    @Override
    public void close() {
        engine.close();
        reader.close();
    }

    /** Options of an engine. */
    public static final class Builder {

        // Package-private fields are read by GeneratorSettings.
        private ModelSource source = ModelSource.missing();
        private DataType type; // null for that of config.json
        private final Map<String, Path> adapters = new LinkedHashMap<>();
        private KvCacheDtype kvCacheDtype = KvCacheDtype.AUTO;
        Quantization quantization = Quantization.NONE;
        List<Device> devices = List.of();
        Integer ranks;
        ProcessGroup group;
        int maxLength;
        int maxRunning = 256;
        int maxQueued = 1024;
        long cacheBytes;
        double memoryUtilization = 0.9;
        boolean prefixCaching = true;
        boolean batchInvariant;
        int prefillTokens = 4096;
        Duration timeout = BackendOptions.DEFAULT_TIMEOUT;
        Progress progress;

        private Builder() {}

        /**
         * Sets a model by its name on a hub, or by its directory or GGUF file. {@link #build}
         * downloads its files if they are not there, as {@link ModelHub} describes it; the log
         * shows the progress.
         */
        public Builder setModel(String model) {
            source = ModelSource.named(model, LOG);
            return this;
        }

        /**
         * Sets a directory with {@code config.json} and safetensors files, or a GGUF file. This or
         * {@link #setModel} is required.
         */
        public Builder setDirectory(Path directory) {
            source = () -> directory;
            return this;
        }

        /**
         * Sets the number of CPU ranks; default 1. Each rank computes with libtorch's threads,
         * which wait for each other by spinning. With few or busy cores, {@code
         * -Dai.djl.pytorch.num_threads=1} is much faster.
         */
        public Builder optRanks(int ranks) {
            this.ranks = ranks;
            return this;
        }

        /**
         * Loads a LoRA adapter with the model, as {@link TextGenerator#loadAdapter}; default none.
         * If ranks are processes, all of them load the adapters of rank 0. Throws an {@link
         * IllegalArgumentException} if an adapter of this name is set already.
         */
        public Builder optAdapter(String name, Path directory) {
            Path before = adapters.putIfAbsent(name, directory);
            if (before != null) {
                throw new IllegalArgumentException(
                        "the adapter '%s' is set already, from %s; give the one from %s another name"
                                .formatted(name, before, directory));
            }
            return this;
        }

        /** Sets the GPUs in the order of the ranks; empty, the default, for CPU ranks. */
        public Builder optDevices(List<Device> devices) {
            this.devices = devices;
            return this;
        }

        /**
         * Makes this process one rank of a process group on one host, instead of {@link #optRanks}
         * and {@link #optDevices}. {@link #build} takes ownership and destroys the group, also if
         * it throws. All processes build a generator with the same options; each loads its part of
         * the model. Send requests to rank 0. On the {@linkplain TextEngine#isFollower followers},
         * {@link TextEngine#close} waits until rank 0 closes its generator.
         */
        public Builder optProcessGroup(ProcessGroup group) {
            this.group = group;
            return this;
        }

        /**
         * Sets the maximum number of tokens of a prompt and its new tokens together; by default the
         * {@linkplain ModelConfig#maxLength() maximum of the model}, but at most {@link
         * TextEngine#DEFAULT_MAX_LENGTH}.
         */
        public Builder optMaxLength(int maxLength) {
            this.maxLength = maxLength;
            return this;
        }

        /** Sets the maximum number of requests that run at the same time; default 256. */
        public Builder optMaxRunning(int maxRunning) {
            this.maxRunning = maxRunning;
            return this;
        }

        /** Sets the maximum number of queued requests; default 1024. */
        public Builder optMaxQueued(int maxQueued) {
            this.maxQueued = maxQueued;
            return this;
        }

        /**
         * Sets the bytes of the KV cache on each rank; by default what {@link
         * #optGpuMemoryUtilization} says. It must hold one sequence of {@linkplain #optMaxLength
         * maximum length}.
         */
        public Builder optCacheBytes(long cacheBytes) {
            this.cacheBytes = cacheBytes;
            return this;
        }

        /**
         * Sets the size of the KV cache as a part, above 0 and at most 1, default 0.9, of the
         * memory that the device has left after the weights and the activations of a step. Ranks on
         * the same device share it; all ranks take the smallest size. The cache is never larger
         * than {@link #optMaxRunning} sequences of {@linkplain #optMaxLength maximum length}. On
         * CPUs it is at most 2 GiB for each rank, and always holds one such sequence. Has no effect
         * with {@link #optCacheBytes}.
         */
        public Builder optGpuMemoryUtilization(double utilization) {
            memoryUtilization = utilization;
            return this;
        }

        /**
         * Sets whether requests share the KV cache blocks of equal beginnings (prefix caching),
         * also with requests that have ended; default true. What it may change in a text:
         * docs/text-generation.md, Reproducibility.
         */
        public Builder optPrefixCaching(boolean prefixCaching) {
            this.prefixCaching = prefixCaching;
            return this;
        }

        /**
         * Sets whether, on GPUs in float16 and bfloat16, a sequence gets the same bits in every
         * batch; default false. Large steps and several prompts at a time are then slower:
         * docs/text-generation.md, Reproducibility.
         */
        public Builder optBatchInvariant(boolean batchInvariant) {
            this.batchInvariant = batchInvariant;
            return this;
        }

        /**
         * Sets the prefill budget: the maximum number of prompt tokens in one step, beside one
         * token of each request that decodes; default 4096. Longer prompts are cut into chunks of
         * this size. Requests that decode wait while these tokens are computed: a smaller budget
         * bounds their delay, a larger one gives more tokens a second.
         */
        public Builder optPrefillTokens(int prefillTokens) {
            this.prefillTokens = prefillTokens;
            return this;
        }

        /**
         * Sets the type of the weights and of the computation: float32, float16, bfloat16, or null,
         * the default, for that of {@code config.json}. Weights are converted while they are read.
         */
        public Builder optDataType(DataType type) {
            this.type = type;
            return this;
        }

        /**
         * Sets how the weights of projections are stored, the same on all ranks; default {@link
         * Quantization#NONE}. {@link #build} refuses what the device or the model does not have.
         */
        public Builder optQuantization(Quantization quantization) {
            this.quantization = quantization;
            return this;
        }

        /**
         * Sets how the KV cache stores keys and values, the same on all ranks; default {@link
         * KvCacheDtype#AUTO}. What fp8 needs, and when it pays: docs/text-generation.md, GPUs.
         */
        public Builder optKvCacheDtype(KvCacheDtype dtype) {
            kvCacheDtype = dtype;
            return this;
        }

        /**
         * Sets after how long a missing rank counts as failed; default {@link
         * BackendOptions#DEFAULT_TIMEOUT}.
         */
        public Builder optTimeout(Duration timeout) {
            this.timeout = timeout;
            return this;
        }

        /**
         * Sets a listener, which receives the loaded bytes of the first rank's weights, on that
         * rank's thread.
         */
        public Builder optProgress(Progress progress) {
            this.progress = progress;
            return this;
        }

        /**
         * Loads the model. Blocks until the model is ready. The caller closes the engine.
         *
         * @throws IllegalArgumentException if the model is not supported or an option is out of
         *     range, thrown before anything is allocated; or if {@code tokenizer.json} is not a
         *     tokenizer
         * @throws UnsatisfiedLinkError if weights are to be quantized, and this CPU has no kernels
         *     for it
         * @throws CollectiveException if a rank cannot load its part, for example because memory
         *     runs out; everything allocated is freed
         */
        public TextEngine build() throws IOException {
            try {
                return ContextLoader.of(TextEngine.class, () -> new TextEngine(this));
            } catch (Throwable e) {
                if (group != null) {
                    group.destroy(); // Otherwise the other processes would wait for this process.
                }
                throw e;
            }
        }
    }
}

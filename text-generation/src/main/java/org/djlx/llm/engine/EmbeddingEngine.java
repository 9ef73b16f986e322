// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import ai.djl.Device;
import ai.djl.ndarray.types.DataType;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.llm.EmbeddingModel;
import org.djlx.llm.Embeddings;
import org.djlx.llm.files.GgufDirectory;
import org.djlx.llm.files.ModelHub;
import org.djlx.llm.model.EmbeddingConfig;
import org.djlx.llm.ops.SequenceEncoder;
import org.djlx.llm.text.ContextLengthException;
import org.djlx.llm.text.ModelTokenizer;
import org.djlx.llm.text.TextTokenizer;
import org.djlx.nativeops.ContextLoader;
import org.djlx.nativeops.host.LongCalls;
import org.djlx.nativeops.torch.NoGradient;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Computes embeddings with a model directory in Hugging Face's layout. {@link EmbeddingConfig}
 * reads from sentence-transformers' {@code modules.json} how vectors are pooled and normalised.
 *
 * <p>Ranks are threads of this JVM and compute different batches (data parallel). CPU ranks share
 * one copy of the weights; each GPU has its own. The vector of a text does not depend on the other
 * texts of its batch, except for rounding.
 */
public final class EmbeddingEngine implements EmbeddingModel {

    private static final Logger LOG = LoggerFactory.getLogger(EmbeddingEngine.class);

    private static final String NOT_FINITE =
            "a vector has NaN or infinity; if the type is float16, use bfloat16 or float32, whose"
                    + " range is larger; otherwise check the files of the weights";

    private final Path directory;
    private final EmbeddingConfig config;
    private final TokenizerReader reader; // closes the tokenizer
    private final Optional<ModelTokenizer> tokenizer;
    private final List<SequenceEncoder> encoders = new ArrayList<>(); // one a device
    private final List<Thread> ranks = new ArrayList<>();
    private final EmbeddingQueue queue;
    private final int maxLength;
    private final boolean truncates;

    private EmbeddingEngine(Builder builder) throws IOException {
        directory = GgufDirectory.of(builder.source.directory());
        config = EmbeddingConfig.read(directory);
        truncates = builder.truncation;
        reader = new TokenizerReader(directory);
        try {
            List<Device> devices =
                    builder.devices.isEmpty() ? List.of(Device.cpu()) : builder.devices;
            try (TensorFiles files = GgufDirectory.openWeights(directory)) {
                for (Device device : devices) {
                    encoders.add(SequenceEncoder.load(directory, files, device, builder.type));
                }
            }
            int positions = encoders.get(0).maxLength();
            maxLength =
                    config.maxLength() == 0 ? positions : Math.min(positions, config.maxLength());
            tokenizer = Optional.ofNullable(reader.tokenizer());
            int count = builder.devices.isEmpty() ? builder.ranks : devices.size();
            queue = new EmbeddingQueue(count, builder.batchTokens, builder.maxQueued);
            for (int i = 0; i < count; i++) {
                SequenceEncoder encoder = encoders.get(i % encoders.size());
                Thread thread = new Thread(() -> serve(encoder), "embed-rank-" + i);
                thread.setDaemon(true);
                thread.start();
                ranks.add(thread);
            }
        } catch (Throwable e) {
            encoders.forEach(SequenceEncoder::close);
            reader.close();
            throw e;
        }
    }

    public static Builder builder() {
        return new Builder();
    }

    /** Computes batches until the queue is closed. */
    private void serve(SequenceEncoder encoder) {
        try {
            for (List<EmbeddingQueue.Text> next = queue.take();
                    !next.isEmpty();
                    next = queue.take()) {
                List<EmbeddingQueue.Text> batch = next;
                NoGradient.run(() -> compute(encoder, batch));
            }
        } catch (InterruptedException e) {
            queue.close("the rank was interrupted");
        }
    }

    private void compute(SequenceEncoder encoder, List<EmbeddingQueue.Text> batch) {
        try {
            List<int[]> tokens = batch.stream().map(EmbeddingQueue.Text::tokens).toList();
            float[][] vectors = encoder.encode(tokens, config.pooling());
            for (int i = 0; i < vectors.length; i++) {
                EmbeddingQueue.Text text = batch.get(i);
                if (isFinite(vectors[i])) {
                    text.call().complete(text.index(), vectors[i]);
                } else { // JSON has no such number, and other texts may have none.
                    text.call().fail(new ArithmeticException(NOT_FINITE));
                }
            }
        } catch (Throwable e) { // For example out of memory: a smaller batch may fit.
            LOG.warn("a batch of {} texts has failed", batch.size(), e);
            batch.forEach(text -> text.call().fail(e));
        }
    }

    private static boolean isFinite(float[] vector) {
        return IntStream.range(0, vector.length).allMatch(i -> Float.isFinite(vector[i]));
    }

    @Override
    public Embeddings embedTokens(List<int[]> texts, int dimensions) {
        check(
                dimensions >= 1 && dimensions <= dimensions(),
                "dimensions must be from 1 to %d, not %d",
                dimensions(),
                dimensions);
        int vocabulary = encoders.get(0).vocabularySize();
        for (int[] text : texts) {
            check(text.length > 0, "a text has no tokens");
            if (text.length > maxLength) {
                throw new ContextLengthException(text.length, 0, maxLength);
            }
            for (int token : text) {
                check(
                        token >= 0 && token < vocabulary,
                        "token id %d is out of range: the vocabulary has %d tokens",
                        token,
                        vocabulary);
            }
        }
        List<float[]> vectors =
                Arrays.stream(queue.embed(texts))
                        .map(pooled -> config.finish(pooled, dimensions))
                        .toList();
        return new Embeddings(vectors, texts.stream().mapToLong(text -> text.length).sum());
    }

    private static void check(boolean condition, String problem, Object... values) {
        if (!condition) {
            throw new IllegalArgumentException("embeddings: " + problem.formatted(values));
        }
    }

    @Override
    public int[] encode(String text, String prompt) {
        check(
                tokenizer.isPresent(),
                "a text requires a tokenizer, and %s has no tokenizer.json; pass tokens",
                directory);
        String name = prompt == null ? config.defaultPrompt() : prompt;
        check(
                name == null || config.prompts().containsKey(name),
                "the model has no prompt '%s', but %s",
                name,
                config.prompts().keySet());
        String whole = name == null ? text : config.prompts().get(name) + text;
        ModelTokenizer tokenizer = this.tokenizer.get();
        if (!truncates) {
            ContextLengthException.check(whole, tokenizer, maxLength);
        }
        int[] tokens = tokenizer.encode(whole, true);
        if (tokens.length <= maxLength) {
            return tokens;
        }
        if (!truncates) {
            throw new ContextLengthException(tokens.length, 0, maxLength);
        }
        return truncated(tokenizer.encode(whole, false), tokens);
    }

    /** Drops tokens at the end of a text, {@code plain}, but keeps the special tokens after it. */
    private int[] truncated(int[] plain, int[] tokens) {
        int before =
                IntStream.rangeClosed(0, tokens.length - plain.length)
                        .filter(
                                i ->
                                        Arrays.equals(
                                                tokens,
                                                i,
                                                i + plain.length,
                                                plain,
                                                0,
                                                plain.length))
                        .findFirst()
                        .orElse(0);
        int after = Math.min(maxLength, tokens.length - plain.length - before);
        int[] kept = Arrays.copyOf(tokens, maxLength);
        System.arraycopy(tokens, tokens.length - after, kept, maxLength - after, after);
        return kept;
    }

    @Override
    public int dimensions() {
        return encoders.get(0).hiddenSize();
    }

    @Override
    public int maxLength() {
        return maxLength;
    }

    @Override
    public EmbeddingConfig config() {
        return config;
    }

    @Override
    public Optional<TextTokenizer> tokenizer() {
        return tokenizer.map(each -> each);
    }

    @Override
    public void close() {
        queue.close("the embedding model is closed");
        LongCalls.join(ranks, EngineCore.FOREVER);
        encoders.forEach(SequenceEncoder::close);
        reader.close();
    }

    public static final class Builder {

        private ModelSource source = ModelSource.missing();
        private List<Device> devices = List.of();
        private int ranks = 1;
        private DataType type;
        private int batchTokens;
        private int maxQueued = 65536;
        private boolean truncation;

        private Builder() {}

        /** Sets the model: a name on a Hugging Face hub, or a directory; see {@link ModelHub}. */
        public Builder setModel(String model) {
            source = ModelSource.named(model, LOG);
            return this;
        }

        /** Sets the model's directory. Either this or {@link #setModel} is required. */
        public Builder setDirectory(Path directory) {
            source = () -> directory;
            return this;
        }

        /** Sets the number of CPU ranks, each on its thread; default 1. Ignored with GPUs. */
        public Builder optRanks(int ranks) {
            this.ranks = ranks;
            return this;
        }

        /** Sets the GPUs, one rank each; default none: the CPU. */
        public Builder optDevices(List<Device> devices) {
            this.devices = List.copyOf(devices);
            return this;
        }

        /**
         * Sets the type of weights and computation: float32, float16 or bfloat16. Default null:
         * float32 for encoders on the CPU, otherwise that of {@code config.json}.
         */
        public Builder optDataType(DataType type) {
            this.type = type;
            return this;
        }

        /** Sets the maximum tokens of a batch; default 16384 on GPUs, 2048 on the CPU. */
        public Builder optBatchTokens(int batchTokens) {
            this.batchTokens = batchTokens;
            return this;
        }

        /**
         * Sets the maximum number of waiting texts; default 65536. A single call may have more if
         * no other texts wait.
         */
        public Builder optMaxQueued(int maxQueued) {
            this.maxQueued = maxQueued;
            return this;
        }

        /**
         * Sets whether texts that are too long are truncated, as sentence-transformers does.
         * Default false: they are an error.
         */
        public Builder optTruncation(boolean truncation) {
            this.truncation = truncation;
            return this;
        }

        /**
         * Loads the model. The caller closes it.
         *
         * @throws IOException if a file cannot be read or a download fails
         * @throws IllegalArgumentException if the model or an option is not supported
         */
        public EmbeddingEngine build() throws IOException {
            for (Device device : devices) {
                check(device.isGpu(), "%s is not a GPU; set CPU ranks with optRanks", device);
            }
            if (batchTokens == 0) {
                batchTokens = devices.isEmpty() ? 2048 : 16384;
            }
            check(ranks >= 1, "ranks must be 1 or more, not %d", ranks);
            check(batchTokens >= 1, "batchTokens must be 1 or more, not %d", batchTokens);
            check(maxQueued >= 1, "maxQueued must be 1 or more, not %d", maxQueued);
            return ContextLoader.of(EmbeddingEngine.class, () -> new EmbeddingEngine(this));
        }
    }
}

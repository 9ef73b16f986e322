/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.engine;

import ai.djl.Device;
import ai.djl.util.Progress;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.pool.RankPool;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.fusedops.llm.FinishReason;
import org.djlx.fusedops.llm.Generation;
import org.djlx.fusedops.llm.GenerationRequest;
import org.djlx.fusedops.llm.GeneratorStatistics;
import org.djlx.fusedops.llm.TextGenerator;
import org.djlx.fusedops.llm.model.KvCache;
import org.djlx.fusedops.llm.model.LlamaConfig;
import org.djlx.fusedops.llm.model.TokenBatch;
import org.djlx.fusedops.llm.sampling.Sampler;
import org.djlx.fusedops.llm.text.ModelTokenizer;
import org.djlx.fusedops.llm.text.TextTokenizer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A Llama from a model directory, on several ranks: CPU ranks, or GPUs.
 *
 * <pre>{@code
 * try (TextGenerator generator =
 *         LlamaGenerator.builder().setDirectory(directory).optRanks(2).build()) {
 *     Generation generation =
 *             generator.submit(
 *                     GenerationRequest.builder().setPrompt("Once").optMaxNewTokens(20).build());
 *     generation.await(Duration.ofMinutes(1)).forEach(piece -> System.out.print(piece.text()));
 * }
 * }</pre>
 *
 * <p>The directory has {@code config.json} and safetensors as Hugging Face has them, and, if
 * prompts are to be texts, {@code tokenizer.json}. Each rank reads its part of the weights. They
 * and the cache, whose sizes the log states before, are what takes most memory from then on.
 * Besides there is what a step computes, which grows with {@link Builder#optPrefillTokens}, and,
 * where ranks are several GPUs, a P2P buffer of each, of {@link
 * org.djlx.collectives.CudaP2pOptions#DEFAULT_BUFFER_SIZE} unless the {@linkplain
 * Builder#optProcessGroup group} has another.
 *
 * <p>Requests are served in the order in which they come, many at a time: one joins the running
 * batch when the cache has room for its prompt and all it may generate, and leaves it when it ends.
 * Long prompts are read in parts, so that others do not wait for them.
 *
 * <p>Ranks are threads of this JVM, or {@linkplain Builder#optProcessGroup processes}. If one fails
 * while requests run, these and those that wait fail with the reason. If ranks are threads, the
 * model is loaded again, once; if it fails again before a request has been served, the generator is
 * lost. If they are processes it is lost at once, and what started these may start them again.
 */
public final class LlamaGenerator implements TextGenerator {

    private static final Logger LOG = LoggerFactory.getLogger(LlamaGenerator.class);

    // Longer than a step of decoding takes.
    private static final long SPIN_NANOS = 20_000_000;

    /** How many tokens a prompt and its answer have at most, unless the builder is told. */
    public static final int DEFAULT_MAX_LENGTH = 8192;

    private final Path directory;
    private final LlamaConfig config;
    private final TextTokenizer tokenizer; // null if there is none
    private final GeneratorSettings settings;
    private final Thread thread;

    // The thread's own: what the model computes; null if what it computed last has been taken.
    private Step begun;

    // The thread's own, but for tests; set before it starts.
    private volatile ModelRanks ranks;

    // Guarded by this.
    private final Scheduler scheduler;
    private String lost; // why there is no model any more
    private boolean closed;
    private long finishedBeforeRebuild = -1;
    private int rebuilds;

    private LlamaGenerator(Builder builder) throws IOException {
        directory = builder.directory;
        config = LlamaConfig.read(directory);
        settings = builder.settings(config);
        scheduler = new Scheduler(settings);
        Path file = directory.resolve("tokenizer.json");
        tokenizer = Files.exists(file) ? ModelTokenizer.read(file) : null;
        thread = new Thread(this::run, "llama-" + directory.getFileName());
        thread.setDaemon(true);
        boolean done = false;
        try {
            if (settings.group() != null) {
                ModelRanks.checkAgreement(config, settings);
            }
            ranks = load();
            if (settings.group() != null) {
                pool().whenFailed().thenRun(this::wake);
            }
            if (!isFollower()) {
                thread.start();
            }
            done = true;
        } finally {
            if (!done) {
                closeModel();
            }
        }
    }

    /**
     * Creates a builder.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    private ModelRanks load() throws IOException {
        return ModelRanks.load(thread.getName(), directory, config, settings);
    }

    @Override
    public List<Generation> submitAll(List<GenerationRequest> requests) {
        check(requests != null && !requests.isEmpty(), "there is none");
        check(
                requests.size() <= settings.maxQueued(),
                "%d prompts are more than the %d that may wait",
                requests.size(),
                settings.maxQueued());
        checkAvailable(); // Before the tokenizer is used, which is closed with the generator.
        List<Sequence> sequences = requests.stream().map(this::sequence).toList();
        synchronized (this) {
            checkAvailable();
            scheduler.addAll(sequences);
            notifyAll();
        }
        return sequences.stream().<Generation>map(sequence -> sequence.queue).toList();
    }

    private Sequence sequence(GenerationRequest request) {
        check(request != null, "it is null");
        int[] prompt = request.promptTokens().orElseGet(() -> encode(request));
        check(prompt.length > 0, "the prompt has no tokens");
        checkTokens("of the prompt", prompt);
        checkTokens("that ends it", request.stopTokens());
        check(
                prompt.length <= maxLength() - request.maxNewTokens(),
                "%d tokens of the prompt and %d new ones are more than the %d that this model is"
                        + " set up for",
                prompt.length,
                request.maxNewTokens(),
                maxLength());
        check(
                tokenizer != null || request.stopStrings().isEmpty(),
                "stop strings take a tokenizer, and %s has no tokenizer.json",
                directory);
        Set<Integer> stops = new HashSet<>();
        if (!request.ignoresEndOfText()) {
            stops.addAll(config.endTokens());
        }
        Arrays.stream(request.stopTokens()).forEach(stops::add);
        PieceQueue queue = new PieceQueue(prompt.length, this::wake);
        return new Sequence(request, prompt, tokenizer, stops, queue);
    }

    private void checkTokens(String what, int[] tokens) {
        for (int token : tokens) {
            check(
                    token >= 0 && token < config.vocabularySize(),
                    "the token %d %s is none of the model's %d",
                    token,
                    what,
                    config.vocabularySize());
        }
    }

    private void checkAvailable() {
        Optional<String> unavailable = unavailabilityCause();
        if (unavailable.isPresent()) {
            throw new IllegalStateException(unavailable.get());
        }
    }

    private int[] encode(GenerationRequest request) {
        check(
                tokenizer != null,
                "the prompt must be given by tokens, as %s has no tokenizer.json",
                directory);
        return tokenizer.encode(request.prompt().orElseThrow(), true);
    }

    private static void check(boolean right, String problem, Object... values) {
        if (!right) {
            throw new IllegalArgumentException(
                    "generation request: " + String.format(problem, values));
        }
    }

    private synchronized void wake() {
        notifyAll();
    }

    /** Serves requests until this is closed; the generator's thread. */
    private void run() {
        try {
            while (awaitWork()) {
                if (pool().failure().isPresent()) {
                    boolean hasBegun;
                    synchronized (this) {
                        hasBegun = scheduler.hasBegun();
                    }
                    if (hasBegun) {
                        endAll(FinishReason.ERROR, pool().failure().get());
                    }
                    begun = null;
                    rebuild();
                    continue;
                }
                try {
                    step();
                } catch (ExecutionException e) {
                    endAll(FinishReason.ERROR, e.getCause());
                    rebuild();
                }
            }
        } catch (InterruptedException | RuntimeException | Error e) {
            LOG.error("{}: the generator has failed", directory, e);
            lose("the generator of " + directory + " has failed: " + e, e);
        } finally {
            endAll(FinishReason.CANCELLED, null);
            closeModel();
        }
    }

    /** Waits for requests, and lets those in for which there is room. Returns false at the end. */
    private synchronized boolean awaitWork() throws InterruptedException {
        while (true) {
            scheduler.removeEnded();
            if (closed || lost != null) {
                return false;
            }
            if (scheduler.admit() || isBroken()) {
                return true;
            }
            wait();
        }
    }

    /** Tells whether a process has failed, after which there is nothing to wait for. */
    private boolean isBroken() {
        return settings.group() != null && pool().failure().isPresent();
    }

    /**
     * What the model computes.
     *
     * @param request tells the ranks
     * @param wanting the sequences that get a token each
     * @param canBeFollowed whether the ranks know these tokens as soon as they are computed, so
     *     that the next step need not wait for them
     */
    private record Step(StepRequest request, List<Sequence> wanting, boolean canBeFollowed) {}

    /**
     * Takes the tokens that follow, and has the model compute what follows on them while they are
     * made text. Where ranks choose them by themselves, the next step begins before they are known
     * here. What ends a sequence is found too late then, and its next token is computed in vain, as
     * it is where its text ends it, by a stop string.
     */
    private void step() throws InterruptedException, ExecutionException {
        Step step = begun == null ? begin() : begun;
        begun = null;
        if (step == null) {
            return; // All were cancelled meanwhile.
        }
        Step next = step.canBeFollowed ? nextStep(true) : null;
        CompletableFuture<List<Sampler.Choice>> ended =
                pool().submit(next == null ? StepRequest.END : next.request);
        long start = System.nanoTime();
        while (settings.isGpu() && !ended.isDone() && System.nanoTime() - start < SPIN_NANOS) {
            Thread.onSpinWait(); // GPUs would wait for this thread to wake up.
        }
        List<Sampler.Choice> choices = ended.get();
        List<Sequence> taking = new ArrayList<>();
        List<Sampler.Choice> taken = new ArrayList<>();
        for (int i = 0; i < choices.size(); i++) {
            if (take(step.wanting.get(i), choices.get(i))) {
                taking.add(step.wanting.get(i));
                taken.add(choices.get(i));
            }
        }
        begun = next == null ? begin() : next;
        for (int i = 0; i < taking.size(); i++) {
            tell(taking.get(i), taken.get(i));
        }
        synchronized (this) {
            scheduler.countGenerated(taking.size());
        }
    }

    /** Has the model begin a step, if there is something for it. */
    private Step begin() {
        Step step = nextStep(false);
        if (step != null) {
            pool().submit(step.request);
        }
        return step;
    }

    /**
     * Returns what the model can read of all sequences; null if there is nothing.
     *
     * @param ahead whether the model still computes tokens of them
     */
    private Step nextStep(boolean ahead) {
        List<Sequence> wanting = new ArrayList<>();
        TokenBatch batch;
        synchronized (this) {
            if (ahead && scheduler.hasLongPrompt()) {
                return null;
            }
            batch = scheduler.next(wanting, ranks.readsAhead());
        }
        if (batch.chunks().isEmpty()) {
            return null;
        }
        List<Sampler> choosers = wanting.stream().map(each -> each.chooser).toList();
        StepRequest request = new StepRequest(batch, choosers);
        return new Step(request, wanting, ranks.readsAhead() && !request.needsAll());
    }

    private static boolean take(Sequence sequence, Sampler.Choice choice) {
        if (sequence.isEnded()) {
            return false; // It was cancelled meanwhile.
        }
        if (choice == null) {
            sequence.queue.end(
                    FinishReason.ERROR,
                    new ArithmeticException("the model's scores are not all numbers"));
            return false;
        }
        sequence.take(choice.token());
        return true;
    }

    private static void tell(Sequence sequence, Sampler.Choice choice) {
        try {
            sequence.tell(choice);
        } catch (RuntimeException e) { // The tokenizer's, for example; others go on.
            sequence.queue.end(FinishReason.ERROR, e);
        }
    }

    /** Loads the model again after a rank has failed, unless that did not help before. */
    private void rebuild() {
        CollectiveException failure = pool().failure().orElseThrow();
        String end = null;
        synchronized (this) {
            if (settings.group() != null) {
                end = directory + " has failed; start all ranks again";
            } else if (scheduler.finished() == finishedBeforeRebuild) {
                end = directory + " has failed again after it was loaded again";
            } else {
                finishedBeforeRebuild = scheduler.finished();
                rebuilds++;
            }
            if (end != null) {
                lost = end + ": " + failure.getMessage();
            }
        }
        if (end != null) {
            LOG.error("{}", end, failure);
            endAll(FinishReason.ERROR, failure);
            return;
        }
        LOG.warn("{} is loaded again, as it has failed", directory, failure);
        pool().close();
        try {
            ranks = load();
        } catch (IOException | RuntimeException e) {
            lose(directory + " could not be loaded again after it had failed: " + e, e);
        }
    }

    private void lose(String why, Throwable cause) {
        synchronized (this) {
            lost = why;
        }
        endAll(FinishReason.ERROR, cause);
    }

    /** Ends all generations. */
    private void endAll(FinishReason reason, Throwable cause) {
        List<Sequence> all;
        synchronized (this) {
            all = scheduler.all();
        }
        all.forEach(sequence -> sequence.queue.end(reason, cause));
        synchronized (this) {
            scheduler.removeEnded();
        }
    }

    private void closeModel() {
        if (ranks != null) {
            pool().close();
        }
        if (tokenizer != null) {
            tokenizer.close();
        }
    }

    @Override
    public int maxLength() {
        return settings.maxLength();
    }

    @Override
    public Optional<TextTokenizer> tokenizer() {
        return Optional.ofNullable(tokenizer);
    }

    /**
     * Returns the model's sizes.
     *
     * @return the configuration
     */
    public LlamaConfig config() {
        return config;
    }

    /**
     * Tells whether this process follows that of rank 0, whose generator alone takes requests.
     *
     * @return whether it does; false if ranks are threads
     */
    public boolean isFollower() {
        return settings.isFollower();
    }

    /**
     * Waits until rank 0 has closed its generator, which this process follows.
     *
     * @throws CollectiveException if a rank has failed before
     * @throws IllegalStateException if this process {@linkplain #isFollower follows} no other
     * @throws InterruptedException if the thread is interrupted
     */
    public void awaitEnd() throws InterruptedException {
        if (!isFollower()) {
            throw new IllegalStateException("this generator follows none: it ends when closed");
        }
        pool().awaitEnd();
    }

    /** Returns the ranks, also for tests. */
    RankPool<StepRequest, List<Sampler.Choice>> pool() {
        return ranks.pool();
    }

    @Override
    public synchronized GeneratorStatistics statistics() {
        return scheduler.statistics(config, rebuilds);
    }

    @Override
    public synchronized Optional<String> unavailabilityCause() {
        if (lost != null || closed) {
            return Optional.of(
                    lost != null ? lost : "the generator of " + directory + " is closed");
        }
        return isFollower()
                ? Optional.of("requests are for rank 0, which this process follows")
                : Optional.empty();
    }

    /**
     * Cancels all requests and frees the model; see {@link TextGenerator#close}. libtorch keeps the
     * memory of GPUs for the next arrays of this process. On a process that {@linkplain #isFollower
     * follows} rank 0, waits until that closes its generator or has failed.
     */
    @Override
    public void close() {
        if (Thread.currentThread() == thread) {
            throw new IllegalStateException("a listener cannot close its generator");
        }
        synchronized (this) {
            closed = true;
            notifyAll();
        }
        if (isFollower()) {
            closeModel(); // It has no thread that does.
            return;
        }
        boolean interrupted = false;
        while (thread.isAlive()) {
            try {
                thread.join();
            } catch (InterruptedException e) {
                interrupted = true; // What it uses is freed all the same.
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** Builds a {@link LlamaGenerator}. */
    public static final class Builder {

        private static final long DEFAULT_CACHE_BYTES = 2L << 30;

        private Path directory;
        private List<Device> devices = List.of();
        private Integer ranks;
        private ProcessGroup group;
        private int maxLength;
        private int maxRunning = 64;
        private int maxQueued = 1024;
        private long cacheBytes;
        private int prefillTokens = 4096;
        private Duration timeout = BackendOptions.DEFAULT_TIMEOUT;
        private Progress progress;

        private Builder() {}

        /**
         * Sets where the model is.
         *
         * @param directory a directory with {@code config.json} and safetensors
         * @return this builder
         */
        public Builder setDirectory(Path directory) {
            this.directory = directory;
            return this;
        }

        /**
         * Sets how many CPU ranks there are. Each computes with libtorch's threads, which wait for
         * each other actively: where cores are few or busy, {@code -Dai.djl.pytorch.num_threads=1}
         * is much faster.
         *
         * @param ranks the number, 1 unless set
         * @return this builder
         */
        public Builder optRanks(int ranks) {
            this.ranks = ranks;
            return this;
        }

        /**
         * Has GPUs as ranks, one each.
         *
         * @param devices the GPUs, in the order of the ranks; none for CPU ranks
         * @return this builder
         */
        public Builder optDevices(List<Device> devices) {
            this.devices = devices;
            return this;
        }

        /**
         * Makes this process a rank of those that a group has, which are processes of one host, in
         * place of {@link #optRanks} and {@link #optDevices}. All of them build a generator, with
         * the same options, and load their part of the model. Requests are for that of rank 0; on
         * the others, which {@linkplain LlamaGenerator#isFollower follow} it, closing waits until
         * rank 0 closes its own.
         *
         * @param group this process's handle; it is the generator's from {@link #build} on, which
         *     destroys it, also if it throws
         * @return this builder
         */
        public Builder optProcessGroup(ProcessGroup group) {
            this.group = group;
            return this;
        }

        /**
         * Sets how many tokens a prompt and what is generated after it may have together.
         *
         * @param maxLength the tokens; unless set, as many as the model was made for, but {@link
         *     LlamaGenerator#DEFAULT_MAX_LENGTH} at most
         * @return this builder
         */
        public Builder optMaxLength(int maxLength) {
            this.maxLength = maxLength;
            return this;
        }

        /**
         * Sets how many requests are served at the same time.
         *
         * @param maxRunning the number, 64 unless set
         * @return this builder
         */
        public Builder optMaxRunning(int maxRunning) {
            this.maxRunning = maxRunning;
            return this;
        }

        /**
         * Sets how many requests may wait.
         *
         * @param maxQueued the number, 1024 unless set
         * @return this builder
         */
        public Builder optMaxQueued(int maxQueued) {
            this.maxQueued = maxQueued;
            return this;
        }

        /**
         * Sets the size of the cache for keys and values.
         *
         * @param cacheBytes the memory on each rank, in bytes; enough for one sequence of the
         *     greatest length. Unless set, what as many as are served at the same time need, but 2
         *     GiB at most, or what one sequence needs
         * @return this builder
         */
        public Builder optCacheBytes(long cacheBytes) {
            this.cacheBytes = cacheBytes;
            return this;
        }

        /**
         * Sets how many tokens of prompts are read at once.
         *
         * @param prefillTokens the number, 4096 unless set; others wait for so many. The first so
         *     many of a prompt take the least time
         * @return this builder
         */
        public Builder optPrefillTokens(int prefillTokens) {
            this.prefillTokens = prefillTokens;
            return this;
        }

        /**
         * Sets how long ranks wait for each other.
         *
         * @param timeout the time after which a rank that does not come has failed; {@link
         *     BackendOptions#DEFAULT_TIMEOUT} unless set
         * @return this builder
         */
        public Builder optTimeout(Duration timeout) {
            this.timeout = timeout;
            return this;
        }

        /**
         * Sets who is told how loading goes.
         *
         * @param progress is told how many of the bytes of the first rank's weights are there, by
         *     that rank's thread
         * @return this builder
         */
        public Builder optProgress(Progress progress) {
            this.progress = progress;
            return this;
        }

        /**
         * Loads the model. Returns when it can be used.
         *
         * @return the generator, to be closed
         * @throws IOException if files cannot be read
         * @throws IllegalArgumentException if the model or what is asked for is impossible; before
         *     anything is allocated
         * @throws CollectiveException if a rank cannot load its part, which takes more memory than
         *     there is, for example; nothing is left allocated then
         */
        public LlamaGenerator build() throws IOException {
            boolean done = false;
            try {
                if (directory == null) {
                    throw new IllegalArgumentException("set the directory of the model");
                }
                LlamaGenerator generator = new LlamaGenerator(this);
                done = true;
                return generator;
            } finally {
                if (!done && group != null) {
                    group.destroy(); // No other process waits for this one.
                }
            }
        }

        private GeneratorSettings settings(LlamaConfig config) {
            if (devices == null || timeout == null) {
                throw new IllegalArgumentException("the devices or the timeout are null");
            }
            int cpuRanks = ranks == null ? 1 : ranks;
            positive("ranks", cpuRanks);
            positive("maxRunning", maxRunning);
            positive("maxQueued", maxQueued);
            positive("prefillTokens", prefillTokens);
            for (Device device : devices) {
                if (device == null || !device.isGpu()) {
                    throw new IllegalArgumentException(
                            device + " is no GPU; CPU ranks are given by their number");
                }
            }
            if (group != null && (ranks != null || !devices.isEmpty())) {
                throw new IllegalArgumentException(
                        "the process group has the ranks; neither ranks nor devices can be set");
            }
            int count =
                    group != null
                            ? group.worldSize()
                            : devices.isEmpty() ? cpuRanks : devices.size();
            config.checkDivisible(count);
            int length =
                    maxLength == 0 ? Math.min(config.maxLength(), DEFAULT_MAX_LENGTH) : maxLength;
            positive("maxLength", length);
            if (length > config.maxLength()) {
                throw new IllegalArgumentException(
                        String.format(
                                "maxLength %d is more than the model's %d",
                                length, config.maxLength()));
            }
            return new GeneratorSettings(
                    group,
                    List.copyOf(devices),
                    cpuRanks,
                    length,
                    maxRunning,
                    maxQueued,
                    cacheBlocks(config, count, length),
                    prefillTokens,
                    timeout,
                    progress);
        }

        private int cacheBlocks(LlamaConfig config, int ranks, int length) {
            long blockBytes = KvCache.byteSize(config, ranks, KvCache.BLOCK_TOKENS);
            long one = CacheBlocks.blocks(length, KvCache.BLOCK_TOKENS);
            long most = Integer.MAX_VALUE / KvCache.BLOCK_TOKENS;
            if (cacheBytes == 0) {
                long fitting = Math.max(one, DEFAULT_CACHE_BYTES / blockBytes);
                return (int) Math.min(most, Math.min(one * maxRunning, fitting));
            }
            long blocks = Math.min(most, cacheBytes / blockBytes);
            if (blocks < one) {
                throw new IllegalArgumentException(
                        String.format(
                                "a cache of %d bytes on each rank is too small: a sequence of"
                                        + " maxLength %d takes %d",
                                cacheBytes, length, one * blockBytes));
            }
            return (int) blocks;
        }

        private static void positive(String name, int value) {
            if (value < 1) {
                throw new IllegalArgumentException(name + " must be 1 or more, not " + value);
            }
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.pool.RankPool;
import org.djlx.llm.FinishReason;
import org.djlx.llm.GeneratorStatistics;
import org.djlx.llm.model.KvCacheDtype;
import org.djlx.llm.model.LoraConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.ops.TokenBatch;
import org.djlx.llm.sampling.Sampler;
import org.djlx.nativeops.host.LongCalls;
import org.djlx.nativeops.host.Required;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The engine loop: a thread that schedules sequences, runs steps on the ranks and publishes tokens.
 * If ranks are threads, the loop reloads the model after a rank has failed. A follower has no
 * requests of its own and never starts the thread. All non-private methods are thread-safe.
 */
final class EngineCore {

    private static final Logger LOG = LoggerFactory.getLogger(EngineCore.class);

    // Longer than a decode step takes.
    private static final long SPIN_NANOS = 20_000_000;

    static final Duration FOREVER = Duration.ofDays(10_000);

    private final Path directory;
    private final ModelConfig config;
    private final GeneratorSettings settings;
    private final Thread thread;

    // Used by the engine thread only: the launched step whose tokens are not taken yet, or null.
    private Step inFlight;

    // Replaced by the engine thread.
    private volatile ModelRanks ranks;

    // Guarded by this.
    private final Scheduler scheduler;
    private final AdapterTable adapters = new AdapterTable();
    private String failure; // why the engine has stopped permanently; null while it works
    private boolean closed;
    private long finishedBeforeReload = -1; // requests, at the last reload
    private int reloads;

    /** {@code first}: directories of adapters to load with the model, by name. */
    EngineCore(
            Path directory, ModelConfig config, GeneratorSettings settings, Map<String, Path> first)
            throws IOException {
        this.directory = directory;
        this.config = config;
        this.settings = settings;
        thread = new Thread(this::run, "engine-" + directory.getFileName());
        thread.setDaemon(true);
        if (settings.group() != null) {
            ModelRanks.checkAgreement(config, settings);
        }
        Map<String, CompletableFuture<Void>> loading = new LinkedHashMap<>();
        for (Map.Entry<String, Path> each : first.entrySet()) {
            checkAdapter(each.getKey(), each.getValue());
            loading.put(each.getKey(), adapters.add(each.getKey(), each.getValue()));
        }
        ranks = load();
        scheduler = new Scheduler(settings, ranks.cacheBlocks());
        try {
            if (settings.group() != null) {
                pool().whenFailed().thenRun(this::wake);
            }
            if (!settings.isFollower()) {
                loadAdapters();
                for (Map.Entry<String, CompletableFuture<Void>> each : loading.entrySet()) {
                    await(each.getKey(), each.getValue());
                }
                thread.start();
            }
        } catch (ExecutionException e) {
            pool().close();
            throw (CollectiveException) e.getCause();
        } catch (InterruptedException e) {
            pool().close();
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted while adapters were loaded");
        } catch (Throwable e) {
            pool().close();
            throw e;
        }
    }

    private ModelRanks load() throws IOException {
        return ModelRanks.load(thread.getName(), directory, config, settings);
    }

    /**
     * Makes the ranks load waiting adapters and free unused ones. If a rank cannot load an adapter,
     * the sequences with this adapter fail.
     */
    private void loadAdapters() throws InterruptedException, ExecutionException {
        AdapterRequest request;
        synchronized (this) {
            // Under the lock, because requests and removals change the used adapters.
            request = new AdapterRequest(adapters.load(usedAdapters()));
        }
        pool().submit(request).get();
        Map<Integer, String> failures = request.failures();
        List<Sequence> without;
        synchronized (this) {
            adapters.loaded(request.directories().keySet(), failures);
            without =
                    scheduler.all().stream()
                            .filter(each -> failures.containsKey(each.adapter()))
                            .toList();
        }
        if (!failures.isEmpty()) {
            LOG.warn("{}: adapters could not be loaded: {}", directory, failures.values());
        }
        for (Sequence each : without) {
            String why = failures.get(each.adapter());
            each.queue.end(
                    FinishReason.ERROR,
                    new IOException("the request's adapter could not be loaded again: " + why));
        }
    }

    private synchronized Set<Integer> usedAdapters() {
        return scheduler.all().stream().map(Sequence::adapter).collect(Collectors.toSet());
    }

    private synchronized boolean hasAdapterChanges() {
        return adapters.hasChanges(this::usedAdapters);
    }

    private void checkAdapter(String name, Path of) throws IOException {
        Required.check(name != null && !name.isBlank(), "the name of an adapter is empty");
        Required.check(
                name.chars().noneMatch(Character::isISOControl),
                "the name of an adapter has control characters; take another name");
        Required.check(of != null, "the directory of the adapter '%s' is null", name);
        boolean narrow =
                settings.quantization() != Quantization.NONE
                        || config.kvCacheDtype() == KvCacheDtype.FP8;
        Required.check(
                !settings.isGpu() || !narrow,
                "on GPUs, adapters need weights and a KV cache in the model's type; load the model"
                        + " without quantization, or merge the adapter '%s'",
                name);
        LoraConfig.read(of).open(of, config).close();
    }

    void loadAdapter(String name, Path of) throws IOException {
        checkAvailable();
        if (Thread.currentThread() == thread) {
            throw new IllegalStateException(
                    "a progress listener must not load adapters; load them on another thread");
        }
        checkAdapter(name, of);
        CompletableFuture<Void> loaded;
        synchronized (this) {
            checkAvailable(); // After the engine thread has ended, nothing would complete the
            // future.
            loaded = adapters.add(name, of);
            notifyAll();
        }
        await(name, loaded);
    }

    private static void await(String name, CompletableFuture<Void> loaded) throws IOException {
        try {
            loaded.join();
        } catch (CompletionException e) {
            if (e.getCause() instanceof IOException failure) {
                throw failure;
            }
            throw new IllegalStateException(
                    "the adapter '" + name + "' could not be loaded: " + e.getCause(), e);
        }
    }

    synchronized void unloadAdapter(String name) {
        adapters.remove(name);
        notifyAll();
    }

    synchronized List<String> adapters() {
        return adapters.names();
    }

    /** Returns the id of an adapter; throws an IllegalArgumentException if there is none. */
    synchronized int adapter(String name) {
        return adapters.id(name);
    }

    /**
     * Accepts all sequences or none. Throws if the engine does not accept requests, or the queue is
     * full.
     */
    synchronized void add(List<Sequence> sequences) {
        checkAvailable();
        for (Sequence sequence : sequences) {
            InputProcessor.check(
                    sequence.adapter() == 0 || adapters.isNamed(sequence.adapter()),
                    "the request's adapter has just been removed; name another, or load it again");
        }
        scheduler.addAll(sequences);
        notifyAll();
    }

    /**
     * Wakes the engine thread: a sequence has been cancelled, or the process of a rank has ended.
     */
    synchronized void wake() {
        notifyAll();
    }

    void checkAvailable() {
        Optional<String> unavailable = unavailabilityCause();
        if (unavailable.isPresent()) {
            throw new IllegalStateException(unavailable.get());
        }
    }

    synchronized Optional<String> unavailabilityCause() {
        if (failure != null) {
            return Optional.of(failure);
        }
        if (closed) {
            return Optional.of("the generator of " + directory + " is closed");
        }
        return settings.isFollower()
                ? Optional.of("this process follows rank 0; send requests to rank 0")
                : Optional.empty();
    }

    synchronized GeneratorStatistics statistics() {
        return scheduler.statistics(config, reloads);
    }

    RankPool<StepRequest, List<Sampler.SampledToken>> pool() {
        return ranks.pool();
    }

    private void run() {
        try {
            while (awaitWork()) {
                if (pool().failure().isPresent()) {
                    boolean started;
                    synchronized (this) {
                        started = scheduler.hasStarted();
                    }
                    if (started) {
                        endAll(FinishReason.ERROR, pool().failure().get());
                    }
                    inFlight = null;
                    reload();
                    continue;
                }
                try {
                    if (hasAdapterChanges()) {
                        loadAdapters();
                    }
                    step();
                } catch (ExecutionException e) {
                    endAll(FinishReason.ERROR, e.getCause());
                    failAdapters(e.getCause());
                    reload();
                }
            }
        } catch (InterruptedException | RuntimeException | Error e) {
            LOG.error("{}: the engine thread has failed", directory, e);
            fail("the generator of " + directory + " has failed: " + e, e);
        } finally {
            endAll(FinishReason.CANCELLED, null);
            failAdapters(new IllegalStateException("the generator is closed"));
            pool().close();
        }
    }

    private synchronized void failAdapters(Throwable cause) {
        adapters.fail(cause);
    }

    /**
     * Waits until a sequence runs, or a process has failed. Returns false once closed or failed.
     */
    private synchronized boolean awaitWork() throws InterruptedException {
        while (true) {
            scheduler.removeEnded();
            if (closed || failure != null) {
                return false;
            }
            boolean processFailed = settings.group() != null && pool().failure().isPresent();
            if (scheduler.admit() || processFailed || hasAdapterChanges()) {
                return true;
            }
            wait();
        }
    }

    /**
     * A step; {@code sampled} are the sequences that get a token each, in the order of the batch.
     */
    private record Step(StepRequest request, List<Sequence> sampled) {}

    /**
     * Runs one step. With on-device sampling, launches step n+1 before step n's tokens reach the
     * host (async scheduling); if a token of step n ends its sequence, step n+1 has computed one
     * token of that sequence too many, which is dropped. Otherwise launches step n+1 after sampling
     * step n and before publishing its tokens: their detokenization overlaps with the model.
     */
    private void step() throws InterruptedException, ExecutionException {
        Step step = inFlight == null ? launch() : inFlight;
        inFlight = null;
        if (step == null) {
            return; // All sequences have been cancelled.
        }
        Step next = ranks.samplesOnDevice() ? nextStep(true) : null;
        CompletableFuture<List<Sampler.SampledToken>> result =
                pool().submit(next == null ? StepRequest.FLUSH : next.request);
        long start = System.nanoTime();
        while (settings.isGpu() && !result.isDone() && System.nanoTime() - start < SPIN_NANOS) {
            Thread.onSpinWait(); // Spins because GPUs idle while this thread wakes up.
        }
        List<Sampler.SampledToken> tokens = result.get();
        List<Sequence> sequences = new ArrayList<>();
        List<Sampler.SampledToken> appended = new ArrayList<>();
        for (int i = 0; i < tokens.size(); i++) {
            if (append(step.sampled.get(i), tokens.get(i))) {
                sequences.add(step.sampled.get(i));
                appended.add(tokens.get(i));
            }
        }
        inFlight = next == null ? launch() : next;
        for (int i = 0; i < sequences.size(); i++) {
            publish(sequences.get(i), appended.get(i));
        }
        synchronized (this) {
            scheduler.countGenerated(sequences.size());
        }
    }

    /** Launches a step. Returns null if there is nothing to compute. */
    private Step launch() {
        Step step = nextStep(false);
        if (step != null) {
            pool().submit(step.request);
        }
        return step;
    }

    /**
     * Schedules the next step; null if there is nothing to compute. With {@code async} the tokens
     * of the previous step are not known yet; a prefill then waits, and the result is null.
     */
    private Step nextStep(boolean async) {
        List<Sequence> sampled = new ArrayList<>();
        TokenBatch batch;
        synchronized (this) {
            if (async && scheduler.hasPrefill()) {
                return null;
            }
            batch = scheduler.schedule(sampled);
        }
        if (batch.chunks().isEmpty()) {
            return null;
        }
        return new Step(new StepRequest(batch), sampled);
    }

    /**
     * Appends a token to its sequence. Returns false if the sequence has ended, or if the token
     * belongs to its prompt.
     */
    private static boolean append(Sequence sequence, Sampler.SampledToken sampled) {
        if (sequence.isEnded()) {
            return false; // Cancelled in the meantime.
        }
        if (sampled == null) {
            sequence.queue.end(
                    FinishReason.ERROR,
                    new ArithmeticException("the model's logits are infinite or NaN"));
            return false;
        }
        try {
            return sequence.append(sampled);
        } catch (IllegalArgumentException e) { // No token continues the grammar.
            sequence.queue.end(FinishReason.ERROR, e);
            return false;
        }
    }

    private static void publish(Sequence sequence, Sampler.SampledToken sampled) {
        try {
            sequence.publish(sampled);
        } catch (RuntimeException e) { // For example of the tokenizer. Other sequences continue.
            sequence.queue.end(FinishReason.ERROR, e);
        }
    }

    /**
     * Loads the model again after a rank has failed. Stops the engine permanently if ranks are
     * processes, or if no request has finished since the last reload.
     */
    private void reload() throws InterruptedException {
        CollectiveException cause = pool().failure().orElseThrow();
        String why = null; // the engine stops; null if it continues
        synchronized (this) {
            if (settings.group() != null) {
                why = "a rank of " + directory + " has failed; start all ranks again";
            } else if (scheduler.finished() == finishedBeforeReload) {
                why = "a rank of " + directory + " has failed again after the model was reloaded";
            } else {
                finishedBeforeReload = scheduler.finished();
                reloads++;
            }
        }
        if (why != null) {
            LOG.error("{}", why, cause);
            fail(why + ": " + cause.getMessage(), cause);
            return;
        }
        LOG.warn("{}: reloading the model, because a rank has failed", directory, cause);
        pool().close();
        try {
            ranks = load();
            synchronized (this) {
                scheduler.resetCache(ranks.cacheBlocks());
            }
            loadAdapters();
        } catch (IOException | ExecutionException | RuntimeException e) {
            fail(directory + " could not be reloaded after a rank had failed: " + e, e);
        }
    }

    private void fail(String why, Throwable cause) {
        synchronized (this) {
            failure = why;
        }
        endAll(FinishReason.ERROR, cause);
    }

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

    void close() {
        if (Thread.currentThread() == thread) {
            throw new IllegalStateException(
                    "a progress listener must not close its generator; close it on another thread");
        }
        synchronized (this) {
            closed = true;
            notifyAll();
        }
        if (settings.isFollower()) {
            pool().close(); // No engine thread closes it.
            return;
        }
        LongCalls.join(List.of(thread), FOREVER); // The model must be freed.
    }
}

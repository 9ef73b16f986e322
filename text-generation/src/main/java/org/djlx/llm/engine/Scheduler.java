// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Comparator;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.RejectedExecutionException;
import java.util.stream.IntStream;
import org.djlx.llm.FinishReason;
import org.djlx.llm.GeneratorStatistics;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.ops.KvCache;
import org.djlx.llm.ops.TokenBatch;

/**
 * Continuous batching (Yu et al., Orca, 2022): decides which sequences run and which tokens the
 * next step computes. First come, first served: {@code running} followed by {@code waiting} is
 * always in the order of arrival.
 *
 * <ul>
 *   <li>A sequence starts when the KV cache has blocks for its known tokens, and one more for each
 *       running sequence.
 *   <li>It gets further blocks as it grows. If none is free, the youngest running sequence is
 *       preempted: it loses its blocks, waits as the first, and is computed again.
 * </ul>
 *
 * <p>The oldest sequence can preempt all others and the cache holds a sequence of maximum length,
 * so every sequence ends. Not thread-safe.
 */
final class Scheduler {

    private final GeneratorSettings settings;
    private final Deque<Sequence> waiting = new ArrayDeque<>();
    private final List<Sequence> running = new ArrayList<>();
    private final BitSet indices = new BitSet(); // of running sequences
    private final KvCacheManager cache;
    private long preemptions;
    private long finished;
    private long cancelled;
    private long failed;
    private long promptTokens;
    private long generatedTokens;

    Scheduler(GeneratorSettings settings, int cacheBlocks) {
        this.settings = settings;
        cache = new KvCacheManager(cacheBlocks, settings.prefixCaching());
    }

    /**
     * Appends all sequences to the waiting queue, or none: throws a RejectedExecutionException if
     * it has no room.
     */
    void addAll(List<Sequence> sequences) {
        int room = settings.maxQueued() - sequences.size();
        if (waiting.size() > room) {
            // The engine does the same before its next step, which may be much later.
            removeEnded(waiting);
            admit();
        }
        if (waiting.size() > room) {
            throw new RejectedExecutionException(
                    String.format(
                            "the queue is full: %d of at most %d requests are waiting; try again"
                                    + " later",
                            waiting.size(), settings.maxQueued()));
        }
        waiting.addAll(sequences);
    }

    /**
     * Moves waiting sequences to the running ones, first come, first served, while the cache has
     * blocks for them. Returns whether the engine has a step to run.
     */
    boolean admit() {
        while (!waiting.isEmpty() && running.size() < settings.maxRunning()) {
            Sequence next = waiting.peek();
            // The step in flight still computes a token of a sequence that was just preempted.
            if (next.isTokenPending()
                    || (settings.prefixCaching() && next.awaitsPrompt())
                    || !cache.start(next, running.size())) {
                break;
            }
            next.setIndex(indices.nextClearBit(0));
            indices.set(next.index());
            running.add(waiting.remove());
        }
        return !running.isEmpty() || waiting.stream().anyMatch(Sequence::isTokenPending);
    }

    /** Preempts all running sequences and forgets all blocks: the cache was replaced. */
    void resetCache(int blocks) {
        while (!running.isEmpty()) {
            preempt(running.get(running.size() - 1));
        }
        cache.reset(blocks);
    }

    private void preempt(Sequence sequence) {
        running.remove(sequence);
        release(sequence);
        waiting.addFirst(sequence);
    }

    private void release(Sequence sequence) {
        cache.free(sequence);
        indices.clear(sequence.index());
    }

    /**
     * Grows a running sequence. If blocks are missing, preempts the youngest sequences. Returns
     * false if the sequence itself was preempted.
     */
    private boolean grow(Sequence sequence, int tokens) {
        while (!cache.grow(sequence, tokens)) {
            // Sequences before this one are in the step already, so they are not preempted.
            int youngest = running.size() - 1;
            while (running.get(youngest) != sequence && running.get(youngest).isDone()) {
                youngest--;
            }
            Sequence victim = running.get(youngest);
            preempt(victim);
            preemptions++;
            if (victim == sequence) {
                return false;
            }
        }
        return true;
    }

    void removeEnded() {
        removeEnded(running);
        removeEnded(waiting);
    }

    private void removeEnded(Iterable<Sequence> sequences) {
        for (var all = sequences.iterator(); all.hasNext(); ) {
            Sequence sequence = all.next();
            FinishReason reason = sequence.queue.finishReason().orElse(null);
            if (reason == null) {
                continue;
            }
            all.remove();
            if (sequences == running) {
                release(sequence);
            }
            switch (reason) {
                case CANCELLED -> cancelled++;
                case ERROR -> failed++;
                default -> finished++;
            }
        }
    }

    /** Returns whether a token of a sequence has been scheduled. */
    boolean hasStarted() {
        return all().stream().anyMatch(Sequence::isStarted);
    }

    /**
     * Returns whether the next step may have more tokens of prompts than the decode kernels take.
     * The ranks' threads take long to launch their prefill, and would report the tokens of the
     * previous step only afterwards.
     */
    boolean hasPrefill() {
        IntStream sizes =
                running.stream()
                        .filter(sequence -> !sequence.isDone())
                        .mapToInt(sequence -> sequence.nextPromptTokens(settings.prefillTokens()))
                        .filter(size -> size > 1);
        int tokens =
                settings.batchInvariant()
                        ? sizes.max().orElse(0)
                        : Math.min(sizes.sum(), settings.prefillTokens());
        return tokens > TokenBatch.MAX_DECODE_TOKENS;
    }

    private record Scheduled(TokenBatch.Chunk chunk, Sequence sequence) {

        /** Chunks of one token first; tokens with the same adapter are multiplied together. */
        static final Comparator<Scheduled> ORDER =
                Comparator.<Scheduled>comparingInt(each -> each.chunk.tokens().length > 1 ? 1 : 0)
                        .thenComparingInt(each -> each.chunk.adapter());
    }

    /**
     * Schedules the next step: one token of each sequence that decodes, and chunks of prompts
     * within the prefill budget (chunked prefill), which bounds how long a prefill delays the
     * sequences that decode. The generated tokens of a preempted sequence are computed again in
     * chunks of one token, as the first time; a step has several of these chunks.
     *
     * @param sampled receives the sequences that get a token, in the order of the batch
     */
    TokenBatch schedule(List<Sequence> sampled) {
        List<Scheduled> scheduled = new ArrayList<>();
        int budget = settings.prefillTokens();
        int recomputed = Math.min(budget, TokenBatch.MAX_DECODE_TOKENS);
        for (Sequence sequence : running) {
            if (sequence.isDone()) {
                cache.free(sequence);
            }
        }
        for (int i = 0; i < running.size(); i++) { // Preemption removes sequences behind this one.
            Sequence sequence = running.get(i);
            if (sequence.isDone()) {
                continue;
            }
            if (sequence.isTokenPending()) {
                if (sequence.canRunAhead() && grow(sequence, sequence.scheduledTokens() + 1)) {
                    scheduled.add(new Scheduled(sequence.nextPendingChunk(), sequence));
                }
                continue;
            }
            int prefill = sequence.nextPromptTokens(settings.prefillTokens());
            int size = prefill > 0 ? prefill : Math.min(sequence.uncomputedTokens(), recomputed);
            if (size > 1 && size > budget) {
                continue; // A later step takes it.
            }
            if (!grow(sequence, sequence.scheduledTokens() + size)) {
                continue;
            }
            budget -= size > 1 ? size : 0;
            int end = sequence.scheduledTokens() + size;
            while (sequence.scheduledTokens() < end) {
                TokenBatch.Chunk chunk = sequence.nextChunk(Math.max(1, prefill));
                scheduled.add(new Scheduled(chunk, sequence));
            }
            promptTokens += sequence.newPromptTokens();
        }
        // After all sequences are scheduled: only later steps may share the blocks.
        running.forEach(cache::cacheBlocks);
        scheduled.sort(Scheduled.ORDER);
        scheduled.stream()
                .filter(each -> each.chunk.needsLogits())
                .forEach(each -> sampled.add(each.sequence));
        return new TokenBatch(scheduled.stream().map(Scheduled::chunk).toList());
    }

    void countGenerated(int tokens) {
        generatedTokens += tokens;
    }

    /** Returns how many requests have finished, neither cancelled nor failed. */
    long finished() {
        return finished;
    }

    /** Returns the running sequences, then the waiting ones. */
    List<Sequence> all() {
        List<Sequence> all = new ArrayList<>(running);
        all.addAll(waiting);
        return all;
    }

    GeneratorStatistics statistics(ModelConfig config, int reloads) {
        removeEnded(waiting); // Cancelled requests no longer wait.
        return new GeneratorStatistics(
                running.size(),
                waiting.size(),
                cache.pool().inUse(),
                cache.pool().blocks(),
                KvCache.byteSize(
                        config,
                        settings.ranks(),
                        (long) cache.pool().blocks() * KvCache.BLOCK_TOKENS),
                cache.queriedTokens(),
                cache.hitTokens(),
                preemptions,
                finished,
                cancelled,
                failed,
                promptTokens,
                generatedTokens,
                reloads);
    }
}

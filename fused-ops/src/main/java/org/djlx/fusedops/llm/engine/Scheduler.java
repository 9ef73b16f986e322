/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.engine;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.RejectedExecutionException;
import org.djlx.fusedops.llm.FinishReason;
import org.djlx.fusedops.llm.GeneratorStatistics;
import org.djlx.fusedops.llm.model.KvCache;
import org.djlx.fusedops.llm.model.LlamaConfig;
import org.djlx.fusedops.llm.model.TokenBatch;

/**
 * Which requests run and which wait, and what the model reads of them at a time (continuous
 * batching: Orca, Yu and others, 2022). A request that runs has room in the cache for its prompt
 * and all that it may generate. For one thread at a time.
 */
final class Scheduler {

    private final GeneratorSettings settings;
    private final Deque<Sequence> queued = new ArrayDeque<>();
    private final List<Sequence> running = new ArrayList<>();
    private final CacheBlocks cache;
    private long finished;
    private long cancelled;
    private long failed;
    private long promptTokens;
    private long generatedTokens;

    Scheduler(GeneratorSettings settings) {
        this.settings = settings;
        cache = new CacheBlocks(settings.cacheBlocks(), KvCache.BLOCK_TOKENS);
    }

    /**
     * Has a request wait for its turn.
     *
     * @throws RejectedExecutionException if too many wait
     */
    void add(Sequence sequence) {
        addAll(List.of(sequence));
    }

    /**
     * Has requests wait for their turn.
     *
     * @throws RejectedExecutionException if too many wait; none of these does then
     */
    void addAll(List<Sequence> sequences) {
        int room = settings.maxQueued() - sequences.size();
        if (queued.size() > room) {
            // What the next step would do, which may be a while away.
            remove(queued);
            admit();
        }
        if (queued.size() > room) {
            throw new RejectedExecutionException(
                    String.format(
                            "%d requests wait already; try again when some are done",
                            queued.size()));
        }
        queued.addAll(sequences);
    }

    /** Lets those in for which there is room, in the order in which they came; are there any? */
    boolean admit() {
        while (!queued.isEmpty() && running.size() < settings.maxRunning()) {
            int[] rows = cache.take(queued.peek().capacity());
            if (rows == null) {
                break;
            }
            Sequence next = queued.remove();
            next.setRows(rows);
            running.add(next);
        }
        return !running.isEmpty();
    }

    /** Forgets those that have ended, and takes back their part of the cache. */
    void removeEnded() {
        remove(running);
        remove(queued);
    }

    private void remove(Iterable<Sequence> sequences) {
        for (var all = sequences.iterator(); all.hasNext(); ) {
            Sequence sequence = all.next();
            FinishReason reason = sequence.queue.finishReason().orElse(null);
            if (reason == null) {
                continue;
            }
            all.remove();
            if (sequence.rows() != null) {
                cache.giveBack(sequence.rows());
            }
            switch (reason) {
                case CANCELLED -> cancelled++;
                case ERROR -> failed++;
                default -> finished++;
            }
        }
    }

    /** Tells whether the model has read something of the requests, which is in its cache. */
    boolean hasBegun() {
        return running.stream().anyMatch(Sequence::isBegun);
    }

    /**
     * Tells whether a prompt waits that is so long that ranks take a while to begin it, in which
     * they tell nobody of tokens that are there already.
     */
    boolean hasLongPrompt() {
        return running.stream()
                .mapToInt(sequence -> Math.min(sequence.unread(), settings.prefillTokens()))
                .anyMatch(tokens -> tokens > TokenBatch.DECODED_TOKENS);
    }

    /**
     * Makes the next batch: a token of each sequence that generates, which may be one that the
     * model still computes, and parts of prompts.
     *
     * @param wanting gets those for which scores come, in their order
     * @param draws whether ranks draw tokens by themselves
     */
    TokenBatch next(List<Sequence> wanting, boolean draws) {
        List<TokenBatch.Chunk> singles = new ArrayList<>();
        List<TokenBatch.Chunk> several = new ArrayList<>();
        List<Sequence> late = new ArrayList<>(); // those of several that want scores
        int left = settings.prefillTokens();
        for (Sequence sequence : running) {
            if (sequence.isEnded() || sequence.isComplete()) {
                continue;
            }
            if (sequence.isAwaiting()) {
                if (sequence.canReadAhead()) {
                    singles.add(sequence.readAhead());
                    wanting.add(sequence);
                }
                continue;
            }
            boolean generates = sequence.unread() == 1;
            // Where a prompt is cut depends on nothing else, as does what becomes of it.
            int next = generates ? 1 : Math.min(sequence.unread(), settings.prefillTokens());
            if (!generates && next > left) {
                continue; // The next batches read it.
            }
            TokenBatch.Chunk chunk = sequence.read(next, draws);
            int count = chunk.tokens().length;
            left -= generates ? 0 : count;
            (count == 1 ? singles : several).add(chunk);
            if (chunk.wanted()) {
                (count == 1 ? wanting : late).add(sequence);
            }
            int ofPrompt = Math.min(chunk.length(), sequence.promptTokens()) - chunk.start();
            promptTokens += Math.max(0, ofPrompt);
        }
        wanting.addAll(late);
        singles.addAll(several);
        return new TokenBatch(singles);
    }

    void countGenerated(int tokens) {
        generatedTokens += tokens;
    }

    /** Returns how many requests have been answered whole. */
    long finished() {
        return finished;
    }

    /** Returns those that run, and behind them those that wait. */
    List<Sequence> all() {
        List<Sequence> all = new ArrayList<>(running);
        all.addAll(queued);
        return all;
    }

    GeneratorStatistics statistics(LlamaConfig config, int rebuilds) {
        remove(queued); // The cancelled ones do not wait.
        return new GeneratorStatistics(
                running.size(),
                queued.size(),
                cache.inUse(),
                cache.blocks(),
                KvCache.BLOCK_TOKENS,
                KvCache.byteSize(
                        config, settings.ranks(), (long) cache.blocks() * KvCache.BLOCK_TOKENS),
                finished,
                cancelled,
                failed,
                promptTokens,
                generatedTokens,
                rebuilds);
    }
}

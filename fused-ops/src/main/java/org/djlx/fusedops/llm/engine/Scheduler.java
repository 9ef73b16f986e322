// SPDX-License-Identifier: Apache-2.0
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
 * Continuous batching (Yu et al., Orca, 2022): decides which sequences run and which tokens the
 * next step computes. A sequence starts when the KV cache has blocks for its prompt and its maximum
 * of new tokens, so the sequence is never preempted. Not thread-safe.
 */
final class Scheduler {

    private final GeneratorSettings settings;
    private final Deque<Sequence> waiting = new ArrayDeque<>();
    private final List<Sequence> running = new ArrayList<>();
    private final BlockPool blocks;
    private long finished;
    private long cancelled;
    private long failed;
    private long promptTokens;
    private long generatedTokens;

    Scheduler(GeneratorSettings settings) {
        this.settings = settings;
        blocks = new BlockPool(settings.cacheBlocks(), KvCache.BLOCK_TOKENS);
    }

    /**
     * Appends sequences to the waiting queue: all of them or none.
     *
     * @throws RejectedExecutionException if the queue has no room for all
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
     * blocks for them. Returns whether any sequence runs.
     */
    boolean admit() {
        while (!waiting.isEmpty() && running.size() < settings.maxRunning()) {
            int[] slots = blocks.allocate(waiting.peek().maxTokens());
            if (slots == null) {
                break;
            }
            Sequence next = waiting.remove();
            next.setSlots(slots);
            running.add(next);
        }
        return !running.isEmpty();
    }

    /** Removes ended sequences and frees their blocks. */
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
            if (sequence.slots() != null) {
                blocks.free(sequence.slots());
            }
            switch (reason) {
                case CANCELLED -> cancelled++;
                case ERROR -> failed++;
                default -> finished++;
            }
        }
    }

    /** Returns whether a running sequence has tokens in the KV cache. */
    boolean hasStarted() {
        return running.stream().anyMatch(Sequence::isStarted);
    }

    /**
     * Returns whether the next step has a prompt too long for the decode kernels. The ranks'
     * threads take long to launch its prefill, and would report the tokens of the previous step
     * only afterwards.
     */
    boolean hasLongPrefill() {
        return running.stream()
                .mapToInt(
                        sequence -> Math.min(sequence.uncomputedTokens(), settings.prefillTokens()))
                .anyMatch(tokens -> tokens > TokenBatch.MAX_DECODE_TOKENS);
    }

    /**
     * Schedules the next step: one token of each sequence that decodes, and chunks of prompts
     * within the prefill budget (chunked prefill).
     *
     * @param sampled receives the sequences that get a token, in the order of the batch
     */
    TokenBatch schedule(List<Sequence> sampled, boolean onDevice) {
        List<TokenBatch.Chunk> decodes = new ArrayList<>(); // chunks of one token
        List<TokenBatch.Chunk> prefills = new ArrayList<>(); // longer chunks
        List<Sequence> sampledByPrefills = new ArrayList<>();
        int budget = settings.prefillTokens();
        for (Sequence sequence : running) {
            if (sequence.isEnded() || sequence.isComplete()) {
                continue;
            }
            if (sequence.isTokenPending()) {
                if (sequence.canRunAhead()) {
                    decodes.add(sequence.nextPendingChunk());
                    sampled.add(sequence);
                }
                continue;
            }
            boolean isDecode = sequence.uncomputedTokens() == 1;
            // The same prompt is always cut at the same positions, so its logits do not depend on
            // other requests.
            int size =
                    isDecode ? 1 : Math.min(sequence.uncomputedTokens(), settings.prefillTokens());
            if (!isDecode && size > budget) {
                continue; // A later step takes it.
            }
            TokenBatch.Chunk chunk = sequence.nextChunk(size, onDevice);
            int count = chunk.tokens().length;
            budget -= isDecode ? 0 : count;
            (count == 1 ? decodes : prefills).add(chunk);
            if (chunk.needsLogits()) {
                (count == 1 ? sampled : sampledByPrefills).add(sequence);
            }
            int ofPrompt = Math.min(chunk.length(), sequence.promptTokens()) - chunk.start();
            promptTokens += Math.max(0, ofPrompt);
        }
        sampled.addAll(sampledByPrefills);
        decodes.addAll(prefills);
        return new TokenBatch(decodes);
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

    GeneratorStatistics statistics(LlamaConfig config, int rebuilds) {
        removeEnded(waiting); // Cancelled requests no longer wait.
        return new GeneratorStatistics(
                running.size(),
                waiting.size(),
                blocks.inUse(),
                blocks.blocks(),
                KvCache.BLOCK_TOKENS,
                KvCache.byteSize(config, settings.ranks(), settings.cacheSlots()),
                finished,
                cancelled,
                failed,
                promptTokens,
                generatedTokens,
                rebuilds);
    }
}

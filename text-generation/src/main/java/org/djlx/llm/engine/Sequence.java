// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import java.nio.IntBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.function.BiConsumer;
import org.djlx.llm.FinishReason;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.ops.KvCache;
import org.djlx.llm.ops.TokenBatch;
import org.djlx.llm.sampling.Sampler;
import org.djlx.llm.sampling.SamplingParameters;
import org.djlx.llm.text.TextStream;
import org.djlx.llm.text.TextTokenizer;

/** A request being served: its tokens, how many of them are computed, and its cache blocks. */
final class Sequence {

    final PieceQueue queue;
    final Sampler sampler;
    private final TextStream text;
    private final GenerationRequest request;
    private final List<GeneratedPiece> promptPieces = new ArrayList<>(); // if requested
    private int scheduledPromptPieces; // including those that are computed
    private Sequence samePrompt; // starts first, to share its blocks; null if there is none
    private final int adapter; // its id; 0 for none
    private final Set<Integer> stopTokens;
    private final int promptTokens;
    private final int[] tokens; // prompt and generated tokens, with room for all new tokens
    private int count; // tokens known to the host
    private int computed; // tokens scheduled so far; up to count + 1 with async scheduling
    private boolean pending; // the next token is being computed
    private boolean started; // a token has been scheduled
    private boolean complete; // no token follows
    private int countedPromptTokens;
    private int index = -1; // among the running sequences
    private final List<BlockHash> hashes = new ArrayList<>(); // of full blocks of known tokens
    private final List<Integer> blocks = new ArrayList<>(); // of the KV cache
    private int[] slots = {}; // of the blocks, then room; no slot changes, as steps hold it
    private int cachedBlocks; // the first blocks, which the manager has made findable

    Sequence(
            GenerationRequest request,
            int[] prompt,
            TextTokenizer tokenizer,
            Set<Integer> stopTokens,
            int adapter,
            PieceQueue queue) {
        this.adapter = adapter;
        this.queue = queue;
        this.stopTokens = stopTokens;
        this.request = request;
        sampler = new Sampler(request, prompt, stopTokens);
        text = new TextStream(tokenizer, request.stopStrings(), prompt);
        promptTokens = prompt.length;
        tokens = Arrays.copyOf(prompt, prompt.length + request.maxTokens());
        count = prompt.length;
        if (request.hasPromptLogProbabilities()) {
            addPromptPiece(new Sampler.SampledToken(prompt[0], Float.NaN));
            scheduledPromptPieces = 1;
        }
    }

    /**
     * Makes this sequence wait until an earlier one, null for none, has computed the same prompt.
     */
    void awaitPrompt(Sequence other) {
        samePrompt = other;
    }

    /** Returns what sequences have in common that can share all blocks of their prompts. */
    Object prompt() {
        return List.of(adapter, IntBuffer.wrap(tokens, 0, promptTokens));
    }

    int adapter() {
        return adapter;
    }

    boolean awaitsPrompt() {
        return samePrompt != null
                && !needsPromptLogits() // They are computed for each sequence.
                && !samePrompt.isEnded()
                && samePrompt.countedPromptTokens < samePrompt.promptTokens;
    }

    boolean needsPromptLogits() {
        return request.hasPromptLogProbabilities();
    }

    private void addPromptPiece(Sampler.SampledToken token) {
        promptPieces.add(
                new GeneratedPiece(token.token(), "", token.logProbability(), token.top()));
        if (promptPieces.size() == promptTokens) {
            queue.setPromptPieces(promptPieces);
        }
    }

    int promptTokens() {
        return promptTokens;
    }

    boolean isEnded() {
        return queue.finishReason().isPresent();
    }

    int knownTokens() {
        return count;
    }

    BlockHash blockHash(int block) {
        while (hashes.size() <= block) {
            int size = hashes.size();
            BlockHash previous = size == 0 ? BlockHash.ofAdapter(adapter) : hashes.get(size - 1);
            hashes.add(BlockHash.of(previous, tokens, size * KvCache.BLOCK_TOKENS));
        }
        return hashes.get(block);
    }

    /**
     * Starts the sequence, or starts it again after it was preempted. {@code all} are blocks for
     * all known tokens, of which the first {@code hits} hold computed tokens.
     */
    void start(List<Integer> all, int hits) {
        addBlocks(all);
        cachedBlocks = hits;
        computed = hits * KvCache.BLOCK_TOKENS;
        if (!started) {
            queue.setCachedTokens(computed);
        }
    }

    void addBlocks(List<Integer> more) {
        int slot = blocks.size() * KvCache.BLOCK_TOKENS;
        blocks.addAll(more);
        int needed = blocks.size() * KvCache.BLOCK_TOKENS;
        if (needed > slots.length) {
            slots = Arrays.copyOf(slots, Math.max(needed, 2 * slots.length));
        }
        for (int block : more) {
            for (int i = 0; i < KvCache.BLOCK_TOKENS; i++) {
                slots[slot++] = block * KvCache.BLOCK_TOKENS + i;
            }
        }
    }

    List<Integer> blocks() {
        return blocks;
    }

    /** Passes on the full blocks that are computed or scheduled, each once. */
    void uncachedBlocks(BiConsumer<Integer, BlockHash> consumer) {
        int full = Math.min(computed, count) / KvCache.BLOCK_TOKENS;
        while (cachedBlocks < full) {
            consumer.accept(blocks.get(cachedBlocks), blockHash(cachedBlocks));
            cachedBlocks++;
        }
    }

    /** Forgets the blocks. Tokens that are not found in the prefix cache are computed again. */
    void removeBlocks() {
        blocks.clear();
        slots = new int[0];
        cachedBlocks = 0;
        computed = 0;
    }

    int index() {
        return index;
    }

    void setIndex(int index) {
        this.index = index;
    }

    boolean isStarted() {
        return started;
    }

    int scheduledTokens() {
        return computed;
    }

    /** Returns how many prompt tokens were scheduled or found since the last call. */
    int newPromptTokens() {
        int before = countedPromptTokens;
        countedPromptTokens = Math.max(before, Math.min(computed, promptTokens));
        return countedPromptTokens - before;
    }

    /** Returns how many tokens known to the host are not scheduled yet. */
    int uncomputedTokens() {
        return count - computed;
    }

    /**
     * Returns the number of tokens of the next chunk of the prompt; 0 after the prompt, and if each
     * token of the prompt is a chunk because its logits are needed. A prompt is always cut at the
     * same positions, multiples of {@code chunk}. So if the engine is batch-invariant, its keys and
     * values do not depend on other requests or on preemption.
     */
    int nextPromptTokens(int chunk) {
        if (needsPromptLogits()) {
            return 0;
        }
        return Math.max(0, Math.min(promptTokens, (computed / chunk + 1) * chunk) - computed);
    }

    boolean isTokenPending() {
        return pending;
    }

    /**
     * Returns whether the token after the pending one can be scheduled: the maximum length leaves
     * room for it, and no grammar has to know the pending one first.
     */
    boolean canRunAhead() {
        return count + 1 < tokens.length && !sampler.hasGrammar();
    }

    /** Schedules the pending token, whose value only the device knows (async scheduling). */
    TokenBatch.Chunk nextPendingChunk() {
        return new TokenBatch.Chunk(
                index,
                new int[] {TokenBatch.LAST_SAMPLED},
                computed++,
                slots,
                true,
                sampler.next(),
                adapter);
    }

    /** Schedules at most this many of the next tokens. */
    TokenBatch.Chunk nextChunk(int maxTokens) {
        int start = computed;
        started = true;
        computed = Math.min(count, start + maxTokens);
        pending = computed == count;
        boolean ofPrompt = needsPromptLogits() && computed == scheduledPromptPieces;
        ofPrompt &= computed < promptTokens;
        SamplingParameters sampling = SamplingParameters.GREEDY;
        if (ofPrompt) {
            scheduledPromptPieces++;
            int given = tokens[computed];
            sampling = SamplingParameters.ofGiven(given, request.topLogProbabilities());
        } else if (pending) {
            sampling = sampler.next();
        }
        return new TokenBatch.Chunk(
                index,
                Arrays.copyOfRange(tokens, start, computed),
                start,
                slots,
                pending || ofPrompt,
                sampling,
                adapter);
    }

    /** Appends the sampled token. Returns false if it belongs to the prompt. */
    boolean append(Sampler.SampledToken sampled) {
        if (needsPromptLogits() && promptPieces.size() < promptTokens) {
            addPromptPiece(sampled);
            return false;
        }
        tokens[count++] = sampled.token();
        sampler.append(sampled.token());
        pending = computed == count; // With async scheduling the token is scheduled already.
        complete =
                count == tokens.length
                        || sampler.isComplete()
                        || stopTokens.contains(sampled.token());
        return true;
    }

    /**
     * Returns whether generation ends here: the maximum length, a stop token or the end of the
     * grammar is reached.
     */
    boolean isComplete() {
        return complete;
    }

    /** Returns whether the sequence needs no more steps. */
    boolean isDone() {
        return isEnded() || isComplete();
    }

    /** Publishes the token that was {@linkplain #append appended} last. May end the generation. */
    void publish(Sampler.SampledToken sampled) {
        int token = sampled.token();
        if (complete && stopTokens.contains(token)) {
            publish(sampled, text.end(), FinishReason.STOP);
            return;
        }
        String certain = text.add(token, count - promptTokens > request.minTokens());
        if (!text.isStopped() && complete) {
            certain += text.end();
            FinishReason reason = sampler.isComplete() ? FinishReason.STOP : FinishReason.LENGTH;
            reason = text.isStopped() ? FinishReason.STOP_STRING : reason;
            publish(sampled, certain, reason);
            return;
        }
        publish(sampled, certain, text.isStopped() ? FinishReason.STOP_STRING : null);
    }

    private void publish(Sampler.SampledToken sampled, String certain, FinishReason reason) {
        queue.add(
                new GeneratedPiece(
                        sampled.token(), certain, sampled.logProbability(), sampled.top()),
                reason);
    }
}

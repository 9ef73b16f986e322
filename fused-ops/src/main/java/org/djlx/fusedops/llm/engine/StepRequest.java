// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.engine;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.djlx.collectives.pool.RequestCodec;
import org.djlx.fusedops.llm.model.TokenBatch;
import org.djlx.fusedops.llm.sampling.Sampler;
import org.djlx.fusedops.llm.sampling.SamplingParameters;

/**
 * One step of all ranks: launches the forward pass of a batch, then waits for the logits of the
 * previous step and samples its tokens. So the next step is already queued on the GPU when a step
 * ends.
 */
class StepRequest {

    /** Launches nothing and returns the tokens of the previous step. */
    static final StepRequest FLUSH = new StepRequest(new TokenBatch(List.of()), List.of(), false);

    /** Sends the batch to other processes. Samplers are not sent: only rank 0 uses them. */
    static final RequestCodec<StepRequest> CODEC =
            new RequestCodec<>() {
                @Override
                public byte[] encode(StepRequest step) {
                    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
                    try {
                        DataOutputStream out = new DataOutputStream(bytes);
                        out.writeBoolean(step.fullLogits);
                        write(step.batch, out);
                    } catch (IOException e) {
                        throw new UncheckedIOException(e); // Writing to memory does not fail.
                    }
                    return bytes.toByteArray();
                }

                @Override
                public StepRequest decode(byte[] bytes) {
                    DataInputStream in = new DataInputStream(new ByteArrayInputStream(bytes));
                    try {
                        boolean fullLogits = in.readBoolean();
                        return new StepRequest(read(in), List.of(), fullLogits);
                    } catch (IOException e) {
                        throw new UncheckedIOException("rank 0 has sent a truncated step", e);
                    }
                }
            };

    private final TokenBatch batch;
    private final List<Sampler> samplers;
    private final boolean fullLogits;

    /**
     * Creates a step.
     *
     * @param batch the tokens to compute
     * @param samplers the samplers of the sequences that need logits, in the order of the batch
     */
    StepRequest(TokenBatch batch, List<Sampler> samplers) {
        this(batch, samplers, needsFullLogits(batch, samplers));
    }

    private StepRequest(TokenBatch batch, List<Sampler> samplers, boolean fullLogits) {
        this.batch = batch;
        this.samplers = samplers;
        this.fullLogits = fullLogits;
    }

    private static boolean needsFullLogits(TokenBatch batch, List<Sampler> samplers) {
        Iterator<Sampler> next = samplers.iterator();
        return batch.chunks().stream()
                .filter(TokenBatch.Chunk::needsLogits)
                .anyMatch(chunk -> !next.next().isGreedy() && chunk.sampling().isGreedy());
    }

    /** Runs the step on a rank. Returns the sampled tokens on rank 0, none on other ranks. */
    List<Sampler.SampledToken> run(ModelRank rank) throws Exception {
        return rank.step(this);
    }

    TokenBatch batch() {
        return batch;
    }

    List<Sampler> samplers() {
        return samplers;
    }

    /** Returns whether a sequence is sampled on the host, from its full logits. */
    boolean needsFullLogits() {
        return fullLogits;
    }

    /**
     * Writes the number of chunks, and for each chunk its sequence, its start, whether it needs
     * logits, its sampling parameters, the number of its tokens, the tokens, and the slots up to
     * its end. There may be thousands of slots, so they are written as runs of adjacent slots: the
     * first slot and the length.
     */
    private static void write(TokenBatch batch, DataOutputStream out) throws IOException {
        out.writeInt(batch.chunks().size());
        for (TokenBatch.Chunk chunk : batch.chunks()) {
            out.writeInt(chunk.sequence());
            out.writeInt(chunk.start());
            out.writeBoolean(chunk.needsLogits());
            out.writeDouble(chunk.sampling().temperature());
            out.writeInt(chunk.sampling().topK());
            out.writeDouble(chunk.sampling().topP());
            out.writeLong(chunk.sampling().random());
            out.writeInt(chunk.tokens().length);
            for (int token : chunk.tokens()) {
                out.writeInt(token);
            }
            int[] slots = chunk.slots();
            int begin = 0;
            while (begin < chunk.length()) {
                int end = begin + 1;
                while (end < chunk.length() && slots[end] == slots[end - 1] + 1) {
                    end++;
                }
                out.writeInt(slots[begin]);
                out.writeInt(end - begin);
                begin = end;
            }
        }
    }

    private static TokenBatch read(DataInputStream in) throws IOException {
        List<TokenBatch.Chunk> chunks = new ArrayList<>();
        for (int left = in.readInt(); left > 0; left--) {
            int sequence = in.readInt();
            int start = in.readInt();
            boolean needsLogits = in.readBoolean();
            SamplingParameters sampling =
                    new SamplingParameters(
                            in.readDouble(), in.readInt(), in.readDouble(), in.readLong());
            int[] tokens = new int[in.readInt()];
            for (int i = 0; i < tokens.length; i++) {
                tokens[i] = in.readInt();
            }
            int[] slots = new int[start + tokens.length];
            int begin = 0;
            while (begin < slots.length) {
                int slot = in.readInt();
                int end = begin + in.readInt();
                while (begin < end) {
                    slots[begin++] = slot++;
                }
            }
            chunks.add(new TokenBatch.Chunk(sequence, tokens, start, slots, needsLogits, sampling));
        }
        return new TokenBatch(chunks);
    }
}

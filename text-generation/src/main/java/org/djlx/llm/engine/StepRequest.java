// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.pool.RequestCodec;
import org.djlx.llm.ops.TokenBatch;
import org.djlx.llm.sampling.LogitEdits;
import org.djlx.llm.sampling.Sampler;
import org.djlx.llm.sampling.SamplingParameters;

/**
 * One step of all ranks: launches the forward pass of a batch, then waits for the logits of the
 * previous step and samples its tokens. So the next step is already queued on the GPU when a step
 * ends.
 */
class StepRequest {

    /** Launches nothing and returns the tokens of the previous step. */
    static final StepRequest FLUSH = new StepRequest(new TokenBatch(List.of()));

    /** In place of the number of chunks: the encoded request is an {@link AdapterRequest}. */
    static final int ADAPTERS = -1;

    /** Sends the request to other processes. */
    static final RequestCodec<StepRequest> CODEC =
            new RequestCodec<>() {
                @Override
                public byte[] encode(StepRequest step) {
                    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
                    try {
                        step.write(new DataOutputStream(bytes));
                    } catch (IOException e) {
                        throw new UncheckedIOException(e); // Writing to memory does not fail.
                    }
                    return bytes.toByteArray();
                }

                @Override
                public StepRequest decode(byte[] bytes) {
                    DataInputStream in = new DataInputStream(new ByteArrayInputStream(bytes));
                    try {
                        int chunks = in.readInt();
                        return chunks == ADAPTERS
                                ? AdapterRequest.read(in)
                                : new StepRequest(read(chunks, in));
                    } catch (IOException e) {
                        throw new UncheckedIOException("rank 0 has sent a truncated step", e);
                    }
                }
            };

    private final TokenBatch batch;

    StepRequest(TokenBatch batch) {
        this.batch = batch;
    }

    /**
     * Runs the step on a rank. Returns the tokens of the previous step on rank 0, none on other
     * ranks. Tests run something else instead.
     */
    List<Sampler.SampledToken> run(ModelRank rank) throws Exception {
        return rank.step(this);
    }

    TokenBatch batch() {
        return batch;
    }

    /** Returns the sampling parameters of the chunks that need logits, in order. */
    List<SamplingParameters> sampling() {
        return batch.chunks().stream()
                .filter(TokenBatch.Chunk::needsLogits)
                .map(TokenBatch.Chunk::sampling)
                .toList();
    }

    /**
     * Writes the number of chunks, and for each chunk its sequence, its start, whether it needs
     * logits, its adapter, its sampling parameters, the number of its tokens, the tokens, and the
     * slots up to its end. There may be thousands of slots, so they are written as runs of adjacent
     * slots: the first slot and the length.
     */
    void write(DataOutputStream out) throws IOException {
        out.writeInt(batch.chunks().size());
        for (TokenBatch.Chunk chunk : batch.chunks()) {
            out.writeInt(chunk.sequence());
            out.writeInt(chunk.start());
            out.writeBoolean(chunk.needsLogits());
            out.writeInt(chunk.adapter());
            write(chunk.sampling(), out);
            write(chunk.tokens(), out);
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

    private static TokenBatch read(int count, DataInputStream in) throws IOException {
        List<TokenBatch.Chunk> chunks = new ArrayList<>();
        for (int left = count; left > 0; left--) {
            int sequence = in.readInt();
            int start = in.readInt();
            boolean needsLogits = in.readBoolean();
            int adapter = in.readInt();
            SamplingParameters sampling = readSampling(in);
            int[] tokens = readInts(in);
            int[] slots = new int[start + tokens.length];
            int begin = 0;
            while (begin < slots.length) {
                int slot = in.readInt();
                int end = begin + in.readInt();
                while (begin < end) {
                    slots[begin++] = slot++;
                }
            }
            chunks.add(
                    new TokenBatch.Chunk(
                            sequence, tokens, start, slots, needsLogits, sampling, adapter));
        }
        return new TokenBatch(chunks);
    }

    private static void write(SamplingParameters sampling, DataOutputStream out)
            throws IOException {
        out.writeDouble(sampling.temperature());
        out.writeInt(sampling.topK());
        out.writeDouble(sampling.topP());
        out.writeDouble(sampling.minP());
        out.writeLong(sampling.random());
        out.writeInt(sampling.given());
        out.writeInt(sampling.topLogProbabilities());
        LogitEdits edits = sampling.edits();
        out.writeBoolean(edits != null);
        if (edits != null) {
            out.writeFloat(edits.repetitionPenalty());
            out.writeFloat(edits.frequencyPenalty());
            out.writeFloat(edits.presencePenalty());
            write(edits.entries(), out);
            out.writeBoolean(edits.allowed() != null);
            if (edits.allowed() != null) {
                write(edits.allowed().get(), out);
            }
        }
    }

    private static SamplingParameters readSampling(DataInputStream in) throws IOException {
        return new SamplingParameters(
                in.readDouble(),
                in.readInt(),
                in.readDouble(),
                in.readDouble(),
                in.readLong(),
                in.readInt(),
                in.readInt(),
                in.readBoolean() ? readEdits(in) : null);
    }

    private static LogitEdits readEdits(DataInputStream in) throws IOException {
        float repetitionPenalty = in.readFloat();
        float frequencyPenalty = in.readFloat();
        float presencePenalty = in.readFloat();
        int[] entries = readInts(in);
        int[] allowed = in.readBoolean() ? readInts(in) : null;
        return new LogitEdits(
                repetitionPenalty,
                frequencyPenalty,
                presencePenalty,
                entries,
                allowed == null ? null : () -> allowed);
    }

    private static void write(int[] values, DataOutputStream out) throws IOException {
        out.writeInt(values.length);
        for (int value : values) {
            out.writeInt(value);
        }
    }

    private static int[] readInts(DataInputStream in) throws IOException {
        int[] values = new int[in.readInt()];
        for (int i = 0; i < values.length; i++) {
            values[i] = in.readInt();
        }
        return values;
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
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
 * What the ranks of a {@link LlamaGenerator} do at a time: they begin to read tokens of its
 * sequences, and then wait for the scores of the step before and choose tokens by them. So a GPU
 * has its next step when one ends.
 */
class StepRequest {

    /** Begins nothing, so that the step before ends. */
    static final StepRequest END = new StepRequest(new TokenBatch(List.of()), List.of(), false);

    /** Sends the batch. What chooses tokens stays on rank 0, which alone does that. */
    static final RequestCodec<StepRequest> CODEC =
            new RequestCodec<>() {
                @Override
                public byte[] encode(StepRequest step) {
                    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
                    try {
                        DataOutputStream out = new DataOutputStream(bytes);
                        out.writeBoolean(step.all);
                        write(step.batch, out);
                    } catch (IOException e) {
                        throw new UncheckedIOException(e); // Into memory, which always works.
                    }
                    return bytes.toByteArray();
                }

                @Override
                public StepRequest decode(byte[] bytes) {
                    DataInputStream in = new DataInputStream(new ByteArrayInputStream(bytes));
                    try {
                        boolean all = in.readBoolean();
                        return new StepRequest(read(in), List.of(), all);
                    } catch (IOException e) {
                        throw new UncheckedIOException("what rank 0 has sent is no step", e);
                    }
                }
            };

    private final TokenBatch batch;
    private final List<Sampler> choosers;
    private final boolean all;

    /**
     * Creates a step.
     *
     * @param batch what the model reads
     * @param choosers choose the tokens of the sequences whose scores are wanted, in their order
     */
    StepRequest(TokenBatch batch, List<Sampler> choosers) {
        this(batch, choosers, needsAll(batch, choosers));
    }

    private StepRequest(TokenBatch batch, List<Sampler> choosers, boolean all) {
        this.batch = batch;
        this.choosers = choosers;
        this.all = all;
    }

    private static boolean needsAll(TokenBatch batch, List<Sampler> choosers) {
        Iterator<Sampler> next = choosers.iterator();
        return batch.chunks().stream()
                .filter(TokenBatch.Chunk::wanted)
                .anyMatch(chunk -> !next.next().isGreedy() && chunk.draw().isBest());
    }

    /** Has a rank do its part; returns what rank 0 has chosen, and nothing on others. */
    List<Sampler.Choice> run(ModelRank rank) throws Exception {
        return rank.next(this);
    }

    TokenBatch batch() {
        return batch;
    }

    List<Sampler> choosers() {
        return choosers;
    }

    /** Tells whether choosing takes all scores of a sequence, as the ranks do not do it. */
    boolean needsAll() {
        return all;
    }

    /**
     * A batch: for each chunk its start, whether its scores are wanted, how a token is drawn, its
     * tokens, and its rows, of which there may be thousands, as runs of such that follow each
     * other. Tokens and rows have their number before them, runs their first row.
     */
    private static void write(TokenBatch batch, DataOutputStream out) throws IOException {
        out.writeInt(batch.chunks().size());
        for (TokenBatch.Chunk chunk : batch.chunks()) {
            out.writeInt(chunk.start());
            out.writeBoolean(chunk.wanted());
            out.writeDouble(chunk.draw().temperature());
            out.writeInt(chunk.draw().topK());
            out.writeDouble(chunk.draw().topP());
            out.writeLong(chunk.draw().random());
            out.writeInt(chunk.tokens().length);
            for (int token : chunk.tokens()) {
                out.writeInt(token);
            }
            int[] rows = chunk.rows();
            out.writeInt(rows.length);
            int begin = 0;
            while (begin < rows.length) {
                int end = begin + 1;
                while (end < rows.length && rows[end] == rows[end - 1] + 1) {
                    end++;
                }
                out.writeInt(rows[begin]);
                out.writeInt(end - begin);
                begin = end;
            }
        }
    }

    private static TokenBatch read(DataInputStream in) throws IOException {
        List<TokenBatch.Chunk> chunks = new ArrayList<>();
        for (int left = in.readInt(); left > 0; left--) {
            int start = in.readInt();
            boolean wanted = in.readBoolean();
            SamplingParameters draw =
                    new SamplingParameters(
                            in.readDouble(), in.readInt(), in.readDouble(), in.readLong());
            int[] tokens = new int[in.readInt()];
            for (int i = 0; i < tokens.length; i++) {
                tokens[i] = in.readInt();
            }
            int[] rows = new int[in.readInt()];
            int begin = 0;
            while (begin < rows.length) {
                int row = in.readInt();
                int end = begin + in.readInt();
                while (begin < end) {
                    rows[begin++] = row++;
                }
            }
            chunks.add(new TokenBatch.Chunk(tokens, start, rows, wanted, draw));
        }
        return new TokenBatch(chunks);
    }
}

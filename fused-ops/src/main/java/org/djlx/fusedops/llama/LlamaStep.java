/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llama;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.RequestCodec;

/** What the ranks of a {@link LlamaGenerator} do at a time: they read tokens of its sequences. */
class LlamaStep {

    /** Sends the batch. What chooses tokens stays on rank 0, which alone does that. */
    static final RequestCodec<LlamaStep> CODEC =
            new RequestCodec<>() {
                @Override
                public byte[] encode(LlamaStep step) {
                    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
                    try {
                        write(step.batch, new DataOutputStream(bytes));
                    } catch (IOException e) {
                        throw new UncheckedIOException(e); // Into memory, which always works.
                    }
                    return bytes.toByteArray();
                }

                @Override
                public LlamaStep decode(byte[] bytes) {
                    DataInputStream in = new DataInputStream(new ByteArrayInputStream(bytes));
                    try {
                        return new LlamaStep(read(in), List.of());
                    } catch (IOException e) {
                        throw new UncheckedIOException("what rank 0 has sent is no step", e);
                    }
                }
            };

    private final LlamaBatch batch;
    private final List<TokenChooser> choosers;

    /**
     * Creates a step.
     *
     * @param batch what the model reads
     * @param choosers choose the tokens of the sequences whose scores are wanted, in their order
     */
    LlamaStep(LlamaBatch batch, List<TokenChooser> choosers) {
        this.batch = batch;
        this.choosers = choosers;
    }

    /** Has a rank do its part; returns what rank 0 has chosen, and nothing on others. */
    List<TokenChooser.Choice> run(ProcessGroup group, LlamaModel model) throws Exception {
        return LlamaGenerator.choices(group, model, batch, choosers);
    }

    /**
     * A batch as ints: for each chunk its start, whether its scores are wanted, its tokens, and its
     * rows, of which there may be thousands, as runs of such that follow each other. Tokens and
     * rows have their number before them, runs their first row.
     */
    private static void write(LlamaBatch batch, DataOutputStream out) throws IOException {
        out.writeInt(batch.chunks().size());
        for (LlamaBatch.Chunk chunk : batch.chunks()) {
            out.writeInt(chunk.start());
            out.writeBoolean(chunk.wanted());
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

    private static LlamaBatch read(DataInputStream in) throws IOException {
        List<LlamaBatch.Chunk> chunks = new ArrayList<>();
        for (int left = in.readInt(); left > 0; left--) {
            int start = in.readInt();
            boolean wanted = in.readBoolean();
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
            chunks.add(new LlamaBatch.Chunk(tokens, start, rows, wanted));
        }
        return new LlamaBatch(chunks);
    }
}

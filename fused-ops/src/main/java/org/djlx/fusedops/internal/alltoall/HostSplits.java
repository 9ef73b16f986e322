// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.alltoall;

import org.djlx.collectives.p2p.SplitError;
import org.djlx.fusedops.internal.path.OperandChecks;

/**
 * The splits of all ranks of an all-to-all, on the host. Finds errors before any row is sent, the
 * same on all ranks, and computes the chunks that this rank receives.
 */
final class HostSplits {

    /** The words before the splits in a row: rows of the input, rows of the output, alignment. */
    static final int HEADER = 3;

    private final long[][] rows; // by rank: header, splits, and offsets if there are any
    private final int rank;
    private final int experts;
    private final boolean combine; // the rows have offsets
    private final long majorAlign;
    private final OperandChecks checks;

    /**
     * A chunk of this rank's input or output.
     *
     * @param rank the rank to which it goes or from which it comes
     */
    record Chunk(int rank, long begin, long rows) {}

    HostSplits(OperandChecks checks, long[][] rows, int rank, int experts, boolean combine) {
        this.checks = checks;
        this.rows = rows;
        this.rank = rank;
        this.experts = experts;
        this.combine = combine;
        this.majorAlign = rows[0][2];
        for (int each = 0; each < rows.length; each++) {
            checkInput(each);
        }
        for (int each = 0; each < rows.length; each++) {
            if (rows[each][2] != majorAlign) {
                throw checks.wrong(
                        "majorAlign is %d on rank 0, but %d on rank %d: pass the same on all ranks",
                        majorAlign, rows[each][2], each);
            }
            long needed = chunks(each, null);
            if (needed > rows[each][1]) {
                throw refused(each, SplitError.OUTPUT_ROWS, 0, needed, rows[each][1]);
            }
        }
    }

    private void checkInput(int of) {
        long most = rows[of][0];
        long sum = 0;
        for (int i = 0; i < count(); i++) {
            long split = split(of, i);
            if (split < 0 || split > most) {
                throw refused(of, SplitError.SPLIT, i, split, most);
            }
            sum += split;
            long offset = combine ? offset(of, i) : 0;
            if (split > 0 && (offset < 0 || offset > most - split)) {
                throw refused(of, SplitError.OFFSET, i, offset, most - split);
            }
        }
        if (!combine && sum > most) {
            throw refused(of, SplitError.SUM, 0, sum, most);
        }
    }

    private IllegalArgumentException refused(
            int of, SplitError error, long index, long value, long limit) {
        return checks.wrong("rank %d: %s", of, error.message(index, value, limit));
    }

    private int count() {
        return rows.length * experts;
    }

    private long split(int of, int index) {
        return rows[of][HEADER + index];
    }

    private long offset(int of, int index) {
        return rows[of][HEADER + count() + index];
    }

    /** Returns the number of a chunk among those that a rank sends. */
    private int sent(int to, int expert) {
        return combine ? expert * rows.length + to : to * experts + expert;
    }

    /** Returns this rank's chunks in the order in which they are sent. */
    Chunk[] sent() {
        long[] begins = new long[count() + 1];
        for (int i = 0; i < count(); i++) {
            begins[i + 1] = begins[i] + split(rank, i);
        }
        Chunk[] chunks = new Chunk[count()];
        for (int i = 0; i < chunks.length; i++) {
            int to = i / experts;
            int index = sent(to, i % experts);
            long begin = combine ? offset(rank, index) : begins[index];
            chunks[i] = new Chunk(to, begin, split(rank, index));
        }
        return chunks;
    }

    /** Returns the chunks of this rank's output, in its order. */
    Chunk[] received() {
        Chunk[] chunks = new Chunk[count()];
        chunks(rank, chunks);
        return chunks;
    }

    /** Computes the chunks of a rank's output; returns the number of rows, with padding. */
    private long chunks(int of, Chunk[] chunks) {
        long end = 0;
        long first = 0; // of the current expert
        for (int i = 0; i < count(); i++) {
            int from = combine ? i / experts : i % rows.length;
            int expert = combine ? i % experts : i / rows.length;
            long size = split(from, sent(of, expert));
            if (chunks != null) {
                chunks[i] = new Chunk(from, end, size);
            }
            end += size;
            if (majorAlign > 0 && from == rows.length - 1) {
                long aligned = (end - first + majorAlign - 1) / majorAlign * majorAlign;
                first += Math.max(aligned, majorAlign);
                end = first;
            }
        }
        return end;
    }
}

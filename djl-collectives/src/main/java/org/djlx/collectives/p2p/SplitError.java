// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.p2p;

/**
 * Why an all-to-all refuses its splits. A kernel reports it to the host in {@code struct Status} of
 * {@code signal.cuh}, as 1 + the ordinal; see {@link KernelSignals#status}.
 */
public enum SplitError {
    /** A split is negative, or larger than the input. */
    SPLIT("split %d is %d, but must be from 0 to %d, the rows of the input"),
    /** The splits of a rank add up to more rows than its input has. */
    SUM("the splits add up to %2$d rows, but the input has %3$d"),
    /** A chunk of the input begins before the input or ends after it. */
    OFFSET("offset %d is %d, but must be from 0 to %d for the chunk to lie within the input"),
    /** The received rows do not fit into the output. */
    OUTPUT_ROWS(
            "the received rows and their padding take %2$d rows, but the output has %3$d: pass a"
                    + " larger output");

    private final String format;

    SplitError(String format) {
        this.format = format;
    }

    /**
     * {@return the text of an error message for a split or offset of an index; 0 for errors that
     * concern all splits}
     */
    public String message(long index, long value, long limit) {
        return String.format(format, index, value, limit);
    }
}

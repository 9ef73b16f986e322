// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import java.util.List;

/**
 * A finding of {@link FlightAnalysis}: the ranks concerned, ascending, and the number of the
 * operation; 0 if it concerns none.
 */
public record FlightFinding(Kind kind, List<Integer> ranks, long sequence, String message) {

    /** Kinds of findings, causes before their consequences. */
    public enum Kind {
        /** Ranks called different operations, shapes or types at the same sequence number. */
        MISMATCH,
        /** A rank called an operation after other ranks had timed out waiting for it. */
        LATE,
        /** A rank has not failed, but has not called an operation that other ranks have called. */
        BEHIND,
        /** The record of a rank is missing. */
        MISSING_DUMP,
        /** All ranks called an operation, but it has not completed on some of them. */
        UNFINISHED,
        /** An operation failed on a rank. */
        FAILED
    }

    static String ranks(List<Integer> ranks) {
        String text = ranks.toString();
        return (ranks.size() == 1 ? "rank " : "ranks ") + text.substring(1, text.length() - 1);
    }

    @Override
    public String toString() {
        return message;
    }
}

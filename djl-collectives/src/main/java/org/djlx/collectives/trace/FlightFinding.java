/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.trace;

import java.util.List;

/**
 * Something that the records of a group's ranks show.
 *
 * @param kind what it is
 * @param ranks whom it is about, ascending
 * @param sequence the number of the operation, or 0 if it is about none
 * @param message the finding in words
 */
public record FlightFinding(Kind kind, List<Integer> ranks, long sequence, String message) {

    /** Kinds of findings, likely causes before what they lead to. */
    public enum Kind {
        /** Ranks called different operations, shapes or types at the same number. */
        MISMATCH,
        /** A rank called an operation only after others had waited for it in vain. */
        LATE,
        /** A rank has not called what others have, though it has not failed. */
        BEHIND,
        /** There is no record of a rank. */
        MISSING_DUMP,
        /** All called an operation, and it has not ended on some. */
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

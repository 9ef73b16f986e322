/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import org.djlx.collectives.ProcessGroup;

/**
 * Which numbers of a vocabulary are a rank's. All ranks have room for the same number; if that is
 * more than there are, the last ranks have fewer, or none.
 */
final class VocabularyPart {

    private final long vocabulary;
    private final long room;
    private final long first;
    private final long count;

    VocabularyPart(long vocabulary, ProcessGroup group) {
        this.vocabulary = vocabulary;
        room = (vocabulary + group.worldSize() - 1) / group.worldSize();
        first = room * group.rank();
        count = Math.max(0, Math.min(room, vocabulary - first));
    }

    /** Returns for how many numbers each rank has room. */
    long room() {
        return room;
    }

    /** Returns how many of these there are on this rank. */
    long count() {
        return count;
    }

    /** Returns the places of numbers on this rank, and any place for those that it has not. */
    NDArray index(NDArray ids) {
        return ids.sub(first).clip(0, room - 1);
    }

    /** Tells which numbers are this rank's. */
    NDArray isOwn(NDArray ids) {
        return ids.gte(first).logicalAnd(ids.lt(first + count));
    }

    /** Tells which numbers are some rank's. */
    NDArray isAny(NDArray ids) {
        return ids.gte(0).logicalAnd(ids.lt(vocabulary));
    }

    /**
     * Checks that all numbers are in the vocabulary.
     *
     * @param others what else is allowed; null for nothing
     */
    void check(String operator, String what, NDArray ids, NDArray others) {
        NDArray allowed = isAny(ids);
        if (others != null) {
            allowed = allowed.logicalOr(others);
        }
        long wrong = ids.size() - allowed.toType(DataType.INT64, false).sum().getLong();
        if (wrong != 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: of %d numbers, from %d to %d, %d are none of a %s: those are from"
                                    + " 0 to %d",
                            operator,
                            ids.size(),
                            ids.min().getLong(),
                            ids.max().getLong(),
                            wrong,
                            what,
                            vocabulary - 1));
        }
    }
}

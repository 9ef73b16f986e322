// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import org.djlx.collectives.ProcessGroup;

/**
 * The part of a vocabulary that belongs to a rank. All parts have the same size, rounded up. The
 * last ranks may have fewer tokens, or none.
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

    long room() {
        return room;
    }

    long count() {
        return count;
    }

    /**
     * Returns the indices of token ids in this part; arbitrary valid indices for tokens of other
     * ranks.
     */
    NDArray index(NDArray ids) {
        return ids.sub(first).clip(0, room - 1);
    }

    /** Returns a mask of the token ids that belong to this rank. */
    NDArray isOwn(NDArray ids) {
        return ids.gte(first).logicalAnd(ids.lt(first + count));
    }

    /** Returns a mask of the token ids that are in the vocabulary. */
    NDArray isAny(NDArray ids) {
        return ids.gte(0).logicalAnd(ids.lt(vocabulary));
    }

    /**
     * Checks that each token id is in the vocabulary or set in the mask {@code others}, which may
     * be null.
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
                            "%s: %d of %d %s ids are out of range: they are from %d to %d, but the"
                                    + " vocabulary has ids from 0 to %d",
                            operator,
                            wrong,
                            ids.size(),
                            what,
                            ids.min().getLong(),
                            ids.max().getLong(),
                            vocabulary - 1));
        }
    }
}

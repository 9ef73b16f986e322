// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.util.Arrays;

/**
 * The lengths of sequences that are packed one after the other into one array of rows, for {@link
 * Torch#attentionOfLast} and {@link Torch#attentionWithin}. Holds FlashAttention's {@code
 * cu_seqlens} on the device, so create it once for all layers of a model. Immutable; valid until
 * its manager closes.
 */
public final class PackedSequences {

    private final int count;
    final int queryRows;
    final int keyRows;
    final int maxQueries;
    final int maxKeys;
    final NDArray queryEnds; // int32: 0, then the end of each sequence's rows
    final NDArray keyEnds;

    /**
     * Copies the lengths to the device of the queries, that of the manager: of each sequence 1 or
     * more queries, and no fewer keys.
     */
    public PackedSequences(NDManager manager, int[] queries, int[] keys) {
        boolean fits = queries.length > 0 && queries.length == keys.length;
        for (int i = 0; fits && i < keys.length; i++) {
            fits = queries[i] > 0 && queries[i] <= keys[i];
        }
        if (!fits) {
            throw new IllegalArgumentException(
                    String.format(
                            "each sequence requires at least one query, and no fewer keys than"
                                    + " queries, not %s queries and %s keys",
                            Arrays.toString(queries), Arrays.toString(keys)));
        }
        count = queries.length;
        maxQueries = Arrays.stream(queries).max().getAsInt();
        maxKeys = Arrays.stream(keys).max().getAsInt();
        int[] queriesBefore = ends(queries);
        int[] keysBefore = ends(keys);
        queryRows = queriesBefore[count];
        keyRows = keysBefore[count];
        queryEnds = manager.create(queriesBefore);
        keyEnds = manager.create(keysBefore);
    }

    private static int[] ends(int[] lengths) {
        int[] ends = new int[lengths.length + 1];
        for (int i = 0; i < lengths.length; i++) {
            ends[i + 1] = Math.addExact(ends[i], lengths[i]);
        }
        return ends;
    }

    public int count() {
        return count;
    }
}

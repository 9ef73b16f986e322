// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * A cache of one-dimensional arrays over memory given by address. Operations on the same tensor use
 * the same addresses, and creating an array costs about 1 KB of heap and 1 µs.
 *
 * <p>The key is the address, the count and the type. An array does not keep the memory alive, so
 * request it only while the memory is valid. Used by one thread at a time.
 */
final class ViewCache {

    // A set-associative cache, large enough for the chunks of 64 MiB and the staging memory of all
    // ranks. With fewer ways, views in alternating use would evict each other too often.
    private static final int SETS = 32;
    private static final int WAYS = 8;

    private final NDManager manager;
    private final NDArray[] views = new NDArray[SETS * WAYS];
    private final long[] addresses = new long[SETS * WAYS];
    private final long[] counts = new long[SETS * WAYS];
    private final ScalarType[] types = new ScalarType[SETS * WAYS];
    private final long[] lastUses = new long[SETS * WAYS];
    private long uses;

    /** Creates an empty cache, whose arrays the manager owns. */
    ViewCache(NDManager manager) {
        this.manager = manager;
    }

    /** Returns an array over an address. It is valid until the next call; do not close it. */
    NDArray get(long address, long count, ScalarType type) {
        int place = place(address, count, type);
        if (!matches(place, address, count, type)) {
            if (views[place] != null) {
                views[place].close();
                views[place] = null;
            }
            long bytes = count * type.itemSize();
            NativeMemory memory = new NativeMemory(address, bytes, Device.cpu(), () -> {});
            views[place] = Torch.view(manager, memory, 0, new Shape(count), type);
            addresses[place] = address;
            counts[place] = count;
            types[place] = type;
        }
        lastUses[place] = ++uses;
        return views[place];
    }

    /**
     * Returns the index of a view; if the view is not cached, the least recently used index of its
     * set.
     */
    private int place(long address, long count, ScalarType type) {
        // Chunks are equal distances apart; the high bits of the product spread them over the sets.
        long mixed = (address ^ count * 31 ^ type.ordinal()) * 0x9E3779B97F4A7C15L;
        int first = (int) Long.remainderUnsigned(mixed >>> 32, SETS) * WAYS;
        int oldest = first;
        for (int place = first; place < first + WAYS; place++) {
            if (matches(place, address, count, type)) {
                return place;
            }
            if (lastUses[place] < lastUses[oldest]) {
                oldest = place;
            }
        }
        return oldest;
    }

    private boolean matches(int place, long address, long count, ScalarType type) {
        return views[place] != null
                && addresses[place] == address
                && counts[place] == count
                && types[place] == type;
    }
}

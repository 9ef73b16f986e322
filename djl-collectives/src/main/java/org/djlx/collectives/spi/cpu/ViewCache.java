// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * A cache of one-dimensional arrays over memory given by address. Operations on the same tensor use
 * the same addresses, and creating an array costs about 1 KB of heap and 1 µs.
 *
 * <p>An array does not keep the memory alive, so request it only while the memory is valid. Used by
 * one thread at a time.
 */
final class ViewCache {

    // Enough for the chunks of 64 MiB and the staging memory of all ranks.
    private static final int VIEWS = 768;

    private record Key(long address, long count, ScalarType type) {}

    private final NDManager manager;
    private final Map<Key, NDArray> views = new LinkedHashMap<>(VIEWS, 0.75f, true);

    /** Creates an empty cache, whose arrays the manager owns. */
    ViewCache(NDManager manager) {
        this.manager = manager;
    }

    /** Returns an array over an address, valid for the next calls; do not close it. */
    NDArray get(long address, long count, ScalarType type) {
        Key key = new Key(address, count, type);
        NDArray view = views.get(key);
        if (view == null) {
            long bytes = count * type.itemSize();
            NativeMemory memory = new NativeMemory(address, bytes, Device.cpu(), () -> {});
            view = Torch.view(manager, memory, 0, new Shape(count), type);
            views.put(key, view);
            if (views.size() > VIEWS) {
                Iterator<NDArray> eldest = views.values().iterator(); // least recently used
                eldest.next().close();
                eldest.remove();
            }
        }
        return view;
    }
}

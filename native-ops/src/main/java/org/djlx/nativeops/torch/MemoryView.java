// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.engine.PtNDManager;
import java.util.concurrent.atomic.AtomicReference;
import org.djlx.nativeops.host.NativeMemory;

/** An array over native memory. Holds a reference to the memory. */
final class MemoryView extends PtNDArray {

    private final AtomicReference<NativeMemory> memory;

    /** Takes ownership of one reference to the memory, unless the constructor throws. */
    MemoryView(PtNDManager manager, long handle, NativeMemory memory) {
        super(manager, handle);
        this.memory = new AtomicReference<>(memory);
    }

    /** Returns the memory and adds a reference for the caller; null if this is closed. */
    NativeMemory retainMemory() {
        NativeMemory held = memory.get();
        if (held != null) {
            held.share();
        }
        return held;
    }

    @Override
    public void close() {
        // NDArray.intern moves the tensor into another array and closes this one. The other array
        // holds no reference to the memory, so the memory is leaked to avoid a dangling pointer.
        boolean moved = isReleased();
        super.close();
        NativeMemory held = memory.getAndSet(null);
        if (held != null && !moved) {
            held.release();
        }
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.torch;

import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.engine.PtNDManager;
import java.util.concurrent.atomic.AtomicReference;
import org.djlx.nativeops.host.NativeMemory;

/** An array that holds a reference to the memory it is a view of. */
final class MemoryView extends PtNDArray {

    private final AtomicReference<NativeMemory> memory;

    /** Takes over one reference to the memory, unless the constructor throws. */
    MemoryView(PtNDManager manager, long handle, NativeMemory memory) {
        super(manager, handle);
        this.memory = new AtomicReference<>(memory);
    }

    /** Returns the memory with one more reference for the caller, or null if it is given up. */
    NativeMemory retainMemory() {
        NativeMemory held = memory.get();
        if (held != null) {
            held.share();
        }
        return held;
    }

    @Override
    public void close() {
        // NDArray.intern moves the tensor into another array, then closes this one. That array
        // knows nothing of the memory, which therefore must stay: a leak, not a dangling pointer.
        boolean moved = isReleased();
        super.close();
        NativeMemory held = memory.getAndSet(null);
        if (held != null && !moved) {
            held.release();
        }
    }
}

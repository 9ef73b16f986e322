// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import ai.djl.engine.EngineException;
import com.sun.jna.LastErrorException;
import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.util.BitSet;

/** Binds threads to cores (sched_setaffinity(2)). Linux only. */
public final class ThreadBinding {

    private static final int MASK_BYTES = 1024 / Byte.SIZE;

    private ThreadBinding() {}

    /**
     * Binds the calling thread to one of the cores that it may run on, by an index modulo their
     * number, and returns the core's number. Threads that it starts later inherit the binding.
     * Throws EngineException if the system refuses.
     */
    public static int bindToCore(int index) {
        try (Memory mask = new Memory(MASK_BYTES)) {
            long address = Pointer.nativeValue(mask);
            mask.clear();
            LibC.sched_getaffinity(0, MASK_BYTES, address);
            BitSet allowed = BitSet.valueOf(mask.getByteArray(0, MASK_BYTES));
            int core = allowed.nextSetBit(0);
            for (int i = Math.floorMod(index, allowed.cardinality()); i > 0; i--) {
                core = allowed.nextSetBit(core + 1);
            }
            mask.clear();
            mask.setByte(core / Byte.SIZE, (byte) (1 << core % Byte.SIZE));
            LibC.sched_setaffinity(0, MASK_BYTES, address);
            return core;
        } catch (LastErrorException e) {
            throw new EngineException("cannot bind the thread to a core: " + e.getMessage(), e);
        }
    }
}

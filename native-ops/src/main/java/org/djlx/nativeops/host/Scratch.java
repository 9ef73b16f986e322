// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;

/**
 * Native memory of a thread, for arguments and results of C functions: slots of a long, then words.
 * The next use by the same thread overwrites it, so read results immediately.
 */
public final class Scratch {

    /** The most dimensions of libtorch's operators. */
    public static final int MAX_DIMENSIONS = 64;

    /** The number of slots: the maximum number of arguments of the called operators. */
    public static final int SLOTS = 16;

    // Of up to SLOTS tensors: see src/main/cpp/tensors.cpp.
    private static final int WORDS = SLOTS * (6 + 2 * MAX_DIMENSIONS);

    // JNA's accesses are native calls, which the interpreter makes in a tenth of the time of a
    // ByteBuffer's.
    private final Memory memory = new Memory((SLOTS + (long) WORDS) * Long.BYTES);
    private final long address = Pointer.nativeValue(memory);
    private final long[] words = new long[WORDS]; // the result of read()

    Scratch() {
        memory.clear();
    }

    /** {@return the scratch memory of the calling thread, with results of earlier calls} */
    public static Scratch get() {
        return CallingThread.get().scratch();
    }

    public long slot(int index) {
        return address + (long) index * Long.BYTES;
    }

    public long getLong(int index) {
        return memory.getLong((long) index * Long.BYTES);
    }

    /** Reads an int from the start of a slot. */
    public int getInt(int index) {
        return memory.getInt((long) index * Long.BYTES);
    }

    public void putLong(int index, long value) {
        memory.setLong((long) index * Long.BYTES, value);
    }

    /**
     * Stores longs from a slot on, and returns the address of the first; slot {@link #SLOTS} is the
     * first of the words after the slots.
     */
    public long put(int index, long... values) {
        memory.write((long) index * Long.BYTES, values, 0, values.length);
        return slot(index);
    }

    /**
     * Reads longs from a slot on by one native call. Returns the longs, and older values after
     * them; the next call overwrites them.
     */
    public long[] read(int index, int count) {
        memory.read((long) index * Long.BYTES, words, 0, count);
        return words;
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.util.Arrays;

/**
 * Native memory of a thread, for arguments and results of C functions: slots, sizes and strides.
 * The next use by the same thread overwrites it, so read results immediately.
 *
 * <pre>
 *   0        16                   16 + 64                  16 + 2 * 64   (longs)
 *   | slots  | sizes              | strides                |
 * </pre>
 */
public final class Scratch {

    /** The most dimensions of libtorch's operators. */
    public static final int MAX_DIMENSIONS = 64;

    /** The number of slots: the maximum number of arguments of the called operators. */
    public static final int SLOTS = 16;

    // JNA's accesses are native calls, which the interpreter makes in a tenth of the time of a
    // ByteBuffer's.
    private final Memory memory = new Memory((SLOTS + 2L * MAX_DIMENSIONS) * Long.BYTES);
    private final long address = Pointer.nativeValue(memory);
    private final long[] slots = new long[8]; // the result of slots()

    private final HostCopier copier = new HostCopier();
    private final long[] first = new long[MAX_DIMENSIONS];
    private final long[] second = new long[MAX_DIMENSIONS];

    Scratch() {
        memory.clear();
    }

    /** {@return the scratch memory of the calling thread, with results of earlier calls} */
    public static Scratch get() {
        return CallingThread.get().scratch();
    }

    /** {@return the address of a slot} */
    public long slot(int index) {
        return address + (long) index * Long.BYTES;
    }

    /**
     * Reads a slot.
     *
     * @return its value
     */
    public long getLong(int index) {
        return memory.getLong((long) index * Long.BYTES);
    }

    /**
     * Reads the first 8 slots by one native call.
     *
     * @return the values; overwritten by the next call
     */
    public long[] slots() {
        memory.read(0, slots, 0, slots.length);
        return slots;
    }

    /** Reads an int from the start of a slot. */
    public int getInt(int index) {
        return memory.getInt((long) index * Long.BYTES);
    }

    /** Writes a slot. */
    public void putLong(int index, long value) {
        memory.setLong((long) index * Long.BYTES, value);
    }

    /**
     * Copies longs from a native address.
     *
     * @param address the address of the first long
     */
    public long[] longsAt(long address, int count) {
        long[] longs = new long[count];
        copier.read(address, longs, count);
        return longs;
    }

    /**
     * Compares longs at two native addresses.
     *
     * @param address1 the first address
     * @param address2 the second address
     * @return whether they are equal
     */
    public boolean sameLongs(long address1, long address2, int count) {
        if (count > MAX_DIMENSIONS) {
            return Arrays.equals(longsAt(address1, count), longsAt(address2, count));
        }
        copier.read(address1, first, count);
        copier.read(address2, second, count);
        return Arrays.equals(first, 0, count, second, 0, count);
    }

    /**
     * Stores sizes.
     *
     * @param sizes the sizes, at most {@link #MAX_DIMENSIONS}
     * @return their address
     */
    public long putSizes(long[] sizes) {
        return putLongs(SLOTS, sizes);
    }

    /**
     * Stores strides.
     *
     * @param strides the strides, at most {@link #MAX_DIMENSIONS}
     * @return their address
     */
    public long putStrides(long[] strides) {
        return putLongs(SLOTS + MAX_DIMENSIONS, strides);
    }

    private long putLongs(int index, long[] values) {
        memory.write((long) index * Long.BYTES, values, 0, values.length);
        return slot(index);
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.host;

import com.sun.jna.Native;
import com.sun.jna.Pointer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.util.Arrays;

/**
 * Native memory, one block a thread, for what the C functions read and write: results, sizes and
 * strides. Its content is gone with the next use by the same thread, so it is read at once.
 *
 * <pre>
 *   0        16                   16 + 64                  16 + 2 * 64   (longs)
 *   | slots  | sizes              | strides                |
 * </pre>
 */
public final class Scratch {

    /** As many dimensions as libtorch's operators take. */
    public static final int MAX_DIMENSIONS = 64;

    /** As many as any operator that is called has arguments. */
    public static final int SLOTS = 16;

    private final ByteBuffer buffer =
            ByteBuffer.allocateDirect((SLOTS + 2 * MAX_DIMENSIONS) * Long.BYTES)
                    .order(ByteOrder.nativeOrder());
    private final LongBuffer longs = buffer.asLongBuffer(); // the same
    private final long[] slots = new long[8]; // the first ones, as many as are read at once
    private final long address = Pointer.nativeValue(Native.getDirectBufferPointer(buffer));

    private final HostCopier copier = new HostCopier();
    private final long[] ours = new long[MAX_DIMENSIONS];
    private final long[] theirs = new long[MAX_DIMENSIONS];

    Scratch() {}

    /** Returns this thread's block, with the first slot zeroed: no result reads as null. */
    public static Scratch get() {
        Scratch scratch = CallingThread.get().scratch();
        scratch.putLong(0, 0);
        return scratch;
    }

    public long slot(int index) {
        return address + (long) index * Long.BYTES;
    }

    public long getLong(int index) {
        return buffer.getLong(index * Long.BYTES);
    }

    /**
     * Returns what the first 8 slots hold, until the next call: at once, which is much cheaper than
     * one by one while the JVM has not compiled the caller.
     */
    public long[] slots() {
        longs.get(0, slots);
        return slots;
    }

    /** Reads the int that a function wrote to the start of a slot. */
    public int getInt(int index) {
        return buffer.getInt(index * Long.BYTES);
    }

    public void putLong(int index, long value) {
        buffer.putLong(index * Long.BYTES, value);
    }

    /** Returns the longs that lie at an address of this process. */
    public long[] longsAt(long address, int count) {
        long[] longs = new long[count];
        copier.read(address, longs, count);
        return longs;
    }

    /** Tells whether the longs at two addresses are the same. */
    public boolean sameLongs(long address1, long address2, int count) {
        if (count > MAX_DIMENSIONS) {
            return Arrays.equals(longsAt(address1, count), longsAt(address2, count));
        }
        copier.read(address1, ours, count);
        copier.read(address2, theirs, count);
        return Arrays.equals(ours, 0, count, theirs, 0, count);
    }

    /** Stores sizes and returns their address. */
    public long putSizes(long[] sizes) {
        return putLongs(SLOTS, sizes);
    }

    /** Stores strides and returns their address. */
    public long putStrides(long[] strides) {
        return putLongs(SLOTS + MAX_DIMENSIONS, strides);
    }

    private long putLongs(int index, long[] values) {
        for (int i = 0; i < values.length; i++) {
            putLong(index + i, values[i]);
        }
        return slot(index);
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * Atomic access to 32-bit and 64-bit words in memory shared by threads or processes.
 *
 * <p>Offsets are in bytes from the start of the buffer; an {@code int} lies at a multiple of 4, a
 * {@code long} at a multiple of 8. An offset outside of the buffer throws {@link
 * IndexOutOfBoundsException}. Volatile accesses are sequentially consistent between all processes
 * that map the memory. Methods must not be called after the memory was closed.
 */
public final class AtomicBuffer {

    private static final VarHandle INT =
            MethodHandles.byteBufferViewVarHandle(int[].class, ByteOrder.nativeOrder());
    private static final VarHandle LONG =
            MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.nativeOrder());
    // A struct timespec for each thread: two longs, seconds and nanoseconds.
    private static final ThreadLocal<Memory> TIMESPEC =
            ThreadLocal.withInitial(() -> new Memory(2 * Long.BYTES));

    private final long address;
    private final ByteBuffer buffer;
    private final Pointer pointer;

    /**
     * Creates a buffer over a part of some memory of the host's address space, from an offset in
     * bytes, a multiple of 8.
     */
    public AtomicBuffer(NativeMemory memory, long offset, int byteSize) {
        if (offset < 0 || byteSize < 0 || offset > memory.byteSize() - byteSize) {
            throw new IllegalArgumentException(
                    "%s bytes at %s lie outside %s bytes"
                            .formatted(byteSize, offset, memory.byteSize()));
        }
        if ((memory.address() + offset) % Long.BYTES != 0) {
            throw new IllegalArgumentException("offset " + offset + " is not a multiple of 8");
        }
        this.address = memory.address() + offset;
        this.pointer = new Pointer(address);
        this.buffer = pointer.getByteBuffer(0, byteSize).order(ByteOrder.nativeOrder());
    }

    public int getIntVolatile(int offset) {
        return (int) INT.getVolatile(buffer, offset);
    }

    public void putIntVolatile(int offset, int value) {
        INT.setVolatile(buffer, offset, value);
    }

    public long getLongVolatile(int offset) {
        return (long) LONG.getVolatile(buffer, offset);
    }

    public void putLongVolatile(int offset, long value) {
        LONG.setVolatile(buffer, offset, value);
    }

    public int getAndAddInt(int offset, int delta) {
        return (int) INT.getAndAdd(buffer, offset, delta);
    }

    /** Reads a long without ordering guarantees, for data that a volatile access publishes. */
    public long getLong(int offset) {
        return (long) LONG.get(buffer, offset);
    }

    /** Writes a long without ordering guarantees, for data that a volatile access publishes. */
    public void putLong(int offset, long value) {
        LONG.set(buffer, offset, value);
    }

    /** Reads longs without ordering guarantees, by one native call. */
    public void getLongs(int offset, long[] values) {
        checkLongs(offset, values.length);
        pointer.read(offset, values, 0, values.length);
    }

    /** Writes longs without ordering guarantees, by one native call. */
    public void putLongs(int offset, long[] values) {
        checkLongs(offset, values.length);
        pointer.write(offset, values, 0, values.length);
    }

    private void checkLongs(int offset, int count) {
        if (offset % Long.BYTES != 0
                || offset < 0
                || offset > buffer.capacity() - count * Long.BYTES) {
            throw new IndexOutOfBoundsException(
                    count + " longs at offset " + offset + " of " + buffer.capacity() + " bytes");
        }
    }

    /** Reads bytes without ordering guarantees. */
    public void getBytes(int offset, byte[] bytes) {
        buffer.get(offset, bytes);
    }

    /** Writes bytes without ordering guarantees. */
    public void putBytes(int offset, byte[] bytes, int length) {
        buffer.put(offset, bytes, 0, length);
    }

    /**
     * Sleeps while an int has the expected value (futex(2)). Returns on {@link #wake}, on timeout,
     * or spuriously, so the caller must check its condition again.
     */
    public void sleepWhile(int offset, int expected, long timeoutNanos) {
        check(offset);
        Memory timespec = TIMESPEC.get();
        timespec.setLong(0, timeoutNanos / 1_000_000_000L);
        timespec.setLong(Long.BYTES, timeoutNanos % 1_000_000_000L);
        LibC.futex(address + offset, LibC.FUTEX_WAIT, expected, Pointer.nativeValue(timespec));
    }

    /** Wakes all threads, of any process, that sleep on an int. */
    public void wake(int offset) {
        check(offset);
        LibC.futex(address + offset, LibC.FUTEX_WAKE, Integer.MAX_VALUE, 0);
    }

    private void check(int offset) {
        if (offset < 0
                || offset > buffer.capacity() - Integer.BYTES
                || offset % Integer.BYTES != 0) {
            throw new IndexOutOfBoundsException(
                    "no int at offset " + offset + " of " + buffer.capacity() + " bytes");
        }
    }
}

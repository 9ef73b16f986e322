// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import com.sun.jna.Native;
import com.sun.jna.Pointer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.cpu.Letter;
import org.djlx.nativeops.host.SharedMemory;

/**
 * A control message of a rank to another, in memory that MPI sends from and receives into.
 *
 * <pre>
 *   0     kind: of a {@link Letter}, or {@link #CALL}, {@link #FAILED}, {@link #LEFT}
 *   8     the sending rank
 *   16    number and tag of a message
 *   32    element type and size of a message
 *   48    bytes of the payload
 *   56    signature of the operation
 *   192   payload: small data of a collective, sizes of an all-to-all, or a text
 * </pre>
 */
final class LetterBuffer {

    /** A rank has begun a collective. */
    static final int CALL = 16;

    /** A rank has broken the group; the payload says why. */
    static final int FAILED = 17;

    /** A rank has left the group. Its last letter. */
    static final int LEFT = 18;

    /** The size of a letter without payload. */
    static final int HEADER = 192;

    private static final int SIGNATURE = 56;

    private final ByteBuffer bytes;
    private final long address;

    LetterBuffer(int capacity) {
        bytes = ByteBuffer.allocateDirect(capacity).order(ByteOrder.nativeOrder());
        address = Pointer.nativeValue(Native.getDirectBufferPointer(bytes));
    }

    long address() {
        return address;
    }

    int capacity() {
        return bytes.capacity();
    }

    /** Returns the size of the letter that was put last, in bytes. */
    int byteSize() {
        return HEADER + payloadSize();
    }

    private void put(int kind, int rank, long[] signature) {
        bytes.putLong(0, kind);
        bytes.putLong(8, rank);
        bytes.putLong(48, 0);
        for (int i = 0; i < signature.length; i++) {
            bytes.putLong(SIGNATURE + i * Long.BYTES, signature[i]);
        }
    }

    void put(int rank, Letter letter) {
        put(letter.kind().ordinal(), rank, letter.signature());
        bytes.putLong(16, letter.message());
        bytes.putLong(24, letter.tag());
        bytes.putLong(32, letter.type());
        bytes.putLong(40, letter.size());
    }

    /** Puts a call, with {@code size} bytes of payload from the address {@code data}. */
    void putCall(int rank, long[] signature, long data, int size) {
        put(CALL, rank, signature);
        bytes.putLong(48, size);
        if (size > 0) {
            SharedMemory.copy(address + HEADER, data, size);
        }
    }

    void putCall(int rank, long[] signature, long[] words) {
        put(CALL, rank, signature);
        bytes.putLong(48, (long) words.length * Long.BYTES);
        for (int i = 0; i < words.length; i++) {
            bytes.putLong(HEADER + i * Long.BYTES, words[i]);
        }
    }

    /** Puts {@link #FAILED} or {@link #LEFT}, with as much of a text as fits. */
    void putEnd(int kind, int rank, String text) {
        put(kind, rank, new long[0]);
        byte[] all = text.getBytes(StandardCharsets.UTF_8);
        byte[] fitting = Arrays.copyOf(all, Math.min(all.length, capacity() - HEADER));
        bytes.putLong(48, fitting.length);
        bytes.put(HEADER, fitting);
    }

    int kind() {
        return (int) bytes.getLong(0);
    }

    int source() {
        return (int) bytes.getLong(8);
    }

    int payloadSize() {
        return (int) bytes.getLong(48);
    }

    long payload() {
        return address + HEADER;
    }

    long payloadWord(int index) {
        return bytes.getLong(HEADER + index * Long.BYTES);
    }

    String text() {
        byte[] text = new byte[payloadSize()];
        bytes.get(HEADER, text);
        return new String(text, StandardCharsets.UTF_8);
    }

    boolean hasSignature(long[] signature) {
        for (int i = 0; i < Operation.SIGNATURE_WORDS; i++) {
            if (bytes.getLong(SIGNATURE + i * Long.BYTES) != signature[i]) {
                return false;
            }
        }
        return true;
    }

    long[] signature() {
        long[] signature = new long[Operation.SIGNATURE_WORDS];
        for (int i = 0; i < signature.length; i++) {
            signature[i] = bytes.getLong(SIGNATURE + i * Long.BYTES);
        }
        return signature;
    }

    Letter letter() {
        return new Letter(
                Letter.Kind.values()[kind()],
                bytes.getLong(16),
                (int) bytes.getLong(24),
                (int) bytes.getLong(32),
                bytes.getLong(40),
                signature());
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.cpu.Letter;
import org.djlx.nativeops.host.AtomicBuffer;
import org.djlx.nativeops.host.NativeMemory;

/**
 * The channel from one rank to another in shared memory: a ring of letters, which negotiate
 * messages, and a ring of chunks, which carry their data. One rank writes, the other reads. The
 * counters publish entries and free them.
 *
 * <pre>
 *   0      int     letters posted, by the writer
 *   64     int     letters taken, by the reader
 *   128    int     chunks written, by the writer
 *   192    int     chunks read, by the reader
 *   256    longs   number of the message of each chunk
 *   320    letters of 192 bytes: kind, message, tag, element type, size in bytes; at 64 the
 *          signature of the operation
 *   4096   chunks
 * </pre>
 */
final class Mailbox {

    static final long CHUNK = 64 << 10;

    private static final int CHUNKS = 4;
    private static final int DATA = 4096;

    /** The size of a mailbox in bytes. */
    static final long BYTE_SIZE = DATA + CHUNKS * CHUNK;

    private static final int POSTED = 0;
    private static final int TAKEN = 64;
    private static final int WRITTEN = 128;
    private static final int READ = 192;
    private static final int CHUNK_MESSAGES = 256;
    private static final int LETTERS = 320;
    private static final int LETTER = 192;
    private static final int CAPACITY = 16; // a power of two, as counters wrap around
    private static final int SIGNATURE = 64;

    private final AtomicBuffer words;
    private final long data;
    private final Copies copies;

    Mailbox(NativeMemory memory, long offset, Copies copies) {
        this.words = new AtomicBuffer(memory, offset, DATA);
        this.data = memory.address() + offset + DATA;
        this.copies = copies;
    }

    /** Posts a letter; returns false if the ring is full. */
    boolean post(Letter letter) {
        int posted = words.getIntVolatile(POSTED);
        if (posted - words.getIntVolatile(TAKEN) == CAPACITY) {
            return false;
        }
        int at = LETTERS + (posted & CAPACITY - 1) * LETTER;
        words.putLong(at, letter.kind().ordinal());
        words.putLong(at + 8, letter.message());
        words.putLong(at + 16, letter.tag());
        words.putLong(at + 24, letter.type());
        words.putLong(at + 32, letter.size());
        for (int i = 0; i < Operation.SIGNATURE_WORDS; i++) {
            words.putLong(at + SIGNATURE + i * Long.BYTES, letter.signature()[i]);
        }
        words.putIntVolatile(POSTED, posted + 1);
        return true;
    }

    /** Takes the next letter; returns null if there is none. */
    Letter take() {
        int taken = words.getIntVolatile(TAKEN);
        if (words.getIntVolatile(POSTED) == taken) {
            return null;
        }
        int at = LETTERS + (taken & CAPACITY - 1) * LETTER;
        long[] signature = new long[Operation.SIGNATURE_WORDS];
        for (int i = 0; i < signature.length; i++) {
            signature[i] = words.getLong(at + SIGNATURE + i * Long.BYTES);
        }
        Letter letter =
                new Letter(
                        Letter.Kind.values()[(int) words.getLong(at)],
                        words.getLong(at + 8),
                        (int) words.getLong(at + 16),
                        (int) words.getLong(at + 24),
                        words.getLong(at + 32),
                        signature);
        words.putIntVolatile(TAKEN, taken + 1);
        return letter;
    }

    /** Writes a chunk of a message; returns false if the ring is full. */
    boolean write(long message, long address, long size) {
        int written = words.getIntVolatile(WRITTEN);
        if (written - words.getIntVolatile(READ) == CHUNKS) {
            return false;
        }
        int index = written & CHUNKS - 1;
        words.putLong(CHUNK_MESSAGES + index * Long.BYTES, message);
        copies.copy(data + index * CHUNK, address, size);
        words.putIntVolatile(WRITTEN, written + 1);
        return true;
    }

    /** Returns the number of the message of the next chunk; -1 if there is none. */
    long nextMessage() {
        int read = words.getIntVolatile(READ);
        if (words.getIntVolatile(WRITTEN) == read) {
            return -1;
        }
        return words.getLong(CHUNK_MESSAGES + (read & CHUNKS - 1) * Long.BYTES);
    }

    /** Reads the next chunk, whose message {@link #nextMessage()} has returned. */
    void read(long address, long size) {
        int read = words.getIntVolatile(READ);
        copies.copy(address, data + (read & CHUNKS - 1) * CHUNK, size);
        words.putIntVolatile(READ, read + 1);
    }
}

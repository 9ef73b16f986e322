/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.shm;

import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.host.AtomicBuffer;
import org.djlx.nativeops.host.NativeMemory;

/**
 * What goes from one rank to another: a ring of letters, by which they agree on messages, and a
 * ring of chunks, the messages' data. One rank writes, the other reads; the counters publish what
 * was written and free what was read.
 *
 * <pre>
 *   0      int     letters posted, by the writer
 *   64     int     letters taken, by the reader
 *   128    int     chunks written, by the writer
 *   192    int     chunks read, by the reader
 *   256    longs   the message that each chunk belongs to
 *   320    letters of 192 bytes: kind, message, tag, element type, size in bytes; at 64 the
 *          signature of the operation
 *   4096   chunks
 * </pre>
 */
final class Mailbox {

    /** What a letter says about a message. */
    enum Kind {
        /** From the sender: there is a message. */
        OFFER,
        /** From the receiver: it is wanted, send the data. */
        ACCEPT,
        /** From the receiver: it is wanted, but does not fit; the signature says what would. */
        REJECT,
        /** From the sender: it has given up, there is no such message any more. */
        WITHDRAW
    }

    /** One letter. Sizes are in bytes; the element type is its code. */
    record Letter(Kind kind, long message, int tag, int type, long size, long[] signature) {}

    static final long CHUNK = 64 << 10;

    private static final int CHUNKS = 4;
    private static final int DATA = 4096;

    /** The size of a mailbox. */
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

    /** Posts a letter, unless there is no room. */
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

    /** Takes the next letter, or null if there is none. */
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
                        Kind.values()[(int) words.getLong(at)],
                        words.getLong(at + 8),
                        (int) words.getLong(at + 16),
                        (int) words.getLong(at + 24),
                        words.getLong(at + 32),
                        signature);
        words.putIntVolatile(TAKEN, taken + 1);
        return letter;
    }

    /** Writes a chunk of a message, unless there is no room. */
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

    /** The message of the next chunk to read, or -1 if there is none. */
    long nextMessage() {
        int read = words.getIntVolatile(READ);
        if (words.getIntVolatile(WRITTEN) == read) {
            return -1;
        }
        return words.getLong(CHUNK_MESSAGES + (read & CHUNKS - 1) * Long.BYTES);
    }

    /** Reads the chunk that {@link #nextMessage()} has told of. */
    void read(long address, long size) {
        int read = words.getIntVolatile(READ);
        copies.copy(address, data + (read & CHUNKS - 1) * CHUNK, size);
        words.putIntVolatile(READ, read + 1);
    }
}

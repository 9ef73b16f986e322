// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import java.util.List;
import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.internal.host.ControlBlock;
import org.djlx.collectives.internal.host.SharedSegment;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.nativeops.host.AtomicBuffer;
import org.djlx.nativeops.host.NativeMemory;

/**
 * One rank's mapping of the memory that the ranks of a group share. Each rank has its own mapping,
 * even if the ranks are threads of one JVM.
 *
 * <pre>
 *   control block
 *   staging    per rank: two halves of chunkSize bytes
 *   mailboxes  per rank: one to each rank
 *   P2P memory per rank: bufferSize + heapSize bytes
 * </pre>
 */
final class ShmSegment implements AutoCloseable {

    private static final long PAGE = 4096;
    private static final long MAX_SIZE = 1L << 47;

    private final SharedSegment shared;
    private final long staging;
    private final long mailboxes;
    private final long buffers;
    private final int worldSize;
    private final AtomicBuffer[] headers;
    private final long chunkSize;
    private final long bufferSize;
    private final long heapSize;

    private ShmSegment(SharedSegment shared, int worldSize, ShmOptions options) {
        this.shared = shared;
        this.chunkSize = options.chunkSize();
        this.bufferSize = options.bufferSize();
        this.heapSize = options.heapSize();
        this.staging = align(ControlBlock.byteSize(worldSize));
        this.mailboxes = staging + worldSize * 2 * chunkSize;
        this.buffers = mailboxes + mailboxesSize(worldSize);
        this.worldSize = worldSize;
        this.headers = new AtomicBuffer[2 * worldSize];
        for (int i = 0; i < headers.length; i++) {
            headers[i] =
                    new AtomicBuffer(
                            shared.memory(), staging + i * chunkSize, headerSize(worldSize));
        }
    }

    private static long mailboxesSize(int worldSize) {
        return (long) worldSize * worldSize * Mailbox.BYTE_SIZE;
    }

    /** Returns the size of the header words of a staging half in bytes: two words per rank. */
    static int headerSize(int worldSize) {
        return 2 * worldSize * Long.BYTES;
    }

    /** Returns the size of the memory in bytes; throws on all ranks if it cannot be mapped. */
    private static long byteSize(int worldSize, ShmOptions options) {
        long fixed = align(ControlBlock.byteSize(worldSize)) + mailboxesSize(worldSize);
        long staging = options.chunkSize();
        long buffer =
                Math.min(options.bufferSize(), MAX_SIZE) + Math.min(options.heapSize(), MAX_SIZE);
        // Half of the address space belongs to the Linux kernel.
        if (staging > (MAX_SIZE - fixed) / 4 / worldSize
                || buffer > (MAX_SIZE - fixed) / 2 / worldSize) {
            throw new IllegalArgumentException(
                    String.format(
                            "cannot map a chunk size of %d bytes plus %d bytes of buffer and heap"
                                    + " for each of %d ranks; choose smaller sizes",
                            staging, buffer, worldSize));
        }
        return fixed + worldSize * (2 * staging + align(buffer));
    }

    private static long align(long bytes) {
        return (bytes + PAGE - 1) / PAGE * PAGE;
    }

    /**
     * Creates the segment on rank 0 and maps it on the other ranks; returns when all ranks have
     * mapped it.
     *
     * @throws org.djlx.collectives.CollectiveException on all ranks, if any rank fails
     */
    static ShmSegment map(GroupContext context, ShmOptions options) {
        long byteSize = byteSize(context.worldSize(), options);
        String sizes =
                String.format(
                        "chunk %d, buffer %d, heap %d",
                        options.chunkSize(), options.bufferSize(), options.heapSize());
        SharedSegment shared = SharedSegment.map(context, byteSize, List.of(sizes));
        return new ShmSegment(shared, context.worldSize(), options);
    }

    NativeMemory memory() {
        return shared.memory();
    }

    ControlBlock control() {
        return shared.control();
    }

    /** Returns the address of one of a rank's two staging halves. */
    long staging(int rank, int half) {
        return shared.memory().address() + staging + (2L * rank + half) * chunkSize;
    }

    /** Returns the header words of one of a rank's two staging halves. */
    AtomicBuffer header(int rank, int half) {
        return headers[2 * rank + half];
    }

    Mailbox mailbox(int from, int to, Copies copies) {
        long offset = mailboxes + ((long) from * worldSize + to) * Mailbox.BYTE_SIZE;
        return new Mailbox(shared.memory(), offset, copies);
    }

    int worldSize() {
        return worldSize;
    }

    long chunkSize() {
        return chunkSize;
    }

    /** Returns the offset of a rank's P2P memory in {@link #memory()}, in bytes. */
    long bufferOffset(int rank) {
        return buffers + rank * align(bufferSize + heapSize);
    }

    long bufferSize() {
        return bufferSize;
    }

    long heapSize() {
        return heapSize;
    }

    @Override
    public void close() {
        shared.close();
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.p2p;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Map;
import java.util.OptionalLong;
import java.util.TreeMap;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * Allocates arrays in the heap of a rank's P2P memory, which other ranks can read and write.
 * Operators on such arrays avoid a copy. The counterpart of {@code
 * torch.distributed._symmetric_memory.empty}.
 *
 * <ul>
 *   <li>Peers access an array at the offset that it has on this rank. All ranks must therefore
 *       allocate and close arrays of the same sizes in the same order. Operators that depend on
 *       equal offsets check them and fail on all ranks if they differ.
 *   <li>The memory is reused once the array and all its {@linkplain Torch#alias aliases} are
 *       closed. On a GPU this can be before the current stream has finished using it, so only use
 *       reused memory on the same stream.
 *   <li>Thread-safe, but concurrent calls may get different offsets on different ranks.
 * </ul>
 */
public final class P2pAllocator {

    private static final long ALIGNMENT = 256;

    private final P2pBuffers buffers;
    private final int rank;
    private final long begin;
    private final long end;
    private final TreeMap<Long, Long> free = new TreeMap<>(); // sizes by offset; guarded by this

    P2pAllocator(P2pBuffers buffers, int rank) {
        this.buffers = buffers;
        this.rank = rank;
        begin = align(buffers.bufferSize());
        end = (buffers.bufferSize() + buffers.heapSize()) / ALIGNMENT * ALIGNMENT;
        if (begin < end) {
            free.put(begin, end - begin);
        }
    }

    private static long align(long bytes) {
        return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }

    /**
     * Allocates a contiguous, uninitialised array in this rank's heap.
     *
     * @return the array, on the group's device
     * @throws IllegalStateException if the heap has no free block of this size
     * @throws IllegalArgumentException if the size is 2^63 bytes or more
     */
    public NDArray allocate(NDManager manager, Shape shape, ScalarType type) {
        Required.argument("allocate: manager", manager);
        Required.argument("allocate: shape", shape);
        Required.argument("allocate: type", type);
        long byteSize = type.byteSize(shape.getShape());
        long allocated = align(Math.max(byteSize, 1));
        long offset = allocate(allocated);
        boolean done = false;
        try {
            NDArray view = buffers.p2pBuffer(manager, rank, shape, type, offset);
            view.detach(); // Keeps the group's memory alive as long as the array.
            NativeMemory memory =
                    new NativeMemory(
                            buffers.address(rank, offset),
                            byteSize,
                            Torch.device(view),
                            () -> {
                                view.close();
                                free(offset, allocated);
                            });
            done = true;
            try (memory) {
                return Torch.view(manager, memory, 0, shape, type);
            }
        } finally {
            if (!done) {
                free(offset, allocated);
            }
        }
    }

    private synchronized long allocate(long byteSize) {
        for (Map.Entry<Long, Long> hole : free.entrySet()) {
            long offset = hole.getKey();
            long left = hole.getValue() - byteSize;
            if (left >= 0) {
                free.remove(offset);
                if (left > 0) {
                    free.put(offset + byteSize, left);
                }
                return offset;
            }
        }
        throw new IllegalStateException(
                String.format(
                        "cannot allocate %d bytes in the P2P heap: %d of %d bytes are free, in %d"
                            + " blocks; close arrays, or create the group with a larger heap size",
                        byteSize, freeBytes(), end - begin, free.size()));
    }

    private synchronized void free(long offset, long byteSize) {
        long size = byteSize;
        long start = offset;
        Long after = free.remove(offset + byteSize);
        if (after != null) {
            size += after;
        }
        Map.Entry<Long, Long> before = free.lowerEntry(offset);
        if (before != null && before.getKey() + before.getValue() == offset) {
            start = before.getKey();
            size += before.getValue();
        }
        free.put(start, size);
    }

    /** {@return the number of free bytes in the heap, possibly in several blocks} */
    public synchronized long freeBytes() {
        return free.values().stream().mapToLong(Long::longValue).sum();
    }

    /**
     * {@return the offset of an array in bytes from the start of this rank's P2P memory, as {@link
     * P2pBuffers#p2pBuffer} takes it; empty if the array is not entirely in the heap, not
     * contiguous, or has no elements}
     */
    public OptionalLong offsetOf(NDArray array) {
        TensorInfo info = Torch.info(array);
        if (begin >= end || info.count() == 0 || !info.isContiguous()) {
            return OptionalLong.empty();
        }
        // Safe for any device: GPU and host addresses are distinct.
        long offset = info.address() - buffers.address(rank, 0);
        boolean inside = offset >= begin && offset + info.byteSize() <= end;
        return inside ? OptionalLong.of(offset) : OptionalLong.empty();
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.p2p;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Map;
import java.util.OptionalLong;
import java.util.TreeMap;
import org.djlx.collectives.internal.host.Required;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * Gives out arrays in a rank's P2P memory, where the other ranks can write into them and read them:
 * operators can then do without a copy. The counterpart of {@code
 * torch.distributed._symmetric_memory.empty}.
 *
 * <p>An array is found by the others at the offset at which this rank has it. So all ranks are to
 * allocate and to close arrays of the same sizes in the same order, as they issue operations; they
 * then get the same offsets. Operators that need it check it, and fail on all ranks if it is not
 * so.
 *
 * <p>An array's memory is given out again once the array and all its {@linkplain Torch#alias
 * aliases} are closed; on a GPU that may be before the current stream has passed what uses it,
 * which is right for what the same stream does then. Methods are thread-safe, but only calls in one
 * order give the same offsets everywhere.
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
     * Returns an array in this rank's heap, contiguous, its elements not set.
     *
     * @param manager the manager to attach the array to
     * @param shape its shape
     * @param type its element type
     * @return the array, on the group's device
     * @throws IllegalStateException if the heap has no room for it
     */
    public NDArray allocate(NDManager manager, Shape shape, ScalarType type) {
        Required.argument("allocate: manager", manager);
        Required.argument("allocate: shape", shape);
        Required.argument("allocate: type", type);
        long byteSize = Math.multiplyExact(shape.size(), type.itemSize());
        long taken = align(Math.max(byteSize, 1));
        long offset = take(taken);
        boolean done = false;
        try {
            NDArray place = buffers.p2pBuffer(manager, rank, shape, type, offset);
            place.detach(); // It keeps the group's memory for as long as the array lives.
            NativeMemory memory =
                    new NativeMemory(
                            buffers.address(rank, offset),
                            byteSize,
                            Torch.device(place),
                            () -> {
                                place.close();
                                give(offset, taken);
                            });
            done = true;
            try (memory) {
                return Torch.view(manager, memory, 0, shape, type);
            }
        } finally {
            if (!done) {
                give(offset, taken);
            }
        }
    }

    private synchronized long take(long byteSize) {
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
                        "there is no room for %d bytes in the P2P heap, of whose %d bytes %d are"
                                + " free in %d pieces; close arrays, or create the group with a"
                                + " larger heap size",
                        byteSize, end - begin, freeBytes(), free.size()));
    }

    private synchronized void give(long offset, long byteSize) {
        long size = byteSize;
        long start = offset;
        Long behind = free.remove(offset + byteSize);
        if (behind != null) {
            size += behind;
        }
        Map.Entry<Long, Long> before = free.lowerEntry(offset);
        if (before != null && before.getKey() + before.getValue() == offset) {
            start = before.getKey();
            size += before.getValue();
        }
        free.put(start, size);
    }

    /**
     * Returns how much of the heap is free, though perhaps not in one piece.
     *
     * @return the size in bytes
     */
    public synchronized long freeBytes() {
        return free.values().stream().mapToLong(Long::longValue).sum();
    }

    /**
     * Tells whether all of an array lies in this rank's heap, and where.
     *
     * @param array an array
     * @return its offset in bytes from the start of the rank's P2P memory, as {@link
     *     P2pBuffers#p2pBuffer} takes it; empty if it does not, or is not contiguous, or has no
     *     elements
     */
    public OptionalLong offsetOf(NDArray array) {
        TensorInfo info = Torch.info(array);
        if (begin >= end || info.count() == 0 || !info.isContiguous()) {
            return OptionalLong.empty();
        }
        // Addresses of GPUs and hosts do not coincide.
        long offset = info.address() - buffers.address(rank, 0);
        boolean inside = offset >= begin && offset + info.byteSize() <= end;
        return inside ? OptionalLong.of(offset) : OptionalLong.empty();
    }
}

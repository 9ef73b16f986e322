// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.safetensors;

import ai.djl.Device;
import java.util.ArrayList;
import java.util.List;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaMemory;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.host.SharedMemory;

/**
 * Copies rows of memory-mapped files to a GPU through two pinned buffers: threads of the common
 * pool fill one buffer while the GPU reads the other. A plain copy from pageable memory does these
 * steps in sequence on one thread, and needs contiguous rows. Thread-safe.
 */
final class StagedCopy implements AutoCloseable {

    static final int PIECE_BYTES = 16 << 20;
    private static final int PIECES = 2;
    private static final long TASK_BYTES = 1 << 20; // copied by one task

    private final CudaDevice device;
    private final CurrentStreams streams;
    private final List<NativeMemory> pieces = new ArrayList<>();
    private final List<CudaEvent> fetched = new ArrayList<>();

    private StagedCopy(Device gpu) {
        device = CudaDevice.open(gpu);
        streams = new CurrentStreams(device);
    }

    /** Allocates the pinned buffers. */
    static StagedCopy create(Device gpu) {
        StagedCopy copy = new StagedCopy(gpu);
        try {
            for (int i = 0; i < PIECES; i++) {
                copy.pieces.add(CudaMemory.allocatePinned(copy.device, PIECE_BYTES));
                copy.fetched.add(CudaEvent.create(copy.device));
            }
            return copy;
        } catch (Throwable e) {
            copy.close();
            throw e;
        }
    }

    /** Receives the parts of a copy: several rows, or a part of one row. */
    @FunctionalInterface
    interface Part {

        /**
         * Copies a part.
         *
         * @param source the address of its first byte
         * @param rowBytes the size of a row in bytes
         * @param offset its offset in the destination, in bytes
         */
        void copy(long source, long rows, long rowBytes, long offset);
    }

    /**
     * Divides a copy of rows, {@code stride} bytes apart, into parts that fit a buffer: several
     * rows, or parts of a row that is larger.
     */
    static void divide(long source, long rows, long rowBytes, long stride, long most, Part part) {
        if (rowBytes == stride && rows > 1) {
            divide(source, 1, rows * rowBytes, rows * rowBytes, most, part);
            return;
        }
        long together = Math.min(rows, Math.max(1, most / rowBytes));
        for (long row = 0; row < rows; row += together) {
            long count = Math.min(together, rows - row);
            for (long at = 0; at < rowBytes; at += most) {
                long bytes = Math.min(most, rowBytes - at);
                part.copy(source + row * stride + at, count, bytes, row * rowBytes + at);
            }
        }
    }

    /** Copies rows into contiguous memory, on several threads. */
    static void fill(long to, long source, long rows, long rowBytes, long stride) {
        List<Runnable> tasks = new ArrayList<>();
        divide(
                source,
                rows,
                rowBytes,
                stride,
                TASK_BYTES,
                (from, taskRows, bytes, offset) ->
                        tasks.add(
                                () -> {
                                    for (long row = 0; row < taskRows; row++) {
                                        SharedMemory.copy(
                                                to + offset + row * bytes,
                                                from + row * stride,
                                                bytes);
                                    }
                                }));
        tasks.parallelStream().forEach(Runnable::run);
    }

    /**
     * Copies rows to contiguous GPU memory and waits for the copy.
     *
     * @param destination the address on the GPU
     * @param source the first row's address on the host
     * @param rowBytes the size of a row in bytes, at least 1
     * @param stride the distance between rows in bytes
     */
    synchronized void copy(long destination, long source, long rows, long rowBytes, long stride) {
        // Earlier work on the stream may still use the destination.
        CudaStream stream = streams.get();
        int[] count = new int[1];
        divide(
                source,
                rows,
                rowBytes,
                stride,
                PIECE_BYTES,
                (from, partRows, partBytes, offset) -> {
                    int i = count[0]++ % PIECES;
                    long piece = pieces.get(i).address();
                    fetched.get(i).synchronize();
                    fill(piece, from, partRows, partBytes, stride);
                    stream.copyAsync(destination + offset, piece, partRows * partBytes);
                    fetched.get(i).record(stream);
                });
        fetched.forEach(CudaEvent::synchronize);
    }

    @Override
    public synchronized void close() {
        fetched.forEach(CudaEvent::close);
        pieces.forEach(NativeMemory::close);
        streams.close();
        device.close();
    }
}

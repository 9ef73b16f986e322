// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.safetensors;

import ai.djl.Device;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.IntConsumer;
import java.util.stream.IntStream;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaMemory;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.host.MappedFile;
import org.djlx.nativeops.host.NativeMemory;

/**
 * Copies rows of a file to a GPU. Threads of the common pool each read parts of the rows into two
 * pinned buffers in turn, and have the GPU copy a buffer while they fill the other. Thread-safe.
 */
final class StagedCopy implements AutoCloseable {

    static final int PART_BYTES = 1 << 20;
    private static final int BUFFERS = 2; // of a thread
    private static final int MAX_THREADS = 16;

    private final CudaDevice device;
    private final CurrentStreams streams;
    private final List<CudaEvent> copied = new ArrayList<>(); // of each buffer
    private final int threads = Math.min(MAX_THREADS, ForkJoinPool.getCommonPoolParallelism() + 1);
    private NativeMemory buffers; // null if it could not be allocated

    private StagedCopy(Device gpu) {
        device = CudaDevice.open(gpu);
        streams = new CurrentStreams(device);
    }

    /** Allocates the pinned buffers. */
    static StagedCopy create(Device gpu) {
        StagedCopy copy = new StagedCopy(gpu);
        try {
            int count = copy.threads * BUFFERS;
            copy.buffers = CudaMemory.allocatePinned(copy.device, (long) count * PART_BYTES);
            for (int i = 0; i < count; i++) {
                copy.copied.add(CudaEvent.create(copy.device));
            }
            return copy;
        } catch (Throwable e) {
            copy.close();
            throw e;
        }
    }

    /**
     * A part of a copy: several rows, or a part of one row, from the position of its first byte to
     * an offset in the destination, in bytes.
     */
    record Part(long source, long rows, long rowBytes, long offset) {}

    /**
     * Divides a copy of rows, {@code stride} bytes apart, into parts of at most {@code most} bytes.
     */
    static List<Part> divide(long source, long rows, long rowBytes, long stride, long most) {
        if (rowBytes == stride && rows > 1) {
            return divide(source, 1, rows * rowBytes, rows * rowBytes, most);
        }
        List<Part> parts = new ArrayList<>();
        long together = Math.min(rows, Math.max(1, most / rowBytes));
        for (long row = 0; row < rows; row += together) {
            long count = Math.min(together, rows - row);
            for (long at = 0; at < rowBytes; at += most) {
                long bytes = Math.min(most, rowBytes - at);
                parts.add(new Part(source + row * stride + at, count, bytes, row * rowBytes + at));
            }
        }
        return parts;
    }

    /** Runs a body on each of several threads, and waits for all of them, also if one fails. */
    static void runAll(int threads, IntConsumer body) {
        AtomicReference<Throwable> failure = new AtomicReference<>();
        IntStream.range(0, threads)
                .parallel()
                .forEach(
                        thread -> {
                            try {
                                body.accept(thread);
                            } catch (RuntimeException | Error e) { // forEach would not wait.
                                failure.compareAndSet(null, e);
                            }
                        });
        if (failure.get() instanceof Error error) {
            throw error;
        }
        if (failure.get() instanceof RuntimeException exception) {
            throw exception;
        }
    }

    /**
     * Copies rows to contiguous GPU memory and waits for the copy.
     *
     * @param file the file, of which a view is open
     * @param offset the position of the first row in the file, in bytes
     * @param rowBytes the size of a row in bytes, at least 1
     * @param stride the distance between rows in bytes
     */
    synchronized void copy(
            MappedFile file, long offset, long rows, long rowBytes, long stride, long destination) {
        // Earlier work on the stream may still use the destination.
        CudaStream stream = streams.get();
        List<Part> parts = divide(offset, rows, rowBytes, stride, PART_BYTES);
        AtomicInteger next = new AtomicInteger();
        try {
            runAll(
                    Math.min(threads, parts.size()),
                    thread -> {
                        int turn = 0;
                        for (int i = next.getAndIncrement();
                                i < parts.size();
                                i = next.getAndIncrement()) {
                            int buffer = thread * BUFFERS + turn++ % BUFFERS;
                            copy(file, parts.get(i), stride, stream, destination, buffer);
                        }
                    });
        } finally {
            stream.synchronize();
        }
    }

    private void copy(
            MappedFile file,
            Part part,
            long stride,
            CudaStream stream,
            long destination,
            int buffer) {
        long address = buffers.address() + (long) buffer * PART_BYTES;
        copied.get(buffer).synchronize();
        for (long row = 0; row < part.rows; row++) {
            long to = address + row * part.rowBytes;
            file.read(part.source + row * stride, part.rowBytes, to);
        }
        stream.copyAsync(destination + part.offset, address, part.rows * part.rowBytes);
        copied.get(buffer).record(stream);
    }

    @Override
    public synchronized void close() {
        copied.forEach(CudaEvent::close);
        if (buffers != null) {
            buffers.close();
        }
        streams.close();
        device.close();
    }
}

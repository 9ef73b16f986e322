/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import com.sun.management.OperatingSystemMXBean;
import com.sun.management.ThreadMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.Locale;
import java.util.function.LongToIntFunction;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** One rank of a benchmark on the CPU. Each call is timed; the slowest rank's time counts. */
final class BenchJob implements AutoCloseable {

    /**
     * Elements per slice: values are made on the Java heap, which cannot hold those of a large
     * tensor.
     */
    private static final long SLICE = 4 << 20;

    private final ProcessGroup group;
    private final BenchOp op;
    private final ScalarType type;
    private final NDManager manager;

    BenchJob(ProcessGroup group, BenchOp op, ScalarType type) {
        this.group = group;
        this.op = op;
        this.type = type;
        this.manager = NDManager.newBaseManager(group.device(), "PyTorch");
    }

    /** Measures a case; returns the same row on all ranks. */
    BenchRow measure(BenchCase wanted) {
        int worldSize = group.worldSize();
        int parts = op.parts(worldSize);
        long part = wanted.size() / parts / type.itemSize();
        long inputCount = part * op.inputParts(worldSize);
        long outputCount = part * op.outputParts(worldSize);
        try (NDArray output = tensor(outputCount, i -> 0);
                NDArray input = op.inPlace() ? output : tensor(inputCount, i -> 0)) {
            double[] nanos = new double[wanted.iterations()];
            long heap = time(wanted, output, input, nanos);
            fill(input, i -> BenchOp.input(group.rank(), i));
            op.issue(group, output, input).await();
            long wrong = wrong(output, i -> op.expected(group.rank(), group.worldSize(), part, i));

            reduce(nanos, ReduceOp.MAX);
            double micros = Stats.median(nanos) / 1e3;
            long size = part * parts * type.itemSize();
            double algbw = size / micros / 1e3;
            return new BenchRow(
                    size,
                    inputCount,
                    type.name().toLowerCase(Locale.ROOT),
                    op.redop(),
                    op.root(),
                    micros,
                    algbw,
                    algbw * op.busFactor(worldSize),
                    (long) reduce(new double[] {wrong}, ReduceOp.SUM)[0],
                    (long) reduce(new double[] {heap}, ReduceOp.MAX)[0]);
        }
    }

    /** Times the calls; returns the heap bytes that a call allocates. */
    private long time(BenchCase wanted, NDArray output, NDArray input, double[] nanos) {
        group.barrier().await();
        for (int i = 0; i < wanted.warmUp(); i++) {
            op.issue(group, output, input).await();
        }
        ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        long allocated = threads.getCurrentThreadAllocatedBytes();
        for (int i = 0; i < nanos.length; i++) {
            long start = System.nanoTime();
            op.issue(group, output, input).await();
            nanos[i] = System.nanoTime() - start;
        }
        return (threads.getCurrentThreadAllocatedBytes() - allocated) / nanos.length;
    }

    /**
     * Measures a wait in a barrier to which rank 0 comes late.
     *
     * @return the CPU time of a waiting rank's process in milliseconds
     */
    double idle(Duration time) throws InterruptedException {
        // The first waits load classes.
        group.barrier().await();
        OperatingSystemMXBean system =
                (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long before = system.getProcessCpuTime();
        if (group.rank() == 0) {
            Thread.sleep(time.toMillis());
        }
        group.barrier().await();
        double millis = (system.getProcessCpuTime() - before) / 1e6;
        return reduce(new double[] {millis}, ReduceOp.MAX)[0];
    }

    /** Counts the elements that differ from the expected value at their index. */
    long wrong(NDArray output, LongToIntFunction expected) {
        long wrong = 0;
        for (long from = 0; from < output.size(); from += SLICE) {
            long start = from;
            try (NDArray slice = slice(output, from);
                    NDArray wanted = tensor(slice.size(), i -> expected.applyAsInt(start + i));
                    NDArray differ = slice.neq(wanted);
                    NDArray count = differ.countNonzero()) {
                wrong += count.getLong();
            }
        }
        return wrong;
    }

    /** Creates a tensor. */
    NDArray tensor(long count, LongToIntFunction value) {
        NDArray tensor = Torch.empty(manager, new Shape(count), type);
        fill(tensor, value);
        return tensor;
    }

    /** Sets each element to a function of its index. */
    void fill(NDArray tensor, LongToIntFunction value) {
        for (long from = 0; from < tensor.size(); from += SLICE) {
            long start = from;
            try (NDArray slice = slice(tensor, from);
                    NDArray values = create((int) slice.size(), i -> value.applyAsInt(start + i))) {
                Torch.copy(slice, values);
            }
        }
    }

    private static NDArray slice(NDArray tensor, long from) {
        return tensor.get(from + ":" + Math.min(from + SLICE, tensor.size()));
    }

    /** Returns integers: their conversion wraps around as sums in a smaller type do. */
    private NDArray create(int count, LongToIntFunction value) {
        int[] values = new int[count];
        for (int i = 0; i < values.length; i++) {
            values[i] = value.applyAsInt(i);
        }
        return manager.create(values);
    }

    /** All-reduces values in place; returns them. */
    double[] reduce(double[] values, ReduceOp how) {
        try (NDArray tensor = manager.create(values)) {
            group.allReduce(tensor, how).await();
            System.arraycopy(tensor.toDoubleArray(), 0, values, 0, values.length);
            return values;
        }
    }

    @Override
    public void close() {
        manager.close();
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.internal;

import ai.djl.Device;
import ai.djl.ndarray.NDManager;
import java.util.Optional;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CublasLt;
import org.djlx.nativeops.cuda.CublasLtMatmul;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.MatrixLayout;
import org.djlx.nativeops.torch.ScalarType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What computes on the device of one rank's group: cuBLASLt and a kernel on a GPU that have them,
 * otherwise libtorch. Used by one thread at a time, in the order of the group's operations, as
 * products share a workspace.
 */
public final class Compute implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(Compute.class);

    private final Libtorch libtorch;
    private final Gpu gpu; // null on the CPU
    private final int worldSize;

    /**
     * Prepares what computes.
     *
     * @param device the group's device
     * @param worldSize how many ranks the group has
     * @param manager the manager of arrays for libtorch, on that device; each is closed when it has
     *     been used
     */
    public Compute(Device device, int worldSize, NDManager manager) {
        this.worldSize = worldSize;
        libtorch = new Libtorch(device, manager);
        gpu = device.isGpu() ? new Gpu(device) : null;
    }

    /** What a GPU needs; a class of its own, as there may be no library for it. */
    private static final class Gpu implements AutoCloseable {

        private final CudaDevice cuda;
        private final CurrentStreams streams;
        private final CublasLt cublas; // null if it is not here
        private final FusedMatmul persistent; // null if this GPU has none
        private RankOrderReducer reducer; // once it is needed
        private RmsNormKernels rmsNorm; // once it is needed
        private GatheredExchange exchange; // once it is needed
        private CudaStream stream; // the current one, of the operation under way

        Gpu(Device device) {
            cuda = CudaDevice.open(device);
            streams = new CurrentStreams(cuda);
            Throwable cause = NativeLibrary.CUBLASLT.unavailabilityCause();
            if (cause != null) {
                logger.warn("fused operators multiply by libtorch, which takes longer", cause);
            }
            cublas = cause == null ? CublasLt.create(cuda) : null;
            persistent = FusedMatmul.isSupported(cuda) ? new FusedMatmul(cuda, streams) : null;
        }

        @Override
        public void close() {
            if (cublas != null) {
                cublas.close();
            }
            if (persistent != null) {
                persistent.close();
            }
            if (rmsNorm != null) {
                rmsNorm.close();
            }
            if (exchange != null) {
                exchange.close();
            }
            if (reducer != null) {
                reducer.close();
            }
            streams.close();
            cuda.close();
        }
    }

    /**
     * Returns how many multiprocessors the device has.
     *
     * @return their number, whoever else uses them; 0 on the CPU
     */
    public int multiprocessors() {
        return gpu == null ? 0 : gpu.cuda.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
    }

    /**
     * Returns what runs an operator as one launch.
     *
     * @return the kernels; empty if this device has none
     */
    public Optional<FusedMatmul> persistent() {
        return Optional.ofNullable(gpu == null ? null : gpu.persistent);
    }

    /**
     * Returns what adds and normalises rows.
     *
     * @return the kernels; empty on the CPU
     */
    public synchronized Optional<RmsNormKernels> rmsNorm() {
        if (gpu == null) {
            return Optional.empty();
        }
        if (gpu.rmsNorm == null) {
            KernelCompiler compiler = new KernelCompiler(KernelCache.user());
            gpu.rmsNorm = new RmsNormKernels(gpu.cuda, gpu.streams, compiler, worldSize);
        }
        return Optional.of(gpu.rmsNorm);
    }

    /**
     * Tells whether kernels can gather and scatter; they are not compiled for that.
     *
     * @param buffers the group's
     * @param type the element type
     * @param byteSize the size of a shard or a part
     * @return whether they can; the same on all ranks
     */
    public boolean canExchange(P2pBuffers buffers, ScalarType type, long byteSize) {
        return gpu != null && GatheredExchange.isPossible(gpu.cuda, buffers, type, byteSize);
    }

    /**
     * Returns what gathers and scatters by kernels, which it {@link #canExchange}.
     *
     * @return the kernels
     */
    public synchronized GatheredExchange exchange() {
        if (gpu.exchange == null) {
            KernelCompiler compiler = new KernelCompiler(KernelCache.user());
            gpu.exchange = new GatheredExchange(gpu.cuda, gpu.streams, compiler, worldSize);
        }
        return gpu.exchange;
    }

    /**
     * Tells whether the calling thread's current stream is recorded into a graph.
     *
     * @return whether it is; false on the CPU
     */
    public boolean isRecorded() {
        return gpu != null && gpu.streams.get().isCapturing();
    }

    /** To be called when an operation begins: looks which stream is current. */
    public void begin() {
        if (gpu != null) {
            gpu.stream = gpu.streams.get();
        }
    }

    /**
     * Prepares a product.
     *
     * @param type the element type
     * @param out the layout of the product, row-major
     * @param a the layout of the left operand
     * @param b the layout of the right operand
     * @return the product, to be closed before this object
     */
    public Product product(ScalarType type, MatrixLayout out, MatrixLayout a, MatrixLayout b) {
        if (out.rows() == 0 || out.columns() == 0 || a.columns() == 0) {
            return new Zeros(out.rows() * out.columns() * type.itemSize());
        }
        return gpu == null || gpu.cublas == null
                ? new ByLibtorch(type, out, a, b)
                : new ByCublas(type, out, a, b);
    }

    /**
     * Prepares the reduction of parts.
     *
     * @param type the element type
     * @param count the elements of a part
     * @param parts the number of parts
     * @param average whether the sum is divided by their number
     * @return the reduction
     */
    public synchronized Reduction reduction(
            ScalarType type, long count, int parts, boolean average) {
        if (gpu != null && RankOrderReducer.isSupported(gpu.cuda, type)) {
            if (gpu.reducer == null) {
                gpu.reducer =
                        new RankOrderReducer(gpu.cuda, new KernelCompiler(KernelCache.user()));
            }
            return (out, first, distance) ->
                    gpu.reducer.reduce(
                            gpu.stream, type, out, first, distance, count, parts, average);
        }
        return (out, first, distance) ->
                libtorch.reduce(type, out, first, distance, count, parts, average);
    }

    /** Sums parts that lie at equal distances, in rank order, into one. */
    @FunctionalInterface
    public interface Reduction {

        /**
         * Reduces on the current stream; on the CPU, by the calling thread.
         *
         * @param out the address where the result goes
         * @param first the address of the first part
         * @param distance from one part to the next, in bytes
         */
        void run(long out, long first, long distance);
    }

    /** A product that sums over nothing, or has no elements; its layout is contiguous. */
    private final class Zeros implements Product {

        private final long byteSize;

        Zeros(long byteSize) {
            this.byteSize = byteSize;
        }

        @Override
        public void run(long out, long a, long b) {
            if (gpu != null) {
                gpu.stream.memsetAsync(out, (byte) 0, byteSize);
            } else if (byteSize > 0) {
                libtorch.clear(out, byteSize);
            }
        }

        @Override
        public void close() {}
    }

    private final class ByLibtorch implements Product {

        private final ScalarType type;
        private final MatrixLayout out;
        private final MatrixLayout a;
        private final MatrixLayout b;

        ByLibtorch(ScalarType type, MatrixLayout out, MatrixLayout a, MatrixLayout b) {
            this.type = type;
            this.out = out;
            this.a = a;
            this.b = b;
        }

        @Override
        public void run(long outAddress, long aAddress, long bAddress) {
            libtorch.multiply(type, outAddress, out, aAddress, a, bAddress, b);
        }

        @Override
        public void close() {}
    }

    /** Plans by the alignment of the addresses, up to 16 bytes, which decides on algorithms. */
    private final class ByCublas implements Product {

        private static final int MAX_ALIGNMENT = 16;

        private final ScalarType type;
        private final MatrixLayout out;
        private final MatrixLayout a;
        private final MatrixLayout b;
        private final CublasLtMatmul[] plans = new CublasLtMatmul[5]; // by powers of two
        private Product fallback; // once cuBLASLt had no algorithm

        ByCublas(ScalarType type, MatrixLayout out, MatrixLayout a, MatrixLayout b) {
            this.type = type;
            this.out = out;
            this.a = a;
            this.b = b;
        }

        @Override
        public void run(long outAddress, long aAddress, long bAddress) {
            int power =
                    Long.numberOfTrailingZeros(outAddress | aAddress | bAddress | MAX_ALIGNMENT);
            if (plans[power] == null && fallback == null) {
                Optional<CublasLtMatmul> plan = gpu.cublas.plan(type, type, out, a, b, 1 << power);
                if (plan.isPresent()) {
                    plans[power] = plan.get();
                } else {
                    fallback = new ByLibtorch(type, out, a, b);
                }
            }
            if (fallback == null) {
                plans[power].run(gpu.stream, outAddress, aAddress, bAddress);
            } else {
                fallback.run(outAddress, aAddress, bAddress);
            }
        }

        @Override
        public void close() {
            for (CublasLtMatmul plan : plans) {
                if (plan != null) {
                    plan.close();
                }
            }
        }
    }

    @Override
    public void close() {
        if (gpu != null) {
            gpu.close();
        }
    }
}

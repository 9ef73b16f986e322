// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.kernel;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import org.djlx.collectives.ReduceOp;
import org.djlx.fusedops.cost.Workload;
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
import org.djlx.nativeops.torch.Torch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Matmuls and reductions on a group's device, and the launchers of kernels that plans share. On a
 * GPU it uses cuBLASLt and a kernel if they are available, otherwise libtorch. Not thread-safe:
 * call it in the order of the group's operations, because matmuls share a workspace.
 */
public final class Compute implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(Compute.class);

    private static final int SCALED_MULTIPLE =
            16; // of sizes and addresses, for float8 tensor cores

    private final Libtorch libtorch;
    private final Gpu gpu; // null on the CPU
    private final int worldSize;

    /** Opens the device, on which the manager of libtorch's temporary arrays must be. */
    public Compute(Device device, int worldSize, NDManager manager) {
        this.worldSize = worldSize;
        libtorch = new Libtorch(device, manager);
        gpu = device.isGpu() ? new Gpu(device) : null;
    }

    /** The state for a GPU. A separate class: the CPU then needs no CUDA library. */
    private static final class Gpu implements AutoCloseable {

        private final CudaDevice cuda;
        private final CurrentStreams streams;
        private final CublasLt cublas; // null if not available
        private RankOrderReducer reducer; // null before the first use
        private final Map<Class<?>, KernelLauncher> launchers = new HashMap<>();
        private CudaStream stream; // the current stream of the running operation

        Gpu(Device device) {
            cuda = CudaDevice.open(device);
            streams = new CurrentStreams(cuda);
            Throwable cause = NativeLibrary.CUBLASLT.unavailabilityCause();
            if (cause != null) {
                logger.warn(
                        "cuBLASLt is not available: fused operators use slower matmuls of libtorch",
                        cause);
            }
            cublas = cause == null ? CublasLt.create(cuda) : null;
        }

        @Override
        public void close() {
            if (cublas != null) {
                cublas.close();
            }
            launchers.values().forEach(KernelLauncher::close);
            if (reducer != null) {
                reducer.close();
            }
            streams.close();
            cuda.close();
        }
    }

    /**
     * Returns the number of SMs of the device, including SMs that other ranks use; 0 on the CPU.
     */
    public int multiprocessors() {
        return gpu == null ? 0 : gpu.cuda.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
    }

    /** Returns the GPU; empty on the CPU. */
    public Optional<CudaDevice> cuda() {
        return Optional.ofNullable(gpu == null ? null : gpu.cuda);
    }

    /**
     * Returns a launcher of kernels that plans share; empty on the CPU. The first call creates it;
     * it is closed with this object.
     */
    public synchronized <T extends KernelLauncher> Optional<T> launcher(
            Class<T> type, KernelLauncher.Factory<T> factory) {
        if (gpu == null) {
            return Optional.empty();
        }
        KernelLauncher launcher = gpu.launchers.get(type);
        if (launcher == null) {
            KernelCompiler compiler = new KernelCompiler(KernelCache.user());
            launcher = factory.create(gpu.cuda, gpu.streams, compiler, worldSize);
            gpu.launchers.put(type, launcher);
        }
        return Optional.of(type.cast(launcher));
    }

    /**
     * Returns whether the calling thread's current stream is recorded into a graph; false on the
     * CPU.
     */
    public boolean isRecorded() {
        return gpu != null && gpu.streams.get().isCapturing();
    }

    /** As {@link CurrentStreams#hold}; null on the CPU. */
    public CurrentStreams.Scope hold() {
        return gpu == null ? null : gpu.streams.hold();
    }

    /** Reads the current stream. Call it at the start of an operation. */
    public void begin() {
        if (gpu != null) {
            gpu.stream = gpu.streams.get();
        }
    }

    /**
     * Prepares a product. The product of float8 matrices is in bfloat16.
     *
     * @param out the layout of the product, row-major
     * @return the product; close it before this object
     */
    public Product product(ScalarType type, MatrixLayout out, MatrixLayout a, MatrixLayout b) {
        return product(type, out, a, b, false);
    }

    /**
     * As {@link #product(ScalarType, MatrixLayout, MatrixLayout, MatrixLayout)}.
     *
     * @param fast whether products of float8 matrices may be added in fewer bits than float32
     */
    public Product product(
            ScalarType type, MatrixLayout out, MatrixLayout a, MatrixLayout b, boolean fast) {
        if (out.rows() == 0 || out.columns() == 0 || a.columns() == 0) {
            long bytes = out.rows() * out.columns() * Workload.typeOfProduct(type).itemSize();
            return new Zeros(gpu, libtorch, bytes);
        }
        if (type == ScalarType.FLOAT8_E4M3FN) {
            return scaledProduct(out, a, b, fast);
        }
        ByLibtorch product = new ByLibtorch(libtorch, type, out, a, b);
        return gpu == null || gpu.cublas == null ? product : new ByCublas(gpu, product);
    }

    private Product scaledProduct(MatrixLayout out, MatrixLayout a, MatrixLayout b, boolean fast) {
        boolean cublas = gpu != null && gpu.cublas != null;
        boolean tensorCores =
                cublas
                        && gpu.cuda.attribute(CudaAttribute.COMPUTE_CAPABILITY_MAJOR) >= 9
                        && a.isRowMajor()
                        && b.transposed().isRowMajor()
                        && a.rowStride() % SCALED_MULTIPLE == 0
                        && b.columnStride() % SCALED_MULTIPLE == 0
                        && a.columns() % SCALED_MULTIPLE == 0
                        && out.columns() % SCALED_MULTIPLE == 0;
        CublasLtMatmul half =
                cublas
                        ? gpu.cublas
                                .plan(
                                        ScalarType.FLOAT16,
                                        ScalarType.FLOAT32,
                                        MatrixLayout.contiguous(out.rows(), out.columns()),
                                        MatrixLayout.contiguous(a.rows(), a.columns()),
                                        MatrixLayout.contiguous(b.columns(), b.rows()).transposed(),
                                        SCALED_MULTIPLE)
                                .orElse(null)
                        : null;
        return new Scaled(gpu, libtorch, out, a, b, fast, tensorCores, half, new HashMap<>());
    }

    /**
     * Matmuls of float8 matrices.
     *
     * @param tensorCores whether the layouts are right for float8 tensor cores
     * @param half multiplies operands that are converted to float16, into float32; null to convert
     *     them to float32
     * @param plans by whether rows are scaled; an empty plan is not possible
     */
    private record Scaled(
            Gpu gpu,
            Libtorch libtorch,
            MatrixLayout out,
            MatrixLayout a,
            MatrixLayout b,
            boolean fast,
            boolean tensorCores,
            CublasLtMatmul half,
            Map<Boolean, Optional<CublasLtMatmul>> plans)
            implements Product {

        @Override
        public void run(long outAddress, long aAddress, long bAddress, Scales scales) {
            boolean aligned = (outAddress | aAddress | bAddress) % SCALED_MULTIPLE == 0;
            CublasLtMatmul plan = tensorCores && aligned ? plan(scales.byRow()) : null;
            if (plan == null) {
                libtorch.multiplyScaled(
                        outAddress,
                        out,
                        aAddress,
                        a,
                        bAddress,
                        b,
                        scales,
                        half != null ? ScalarType.FLOAT16 : ScalarType.FLOAT32,
                        this::multiplyHalf);
                return;
            }
            boolean byRow = scales.byRow();
            try (NDArray ofA = libtorch.aligned(scales.a(), byRow ? out.rows() : 1);
                    NDArray ofB = libtorch.aligned(scales.b(), byRow ? out.columns() : 1)) {
                long rows = Torch.dataPointer(ofA);
                long columns = Torch.dataPointer(ofB);
                plan.runScaled(gpu.stream, outAddress, aAddress, bAddress, rows, columns);
                if (rows != scales.a() || columns != scales.b()) {
                    keep(ofA, ofB);
                }
            }
        }

        private void multiplyHalf(NDArray sums, NDArray left, NDArray right) {
            half.run(
                    gpu.stream,
                    Torch.dataPointer(sums),
                    Torch.dataPointer(left),
                    Torch.dataPointer(right));
            keep(sums, left, right);
        }

        /** Keeps temporary arrays for replays if the call is recorded into a graph. */
        private void keep(NDArray... arrays) {
            if (gpu.stream.isCapturing()) {
                gpu.stream.keepAlive(arrays);
            }
        }

        private CublasLtMatmul plan(boolean byRow) {
            return plans.computeIfAbsent(
                            byRow,
                            key -> gpu.cublas.planScaled(out, a, b, SCALED_MULTIPLE, key, fast))
                    .orElse(null);
        }

        @Override
        public void close() {
            if (half != null) {
                half.close();
            }
            for (Optional<CublasLtMatmul> plan : plans.values()) {
                plan.ifPresent(CublasLtMatmul::close); // Not on the CPU, which has no such class.
            }
        }
    }

    /** Prepares the reduction of parts: SUM, or AVG to divide the sum by their number. */
    public synchronized Reduction reduction(ScalarType type, long count, int parts, ReduceOp op) {
        if (gpu != null && RankOrderReducer.isSupported(gpu.cuda, type)) {
            if (gpu.reducer == null) {
                gpu.reducer =
                        new RankOrderReducer(gpu.cuda, new KernelCompiler(KernelCache.user()));
            }
            return (out, first, distance) ->
                    gpu.reducer.reduce(gpu.stream, type, out, first, distance, count, parts, op);
        }
        return (out, first, distance) ->
                libtorch.reduce(type, out, first, distance, count, parts, op);
    }

    /** Reduces parts that lie at equal distances, in rank order. */
    @FunctionalInterface
    public interface Reduction {

        /**
         * Reduces on the current stream; on the CPU, on the calling thread.
         *
         * @param distance from one part to the next, in bytes
         */
        void run(long out, long first, long distance);
    }

    /** A product with an inner dimension of 0, or without elements. Its layout is contiguous. */
    private record Zeros(Gpu gpu, Libtorch libtorch, long byteSize) implements Product {

        @Override
        public void run(long out, long a, long b, Scales scales) {
            if (gpu != null) {
                gpu.stream.memsetAsync(out, (byte) 0, byteSize);
            } else if (byteSize > 0) {
                libtorch.clear(out, byteSize);
            }
        }

        @Override
        public void close() {}
    }

    private record ByLibtorch(
            Libtorch libtorch, ScalarType type, MatrixLayout out, MatrixLayout a, MatrixLayout b)
            implements Product {

        @Override
        public void run(long outAddress, long aAddress, long bAddress, Scales scales) {
            libtorch.multiply(type, outAddress, out, aAddress, a, bAddress, b);
        }

        @Override
        public void close() {}
    }

    /**
     * Matmuls by cuBLASLt. Keeps a plan for each alignment of the addresses, because algorithms
     * depend on it.
     */
    private static final class ByCublas implements Product {

        private static final int MAX_ALIGNMENT = 16;

        private final Gpu gpu;
        private final ByLibtorch fallback;
        private final CublasLtMatmul[] plans =
                new CublasLtMatmul[5]; // by the exponent of the alignment
        private boolean fallsBack; // because cuBLASLt has no algorithm

        ByCublas(Gpu gpu, ByLibtorch fallback) {
            this.gpu = gpu;
            this.fallback = fallback;
        }

        @Override
        public void run(long out, long a, long b, Scales scales) {
            int power = Long.numberOfTrailingZeros(out | a | b | MAX_ALIGNMENT);
            if (plans[power] == null && !fallsBack) {
                ScalarType type = fallback.type;
                plans[power] =
                        gpu.cublas
                                .plan(type, type, fallback.out, fallback.a, fallback.b, 1 << power)
                                .orElse(null);
                fallsBack = plans[power] == null;
            }
            if (fallsBack) {
                fallback.run(out, a, b, null);
            } else {
                plans[power].run(gpu.stream, out, a, b);
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

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.Device;
import java.util.Map;
import org.djlx.fusedops.kernel.Product;
import org.djlx.fusedops.kernel.RmsNormKernels;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaMemory;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelConstants.Layout;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.LaunchSize;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Launches the kernels of {@code quantize.cu} on the current stream of one GPU, for elements of one
 * 16-bit type. They round to the nearest number. Not thread-safe.
 */
final class QuantizeKernels implements AutoCloseable {

    /** The numbers of a set with 4 bits. */
    static final int SET;

    private static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "quantize/quantize.cu");
    private static final int STATIC_BYTES = 1024; // at least the kernels' static shared memory
    private static final int PACK = 8; // elements of a thread at a time
    private static final int ROW_THREADS; // the most for a row in e4m3
    private static final int NORM_THREADS;
    private static final int GROUP_THREADS;
    private static final int WARP;
    private static final int SET_WORDS;
    private static final Layout NORMED;
    private static final Layout QUANTIZED;

    static {
        KernelConstants constants = new KernelConstants(SOURCE);
        SET = constants.value("SET");
        SET_WORDS = constants.value("SET_BYTES") / Integer.BYTES;
        ROW_THREADS = constants.value("ROW_THREADS");
        NORM_THREADS = constants.value("NORM_THREADS");
        GROUP_THREADS = constants.value("GROUP_THREADS");
        WARP = constants.value("WARP");
        NORMED = constants.struct("Normed");
        QUANTIZED = constants.struct("Quantized");
    }

    private final Device gpu;
    private final CudaDevice device;
    private final CurrentStreams streams;
    private final CudaModule module;
    private final Map<Integer, CudaKernel> quantize; // by the bits
    private final CudaKernel activate;
    private final CudaKernel norm;
    private final CudaKernel dequantize;
    private final CudaKernel pack;
    private final KernelArguments arguments = new KernelArguments();

    /** For float16 or bfloat16, and weights of 4 bits in a format. */
    QuantizeKernels(Device gpu, ScalarType type, WeightFormat format) {
        this.gpu = gpu;
        device = CudaDevice.open(gpu);
        streams = new CurrentStreams(device);
        module = new KernelCompiler(KernelCache.user()).load(device, SOURCE, format.options());
        quantize =
                Map.of(
                        8,
                        module.kernels("quantize_fp8").get(type),
                        4,
                        module.kernels("quantize_int4").get(type));
        activate = module.kernels("activate_fp8").get(type);
        norm = module.kernels("norm_fp8").get(type);
        dequantize = module.kernels("dequantize_int4").get(type);
        pack = module.kernel("pack_int4");
        int most = device.attribute(CudaAttribute.MAX_SHARED_MEMORY_PER_BLOCK) - STATIC_BYTES;
        quantize.get(8).allowSharedMemory(most);
        activate.allowSharedMemory(most);
        norm.allowSharedMemory(most);
    }

    /**
     * A matrix, by address.
     *
     * @param bits 8 for e4m3 with a scale for each row; 4 for groups with a scale each; 16 for one
     *     that is not quantized
     * @param scales float32, {@link WeightFormat#rowScales} for each row; not used with 16 bits
     * @param depth the elements of a row, a multiple of 8
     */
    record Matrix(int bits, long elements, long scales, long rows, long depth) {}

    Device gpu() {
        return gpu;
    }

    /** {@return new memory of the GPU, to be closed} */
    NativeMemory allocate(long byteSize) {
        return CudaMemory.allocate(device, byteSize);
    }

    /** Quantizes rows at a contiguous address, aligned to 16 bytes. */
    void quantize(long from, Matrix to) {
        if (to.bits == 8) {
            launchRow(quantize.get(8), from, to);
        } else {
            launch(quantize.get(4), to.rows * sets(to) * WARP, from, to);
        }
    }

    /** Packs rows of blocks of {@code CpuKernels.INT4_ZEROS} on this GPU. */
    void pack(long blocks, Matrix to) {
        launch(pack, to.rows * sets(to) * SET_WORDS, blocks, to);
    }

    private static long sets(Matrix of) {
        return (of.depth + SET - 1) / SET;
    }

    /**
     * Computes {@code silu(gates) * values} of rows, which have the gates and then the values,
     * rounds to 16 bits, and quantizes to e4m3.
     */
    void activate(long both, Matrix to) {
        launchRow(activate, both, to);
    }

    /** Converts a matrix of 4 bits to contiguous rows of 16 bits. */
    void dequantize(Matrix from, long to) {
        launch(dequantize, from.rows * from.depth / PACK, to, from);
    }

    /**
     * Adds a partial sum, times the scales of its rows and columns unless they are null, to the
     * residual, and quantizes the RMSNorm of the result, rounded to 16 bits, to e4m3. {@code norm}
     * of the rows is not used; the scales of rows may be those of {@code to}.
     */
    void norm(RmsNormKernels.Rows of, Product.Scales scales, float epsilon, Matrix to) {
        arguments
                .clear()
                .addStruct(NORMED)
                .put("new_residual", of.newResidual())
                .put("quantized", to.elements)
                .put("scales", to.scales)
                .put("addend", of.partial())
                .put("row_scales", scales == null ? 0 : scales.a())
                .put("column_scales", scales == null ? 0 : scales.b())
                .put("residual", of.residual())
                .put("weight", of.weight())
                .put("hidden", of.hidden())
                .put("epsilon", epsilon);
        norm.launch(streams.get(), rowSize(NORM_THREADS, to), arguments);
    }

    private void launchRow(CudaKernel kernel, long from, Matrix of) {
        launch(kernel, rowSize(ROW_THREADS, of), from, of);
    }

    private static LaunchSize rowSize(int mostThreads, Matrix of) {
        long packs = of.depth / PACK;
        int threads = (int) Math.min(mostThreads, (packs + WARP - 1) / WARP * WARP);
        return LaunchSize.of(Math.toIntExact(of.rows), threads)
                .withShared(Math.toIntExact(of.depth * Short.BYTES))
                .asDependent();
    }

    private void launch(CudaKernel kernel, long threads, long elements, Matrix of) {
        int blocks = Math.toIntExact((threads + GROUP_THREADS - 1) / GROUP_THREADS);
        launch(kernel, LaunchSize.of(blocks, GROUP_THREADS), elements, of);
    }

    private void launch(CudaKernel kernel, LaunchSize size, long elements, Matrix of) {
        arguments
                .clear()
                .addStruct(QUANTIZED)
                .put("elements", elements)
                .put("quantized", of.elements)
                .put("scales", of.scales)
                .put("rows", of.rows)
                .put("depth", of.depth);
        kernel.launch(streams.get(), size, arguments);
    }

    @Override
    public void close() {
        module.close();
        streams.close();
        device.close();
    }
}

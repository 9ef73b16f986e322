// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.kernel;

import java.util.Map;
import org.djlx.collectives.ReduceOp;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.LaunchSize;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Launches the kernels of {@code reduce.cu}: they sum parts that lie at equal distances in GPU
 * memory, in rank order, in float32 with one rounding. Not thread-safe.
 */
public final class RankOrderReducer implements AutoCloseable {

    private static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "reduce/reduce.cu");
    private static final int THREADS = new KernelConstants(SOURCE).value("REDUCE_THREADS");
    private static final int MAX_BLOCKS = 528; // four for each SM of an H200

    private final CudaModule module;
    private final Map<ScalarType, CudaKernel> kernels;
    private final KernelArguments arguments = new KernelArguments();

    RankOrderReducer(CudaDevice device, KernelCompiler compiler) {
        module = compiler.load(device, SOURCE);
        kernels = module.kernels("reduce");
    }

    /** Returns whether a GPU has kernels that reduce a type, without compiling them. */
    public static boolean isSupported(CudaDevice device, ScalarType type) {
        return switch (type) {
            case FLOAT32, FLOAT16 -> true;
            case BFLOAT16 -> device.hasBfloat16();
            default -> false;
        };
    }

    /**
     * Enqueues a reduction.
     *
     * @param type the element type, {@linkplain #isSupported supported} by the GPU
     * @param distance from one part to the next, in bytes
     * @param op SUM, or AVG to divide the sum by the number of parts
     */
    void reduce(
            CudaStream stream,
            ScalarType type,
            long out,
            long first,
            long distance,
            long count,
            int parts,
            ReduceOp op) {
        if (count == 0) {
            return;
        }
        long packs = (count * type.itemSize() + 15) / 16;
        int blocks = (int) Math.min(MAX_BLOCKS, (packs + THREADS - 1) / THREADS);
        arguments
                .clear()
                .add(out)
                .add(first)
                .add(distance)
                .add(count)
                .add(parts)
                .add(op == ReduceOp.AVG ? (float) parts : 1f);
        kernels.get(type).launch(stream, LaunchSize.of(blocks, THREADS), arguments);
    }

    @Override
    public void close() {
        module.close();
    }
}

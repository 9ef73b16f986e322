/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Reductions;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaKernel;
import org.djlx.nativeops.CudaModule;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.KernelArguments;
import org.djlx.nativeops.KernelCompiler;
import org.djlx.nativeops.KernelSource;
import org.djlx.nativeops.LaunchSize;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * Sums parts that lie in one GPU's memory at equal distances, in rank order, in float32, with one
 * rounding; in one pass, by a kernel. float64 is left to libtorch.
 */
public final class RankOrderReducer {

    private static final int THREADS = 512;
    private static final int MAX_BLOCKS = 528; // four for each multiprocessor of an H200
    private static final Map<ScalarType, String> KERNELS =
            Map.of(
                    ScalarType.FLOAT32, "reduce_float32",
                    ScalarType.FLOAT16, "reduce_float16",
                    ScalarType.BFLOAT16, "reduce_bfloat16");

    private final CudaModule module;
    private final Map<ScalarType, CudaKernel> kernels = new EnumMap<>(ScalarType.class);

    RankOrderReducer(CudaDevice device, KernelCompiler compiler) {
        module =
                compiler.load(
                        device, KernelSource.ofResource(NativeLibrary.class, "reduce/reduce.cu"));
        // Loaded now: later, streams may wait for other ranks, and loading for the streams.
        KERNELS.forEach((type, name) -> kernels.put(type, module.kernel(name)));
    }

    /**
     * Reduces on a stream.
     *
     * @param stream the current stream, where it is enqueued
     * @param out where the result goes, contiguous
     * @param parts what the ranks contributed, in rank order, contiguous
     * @param op {@link ReduceOp#SUM} or {@link ReduceOp#AVG}
     */
    public void reduce(CudaStream stream, NDArray out, List<NDArray> parts, ReduceOp op) {
        ScalarType type = Torch.scalarType(out);
        CudaKernel kernel = kernels.get(type);
        long count = out.getShape().size();
        if (count == 0) {
            return;
        }
        if (kernel == null) {
            Reductions.reduce(out, parts, op);
            return;
        }
        long first = Torch.dataPointer(parts.get(0));
        long stride = parts.size() == 1 ? 0 : Torch.dataPointer(parts.get(1)) - first;
        long packs = (count * type.itemSize() + 15) / 16;
        int blocks = (int) Math.min(MAX_BLOCKS, (packs + THREADS - 1) / THREADS);
        KernelArguments arguments =
                new KernelArguments()
                        .add(Torch.dataPointer(out))
                        .add(first)
                        .add(stride)
                        .add(count)
                        .add(parts.size())
                        .add(op == ReduceOp.AVG ? (float) parts.size() : 1f);
        kernel.launch(stream, LaunchSize.of(blocks, THREADS), arguments);
    }

    void close() {
        module.close();
    }
}

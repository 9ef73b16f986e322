// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CyclicBarrier;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.GpuTopology;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** Sets the epochs of a group to a few before 2³², as after so many operations. */
public final class Epochs {

    private static final int BEFORE_THE_END = -6;

    private static final int EPOCH =
            new KernelConstants(
                            KernelSource.ofResource(
                                    NativeLibrary.class, "all_reduce/all_reduce.cu"))
                    .struct("Control")
                    .offset("epoch");

    private Epochs() {}

    /**
     * Sets all counts and words of this rank; called by all ranks, which are threads.
     *
     * @param options those of the group, whose GPUs are linked by NVLink
     * @param step a barrier of all ranks
     */
    public static void nearTheEnd(ProcessGroup group, CudaP2pOptions options, CyclicBarrier step) {
        P2pLinks links = P2pLinks.of(GpuTopology.Kind.FULLY_CONNECTED_NVLINK, group.worldSize());
        RegionLayout layout = new RegionLayout(options, links);
        P2pBuffers buffers = group.p2pBuffers().orElseThrow();
        long region = buffers.address(group.rank(), 0) - layout.buffer();
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
                CudaDevice device = CudaDevice.open(group.device())) {
            device.synchronize();
            NDArray epoch = words(group, manager, region + EPOCH, 1);
            int launches = epoch.toIntArray()[0];
            assertTrue(launches >= 0 && launches < 100, "not a count of launches: " + launches);
            await(step);
            fill(manager, epoch);
            long signals = layout.signal(0, 0);
            long size = layout.signal(RegionLayout.ROWS, 0) - signals;
            fill(manager, words(group, manager, region + signals, size));
            long flags = layout.buffer() - layout.flags();
            fill(manager, words(group, manager, region + layout.flags(), flags));
            device.synchronize();
            await(step);
        }
    }

    private static NDArray words(
            ProcessGroup group, NDManager manager, long address, long byteSize) {
        long size = Math.max(Integer.BYTES, byteSize);
        NativeMemory memory = new NativeMemory(address, size, group.device(), () -> {});
        Shape shape = new Shape(size / Integer.BYTES);
        return Torch.view(manager, memory, 0, shape, ScalarType.INT32);
    }

    private static void fill(NDManager manager, NDArray words) {
        int[] values = new int[(int) words.size()];
        Arrays.fill(values, BEFORE_THE_END);
        Torch.copy(words, manager.create(values));
    }

    private static void await(CyclicBarrier step) {
        try {
            step.await();
        } catch (InterruptedException | BrokenBarrierException e) {
            throw new IllegalStateException(e);
        }
    }
}

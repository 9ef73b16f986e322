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

/** Sets the epochs of a group, as after billions of operations. */
public final class Epochs {

    private static final KernelConstants.Layout CONTROL =
            new KernelConstants(
                            KernelSource.ofResource(
                                    NativeLibrary.class, "all_reduce/all_reduce.cu"))
                    .struct("Control");

    private Epochs() {}

    /**
     * Sets all counts and words of this rank; called by all ranks, which are threads.
     *
     * @param options those of the group, whose GPUs are linked by NVLink
     * @param step a barrier of all ranks
     * @param epoch of the last operation
     * @param rare the epoch in words that not every operation uses: channels and flags
     */
    public static void set(
            ProcessGroup group, CudaP2pOptions options, CyclicBarrier step, long epoch, long rare) {
        P2pLinks links = P2pLinks.of(GpuTopology.Kind.FULLY_CONNECTED_NVLINK, group.worldSize());
        RegionLayout layout = new RegionLayout(options, links);
        P2pBuffers buffers = group.p2pBuffers().orElseThrow();
        long region = buffers.address(group.rank(), 0) - layout.buffer();
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
                CudaDevice device = CudaDevice.open(group.device())) {
            device.synchronize();
            NDArray count = words(group, manager, region + CONTROL.offset("epoch"), Long.BYTES);
            long launches = count.toLongArray()[0];
            assertTrue(launches >= 0 && launches < 100, "not a count of launches: " + launches);
            await(step);
            fill(manager, count, epoch);
            long flags = CONTROL.offset("flags");
            fill(
                    manager,
                    words(group, manager, region + flags, CONTROL.offset("epoch") - flags),
                    rare);
            long channels = layout.signal(0, 0);
            long entered = layout.signal(RegionLayout.ENTERED, 0);
            long end = layout.signal(RegionLayout.ROWS, 0);
            fill(manager, words(group, manager, region + channels, entered - channels), rare);
            fill(manager, words(group, manager, region + entered, end - entered), epoch);
            long tiles = layout.flags();
            fill(manager, words(group, manager, region + tiles, layout.buffer() - tiles), rare);
            device.synchronize();
            await(step);
        }
    }

    private static NDArray words(
            ProcessGroup group, NDManager manager, long address, long byteSize) {
        NativeMemory memory = new NativeMemory(address, byteSize, group.device(), () -> {});
        Shape shape = new Shape(byteSize / Long.BYTES);
        return Torch.view(manager, memory, 0, shape, ScalarType.INT64);
    }

    private static void fill(NDManager manager, NDArray words, long value) {
        long[] values = new long[(int) words.size()];
        Arrays.fill(values, value);
        Torch.copy(words, manager.create(values));
    }

    static void await(CyclicBarrier step) {
        try {
            step.await();
        } catch (InterruptedException | BrokenBarrierException e) {
            throw new IllegalStateException(e);
        }
    }
}

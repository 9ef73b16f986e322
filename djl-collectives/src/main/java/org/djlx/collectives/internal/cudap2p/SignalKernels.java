/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import java.time.Duration;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.KernelStruct;
import org.djlx.nativeops.cuda.LaunchSize;

/**
 * Lets streams enter operations, raise signals and wait for them, by the kernels of {@code
 * signals.cu}: epochs are counted on the device, so graphs can replay them, and waits have a
 * deadline and end when the host says so. For one thread at a time.
 */
final class SignalKernels implements AutoCloseable {

    private static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "signals/signals.cu");
    private static final KernelConstants.Layout ENTERED =
            new KernelConstants(SOURCE).struct("Entered");

    private static final LaunchSize A_THREAD_EACH = LaunchSize.of(1, RegionLayout.MAX_RANKS);
    private static final LaunchSize ONE_THREAD = LaunchSize.of(1, 1);

    private final WaitStatus status;
    private final CudaModule module;
    private final CudaKernel enter;
    private final CudaKernel raise;
    private final CudaKernel await;
    private final KernelArguments arguments = new KernelArguments();
    private final KernelStruct entered;
    private final KernelStruct met;
    private final int rank;
    private final int others; // a bit for each
    private final P2pRegion region;

    SignalKernels(P2pRegion region, CudaDevice device, WaitStatus status, KernelCompiler compiler) {
        this.region = region;
        this.status = status;
        this.rank = region.rank();
        module = compiler.load(device, SOURCE);
        enter = module.kernel("enter");
        raise = module.kernel("signal_peer");
        await = module.kernel("wait_signals");
        entered = words(RegionLayout.ENTERED);
        met = words(RegionLayout.MET);
        others = (1 << region.ranks()) - 1 & ~(1 << rank);
    }

    /** struct Entered of a row. */
    private KernelStruct words(int row) {
        KernelStruct words = new KernelStruct(ENTERED.byteSize());
        for (int peer = 0; peer < region.ranks(); peer++) {
            words.put(ENTERED.offset("words") + peer * Long.BYTES, address(peer, row, 0));
        }
        return words.put(ENTERED.offset("distance"), RegionLayout.LINE)
                .put(ENTERED.offset("rank"), rank)
                .put(ENTERED.offset("ranks"), region.ranks());
    }

    /** Begins to compile the kernels, while the caller does something else. */
    static void prepare(CudaDevice device, KernelCompiler compiler) {
        compiler.prepare(device, SOURCE);
    }

    /**
     * Where ranks tell a rank which operation they have entered, {@link RegionLayout#LINE}s apart.
     */
    long entered(int on) {
        return address(on, RegionLayout.ENTERED, 0);
    }

    /** The address of the words by which waits end, and tell who did not come. */
    long status() {
        return status.address();
    }

    /**
     * Lets a stream enter an operation, of which it tells the others.
     *
     * @param stream where
     */
    void enter(CudaStream stream) {
        enter.launch(stream, A_THREAD_EACH, arguments.clear().add(entered));
    }

    /**
     * Lets a stream wait until all other ranks have entered the operation that this rank has: what
     * was before on their streams has ended then.
     *
     * @param stream where
     * @param timeout how long to wait
     */
    void awaitEntered(CudaStream stream, Duration timeout) {
        await(stream, RegionLayout.ENTERED, others, count(RegionLayout.ENTERED), timeout);
    }

    /**
     * Lets a stream wait for all other ranks within an operation, whose signals stay as they are.
     *
     * @param stream where
     * @param timeout how long to wait
     */
    void meet(CudaStream stream, Duration timeout) {
        enter.launch(stream, A_THREAD_EACH, arguments.clear().add(met));
        await(stream, RegionLayout.MET, others, count(RegionLayout.MET), timeout);
    }

    /**
     * Lets a stream raise this rank's signal on a rank.
     *
     * @param stream where
     * @param peer the rank
     * @param channel the channel
     */
    void raise(CudaStream stream, int peer, int channel) {
        long word = address(peer, channel, rank);
        arguments.clear().add(word).add(count(RegionLayout.ENTERED));
        raise.launch(stream, ONE_THREAD, arguments);
    }

    /**
     * Lets a stream wait for signals.
     *
     * @param stream where
     * @param channel their channel
     * @param ranks a bit for each rank to wait for
     * @param timeout how long to wait
     */
    void await(CudaStream stream, int channel, int ranks, Duration timeout) {
        await(stream, channel, ranks, count(RegionLayout.ENTERED), timeout);
    }

    private void await(CudaStream stream, int row, int ranks, long count, Duration timeout) {
        if (ranks == 0) {
            return;
        }
        arguments
                .clear()
                .add(address(rank, row, 0))
                .add(RegionLayout.LINE)
                .add(ranks)
                .add(count)
                .add(status.address())
                .add(timeout.toNanos());
        await.launch(stream, A_THREAD_EACH, arguments);
    }

    /** Where this rank counts what it tells others in a row. */
    private long count(int row) {
        return address(rank, row, rank);
    }

    /** The word on a rank that another raises. */
    private long address(int on, int row, int source) {
        return region.address(on) + region.layout().signal(row, source);
    }

    @Override
    public void close() {
        module.close();
    }
}

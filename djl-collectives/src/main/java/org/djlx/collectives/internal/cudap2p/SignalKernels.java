// SPDX-License-Identifier: Apache-2.0
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
 * Launches the kernels of {@code signals.cu}: streams use them to enter operations, signal and
 * wait. The device counts epochs, so graphs can replay the kernels. Waits have a deadline, and end
 * when the host stops them. Thread-safe: a helper may launch on the group's stream.
 */
final class SignalKernels implements AutoCloseable {

    private static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "signals/signals.cu");
    private static final KernelConstants.Layout ENTERED =
            new KernelConstants(SOURCE).struct("Entered");

    private static final LaunchSize THREAD_PER_RANK = LaunchSize.of(1, RegionLayout.MAX_RANKS);
    private static final LaunchSize EXCHANGE = LaunchSize.of(1, 256);
    private static final LaunchSize ONE_THREAD = LaunchSize.of(1, 1);

    private final WaitStatus status;
    private final CudaModule module;
    private final CudaKernel enter;
    private final CudaKernel signal;
    private final CudaKernel await;
    private final CudaKernel meet;
    private final CudaKernel exchange;
    private final KernelArguments arguments = new KernelArguments();
    private final KernelStruct entered;
    private final KernelStruct met;
    private final int rank;
    private final int peers; // bit mask
    private final P2pRegion region;

    SignalKernels(P2pRegion region, CudaDevice device, WaitStatus status, KernelCompiler compiler) {
        this.region = region;
        this.status = status;
        this.rank = region.rank();
        module = compiler.load(device, SOURCE);
        enter = module.kernel("enter");
        signal = module.kernel("signal_peer");
        await = module.kernel("wait_signals");
        meet = module.kernel("meet");
        exchange = module.kernel("exchange");
        entered = words(RegionLayout.ENTERED);
        met = words(RegionLayout.MET);
        peers = (1 << region.ranks()) - 1 & ~(1 << rank);
    }

    private KernelStruct words(int row) {
        KernelStruct words = new KernelStruct(ENTERED.byteSize());
        for (int peer = 0; peer < region.ranks(); peer++) {
            words.put(ENTERED.offset("words") + peer * Long.BYTES, address(peer, row, 0));
        }
        return words.put(ENTERED.offset("distance"), RegionLayout.LINE)
                .put(ENTERED.offset("rank"), rank)
                .put(ENTERED.offset("ranks"), region.ranks());
    }

    /** Starts to compile the kernels in the background. */
    static void prepare(CudaDevice device, KernelCompiler compiler) {
        compiler.prepare(device, SOURCE);
    }

    /** Returns the address of row ENTERED on a rank; words are {@link RegionLayout#LINE} apart. */
    long entered(int on) {
        return address(on, RegionLayout.ENTERED, 0);
    }

    /** Returns the address of the {@link WaitStatus}. */
    long status() {
        return status.address();
    }

    /** Enters an operation on a stream, and signals that to the peers. */
    synchronized void enter(CudaStream stream) {
        enter.launch(stream, THREAD_PER_RANK, arguments.clear().add(entered));
    }

    /**
     * Lets a stream wait until all peers have entered the operation that this rank has entered.
     * Earlier work on their streams has ended then.
     */
    void awaitEntered(CudaStream stream, Duration timeout) {
        await(stream, RegionLayout.ENTERED, peers, count(RegionLayout.ENTERED), timeout);
    }

    /** Enqueues a barrier of all ranks within an operation, without using its channels. */
    void meet(CudaStream stream, Duration timeout) {
        meet(stream, peers | 1 << rank, timeout);
    }

    /**
     * Enqueues a barrier of some ranks, a bit mask that is the same on each of them, without using
     * the operation's channels.
     */
    synchronized void meet(CudaStream stream, int ranks, Duration timeout) {
        arguments.clear().add(met).add(ranks).add(status.address()).add(timeout.toNanos());
        meet.launch(stream, THREAD_PER_RANK, arguments);
    }

    /**
     * Enters an operation on a stream, sends a part to the same offset in the buffers of all ranks,
     * and lets the stream wait for the parts of the peers. Uses channel 0.
     */
    synchronized void exchange(
            CudaStream stream, long offset, long part, long byteSize, Duration timeout) {
        RegionLayout layout = region.layout();
        long row = layout.signal(RegionLayout.ENTERED, 0);
        arguments.clear().add(entered).add(layout.signal(0, 0) - row);
        arguments.add(layout.buffer() + offset - row).add(part).add(byteSize);
        arguments.add(status.address()).add(timeout.toNanos());
        exchange.launch(stream, EXCHANGE, arguments);
    }

    synchronized void signal(CudaStream stream, int peer, int channel) {
        long word = address(peer, channel, rank);
        arguments.clear().add(word).add(count(RegionLayout.ENTERED));
        signal.launch(stream, ONE_THREAD, arguments);
    }

    /** Lets a stream wait for signals of some ranks, a bit mask. */
    void await(CudaStream stream, int channel, int ranks, Duration timeout) {
        await(stream, channel, ranks, count(RegionLayout.ENTERED), timeout);
    }

    private synchronized void await(
            CudaStream stream, int row, int ranks, long count, Duration timeout) {
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
        await.launch(stream, THREAD_PER_RANK, arguments);
    }

    /** Returns the address of this rank's own count in a row. */
    private long count(int row) {
        return address(rank, row, rank);
    }

    /** Returns the address of the word on a rank that a source rank signals. */
    private long address(int on, int row, int source) {
        return region.address(on) + region.layout().signal(row, source);
    }

    @Override
    public void close() {
        module.close();
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.IntStream;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.cudap2p.AllReduceKernels.Algorithm;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.p2p.OneShotSlots;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.GpuTopology;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.LaunchSize;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Launches the kernels of {@code collectives.cu} for one rank: on the group's stream, on callers'
 * streams, and into graphs. Any thread may launch; launches are serialized. Sizes and addresses are
 * in bytes.
 */
final class ExchangeKernels implements Exchange, AutoCloseable {

    private static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "collectives/collectives.cu");
    private static final long PACK = 16;
    private static final long PACK_AND_ESCAPE = PACK + Integer.BYTES;

    // Kernels beside computation: on 2 H200s, 32 blocks of 1024 threads move 32 MiB in 109 us and
    // 100 blocks in 103.
    private static final int FEW_BLOCKS = 32;

    // The links of a GPU move about this many bytes in the time of a launch.
    private static final long LAUNCH_BYTES = 1 << 20;

    // Offsets of the members of struct Parts, in words.
    private static final KernelConstants.Layout PARTS = new KernelConstants(SOURCE).struct("Parts");
    private static final int SEND = PARTS.offset("send") / Long.BYTES;
    private static final int RECEIVE = PARTS.offset("receive") / Long.BYTES;
    private static final int SEND_BYTES = PARTS.offset("send_bytes") / Long.BYTES;
    private static final int RECEIVE_BYTES = PARTS.offset("receive_bytes") / Long.BYTES;
    private static final int SEND_PACKS = PARTS.offset("send_packs") / Long.BYTES;
    private static final int RECEIVE_PACKS = PARTS.offset("receive_packs") / Long.BYTES;
    private static final int ROUND_PACKS = PARTS.offset("round_packs") / Long.BYTES;
    private static final int POSITIONS = PARTS.offset("positions") / Long.BYTES;
    private static final int ROUNDS = PARTS.offset("rounds") / Long.BYTES;
    private static final int SLOT_PACKS = PARTS.offset("slot_packs") / Long.BYTES;

    private final AllReduceKernels launchSizes;
    private final int rank;
    private final int ranks;
    private final long slot; // bytes; reductions use all of it
    private final long slotPacks; // packs that fit beside their escape words; 0 without slots
    private final int threads;
    private final OneShotSlots slots;
    private final CudaModule module;
    private final Move gather; // sends one part to all ranks
    private final Move exchange; // sends a part to each rank
    private final Map<ScalarType, CudaKernel> reduceScatters;
    private final Map<ScalarType, CudaKernel> sums;

    // Guarded by this.
    private final long[] parts = new long[PARTS.byteSize() / Long.BYTES];
    private final KernelArguments arguments = new KernelArguments();
    private Duration timeout = Duration.ZERO;
    private long[] launchStruct; // struct Launch with this timeout
    private boolean ended;

    /** The kernels of a move: for parts of whole packs, and for parts of any size. */
    private record Move(CudaKernel packs, CudaKernel bytes) {}

    ExchangeKernels(
            P2pRegion region,
            CudaDevice device,
            WaitStatus status,
            KernelCompiler compiler,
            AllReduceKernels launchSizes) {
        this.launchSizes = launchSizes;
        rank = region.rank();
        ranks = region.ranks();
        RegionLayout layout = region.layout();
        boolean linked = region.links().kind() == GpuTopology.Kind.FULLY_CONNECTED_NVLINK;
        slot = linked ? layout.slot(Algorithm.ONE_SHOT) : 0;
        slotPacks = slot / PACK_AND_ESCAPE;
        parts[SLOT_PACKS] = slotPacks;
        slots =
                new OneShotSlots(
                        0,
                        status.address(),
                        IntStream.range(0, ranks).mapToLong(region::address).toArray(),
                        layout.begin(Algorithm.ONE_SHOT),
                        layout.half(Algorithm.ONE_SHOT),
                        slot);
        String defined = "-DRANKS=" + ranks;
        threads = new KernelConstants(SOURCE, defined).value("COLLECTIVE_THREADS");
        module = compiler.load(device, SOURCE, defined);
        gather = new Move(module.kernel("gather_packs"), module.kernel("gather_bytes"));
        exchange = new Move(module.kernel("exchange_packs"), module.kernel("exchange_bytes"));
        reduceScatters = module.kernels("reduce_scatter");
        sums = module.kernels("sum_parts");
    }

    /** Starts to compile the kernels in the background. */
    static void prepare(CudaDevice device, KernelCompiler compiler, int ranks) {
        compiler.prepare(device, SOURCE, "-DRANKS=" + ranks);
    }

    /** Returns the names of the kernels that not every GPU can run. */
    Set<String> names() {
        Set<String> names = new TreeSet<>();
        reduceScatters.values().forEach(kernel -> names.add(kernel.name()));
        sums.values().forEach(kernel -> names.add(kernel.name()));
        return names;
    }

    /** Keeps only these of {@link #names}, which the GPUs of all ranks can run. */
    void retain(Set<String> names) {
        reduceScatters.values().removeIf(kernel -> !names.contains(kernel.name()));
        sums.values().removeIf(kernel -> !names.contains(kernel.name()));
    }

    /** Returns whether the kernels can move tensors; the same on all ranks. */
    boolean isPossible() {
        return ranks > 1 && slotPacks > 0;
    }

    /** Returns whether a reduce-scatter is possible; the same on all ranks. */
    boolean canReduceScatter(ScalarType type, ReduceOp op) {
        return isPossible() && canSum(type, op) && reduceScatters.containsKey(type);
    }

    @Override
    public synchronized void gather(
            Run run, long input, long[] outputs, long byteSize, long place) {
        for (int peer = 0; peer < ranks; peer++) {
            send(peer, input, byteSize);
            receive(peer, outputs[peer], byteSize);
        }
        if (outputs[rank] == input) {
            receive(rank, 0, 0);
        }
        move(run, gather);
    }

    @Override
    public synchronized void broadcast(Run run, long tensor, long byteSize, int root) {
        // The root's links carry the tensor ranks - 1 times, or with a scatter and an all-gather
        // 2 (ranks - 1) / ranks times.
        if ((double) byteSize * (ranks - 1) * (ranks - 2) / ranks > LAUNCH_BYTES) {
            scatterAndGather(run, tensor, byteSize, root);
            return;
        }
        for (int peer = 0; peer < ranks; peer++) {
            send(peer, tensor, rank == root ? byteSize : 0);
            receive(peer, tensor, peer == root && rank != root ? byteSize : 0);
        }
        move(run, gather);
    }

    private void scatterAndGather(Run run, long tensor, long byteSize, int root) {
        long part = (byteSize + ranks - 1) / ranks;
        part = (part + PACK - 1) / PACK * PACK;
        for (int peer = 0; peer < ranks; peer++) {
            long own = peer == root ? 0 : size(byteSize, part, peer);
            send(peer, tensor + peer * part, rank == root ? own : 0);
            long received = peer == root && rank != root ? size(byteSize, part, rank) : 0;
            receive(peer, tensor + rank * part, received);
        }
        move(run, exchange);
        for (int peer = 0; peer < ranks; peer++) {
            send(peer, tensor + rank * part, size(byteSize, part, rank));
            // The root has all parts, so it drops those that it receives.
            long address = rank == root ? 0 : tensor + peer * part;
            receive(peer, address, peer == rank ? 0 : size(byteSize, part, peer));
        }
        move(run, gather, part);
    }

    private static long size(long whole, long part, int index) {
        return Math.max(0, Math.min(part, whole - index * part));
    }

    /** Enqueues an all-to-all. The sizes may differ between ranks. */
    synchronized void exchange(
            Run run, long[] inputs, long[] inputSizes, long[] outputs, long[] outputSizes) {
        for (int peer = 0; peer < ranks; peer++) {
            send(peer, inputs[peer], inputSizes[peer]);
            receive(peer, outputs[peer], outputSizes[peer]);
        }
        move(run, exchange);
    }

    @Override
    public synchronized void reduceScatter(
            Run run, long[] inputs, long output, long count, ScalarType type, ReduceOp op) {
        long itemSize = type.itemSize();
        long most = slot / itemSize;
        for (long done = 0; done < count; done += most) {
            long size = Math.min(most, count - done);
            for (int peer = 0; peer < ranks; peer++) {
                send(peer, inputs[peer] + done * itemSize, size * itemSize);
            }
            arguments(run).add(output + done * itemSize).add(size).add(divisor(op));
            launch(run, reduceScatters.get(type), packs(size * itemSize));
        }
    }

    /** Returns whether {@link #sum} has a reduction; the same on all ranks. */
    boolean canSum(ScalarType type, ReduceOp op) {
        return (op == ReduceOp.SUM || op == ReduceOp.AVG) && sums.containsKey(type);
    }

    private float divisor(ReduceOp op) {
        return op == ReduceOp.AVG ? ranks : 1;
    }

    /** Enqueues the sum of parts in this GPU's memory, in rank order. Waits for no rank. */
    synchronized void sum(
            CudaStream stream,
            long[] sources,
            long output,
            long count,
            ScalarType type,
            ReduceOp op) {
        System.arraycopy(sources, 0, parts, SEND, ranks);
        arguments.clear().addStruct(parts).add(output).add(count).add(divisor(op));
        LaunchSize size = launchSizes.size(packs(count * type.itemSize()), threads, FEW_BLOCKS);
        sums.get(type).launch(stream, size, arguments);
    }

    private void send(int peer, long address, long byteSize) {
        parts[SEND + peer] = address;
        parts[SEND_BYTES + peer] = byteSize;
    }

    private void receive(int peer, long address, long byteSize) {
        parts[RECEIVE + peer] = address;
        parts[RECEIVE_BYTES + peer] = byteSize;
    }

    /** Returns the arguments of all kernels; the caller adds those of its kernel. */
    private KernelArguments arguments(Run run) {
        if (ended) {
            throw GroupErrors.buffersDestroyed();
        }
        if (!timeout.equals(run.timeout())) {
            launchStruct = slots.launch(rank, run.timeout());
            timeout = run.timeout();
        }
        return arguments.clear().addStruct(launchStruct).addStruct(parts);
    }

    private void move(Run run, Move move) {
        move(run, move, 0);
    }

    /**
     * Enqueues the move of all parts, in the rounds of NOTE [rounds] in collectives.cu. A pair of
     * ranks counts its rounds by at least the largest size given; by the larger of its two parts if
     * it is 0.
     */
    private void move(Run run, Move move, long largest) {
        long bits = 0; // of all addresses and sizes, for their alignment
        long positions = 0;
        long mostRounds = 1;
        for (int peer = 0; peer < ranks; peer++) {
            long sent = Math.max(1, packs(parts[SEND_BYTES + peer]));
            long received = Math.max(1, packs(parts[RECEIVE_BYTES + peer]));
            long rounds = 1;
            long most = Math.max(packs(largest), Math.max(sent, received));
            if (most > slotPacks) {
                rounds = (most + slotPacks - 1) / slotPacks | 1; // odd: see NOTE [rounds]
                sent = most;
                received = most;
            }
            long round = (most + rounds - 1) / rounds;
            parts[SEND_PACKS + peer] = sent;
            parts[RECEIVE_PACKS + peer] = received;
            parts[ROUND_PACKS + peer] = round;
            positions = Math.max(positions, round);
            mostRounds = Math.max(mostRounds, rounds);
            bits |= parts[SEND + peer] | parts[RECEIVE + peer];
            bits |= parts[SEND_BYTES + peer] | parts[RECEIVE_BYTES + peer];
        }
        parts[POSITIONS] = positions;
        parts[ROUNDS] = mostRounds;
        arguments(run);
        launch(run, bits % PACK == 0 ? move.packs : move.bytes, positions);
    }

    private static long packs(long byteSize) {
        return (byteSize + PACK - 1) / PACK;
    }

    private void launch(Run run, CudaKernel kernel, long packs) {
        int most = run.few() ? FEW_BLOCKS : Integer.MAX_VALUE;
        kernel.launch(run.stream(), launchSizes.size(packs, threads, most), arguments);
    }

    /** Makes later launches throw. */
    synchronized void end() {
        ended = true;
    }

    @Override
    public void close() {
        module.close();
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.BooleanSupplier;
import java.util.function.IntPredicate;
import java.util.stream.IntStream;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.cpu.HostCollectives;
import org.djlx.collectives.spi.cpu.HostTensor;
import org.djlx.collectives.spi.cpu.Reducer;
import org.djlx.nativeops.host.SharedMemory;
import org.djlx.nativeops.mpi.MpiRequests;
import org.djlx.nativeops.torch.ScalarType;

/**
 * The collectives of one rank over MPI. Each rank first sends its call to all ranks, and compares
 * the calls that it receives: until then nothing has changed, and no data is in flight.
 *
 * <ul>
 *   <li>Small data travels in the call, so that the operation is one step.
 *   <li>Other data moves from tensor to tensor, with one non-blocking send and receive for each
 *       pair of ranks.
 *   <li>Reductions are the {@link Reducer}'s, in rank order, with the same bits on every rank. An
 *       all-reduce exchanges parts, reduces this rank's part, and exchanges the results. MPI's own
 *       reductions promise no order, and round 16-bit sums at every step.
 * </ul>
 */
final class MpiCollectives implements HostCollectives {

    // How many bytes of a reduction a rank receives at once: the caches hold them until they are
    // reduced. Smaller blocks cost more steps; those of many ranks are still worth a message.
    private static final long BLOCKS = 1 << 20;
    private static final long MIN_BLOCK = 64 << 10;

    // Larger broadcasts scatter parts and gather them: the root then sends its data about once.
    private static final long SCATTERED_BROADCAST = 64 << 10;

    // Up to as many bytes to receive, each rank reduces the whole tensor: a step less than parts.
    private static final long MAX_WHOLE = 64 << 10;

    // Memory that MPI may access until the process ends.
    private static final Queue<Memory> ORPHANS = new ConcurrentLinkedQueue<>();

    private final MpiGroup group;
    private final Reducer reducer;
    private final int rank;
    private final int worldSize;
    private final Backoff backoff = new Backoff();
    private final Transfers transfers = new Transfers();
    private final Transfers next = new Transfers();
    private final Transfers results = new Transfers();
    private final long blockSize; // a multiple of every element's size
    private Memory scratch = new Memory(BLOCKS); // contributions of other ranks
    private Memory reduced = new Memory(BLOCKS); // results for the root
    private boolean orphaned;

    MpiCollectives(MpiGroup group, Reducer reducer) {
        this.group = group;
        this.reducer = reducer;
        rank = group.rank();
        worldSize = group.worldSize();
        blockSize = Math.max(BLOCKS / Math.max(1, worldSize - 1) & -64, MIN_BLOCK);
    }

    @Override
    public void begin(Operation operation) {
        agree(operation, 0, 0);
        group.endCall();
    }

    @Override
    public void barrier(Operation operation) {
        begin(operation);
    }

    @Override
    public boolean takeOrphaned() {
        boolean was = orphaned;
        orphaned = false;
        return was;
    }

    /**
     * Sends this rank's call, with data, and waits for those of all ranks. The caller frees the
     * calls.
     *
     * @throws org.djlx.collectives.CollectiveMismatchException on all ranks, if the calls differ
     */
    private void agree(Operation operation, long data, int size) {
        group.sendToAll(letter -> letter.putCall(rank, operation.signature(), data, size));
        awaitCalls(operation);
    }

    private void awaitCalls(Operation operation) {
        IntPredicate missing = peer -> peer != rank && group.callOf(peer) == null;
        await(operation, group::hasCalls, missing, "did not arrive", true);
        boolean same = true;
        for (int peer = 0; peer < worldSize; peer++) {
            same &= peer == rank || group.callOf(peer).hasSignature(operation.signature());
        }
        if (!same) {
            List<long[]> calls =
                    IntStream.range(0, worldSize)
                            .mapToObj(
                                    peer ->
                                            peer == rank
                                                    ? operation.signature()
                                                    : group.callOf(peer).signature())
                            .toList();
            group.endCall();
            throw HostCollectives.mismatch(operation, calls);
        }
    }

    /**
     * Waits for other ranks.
     *
     * @param ordered whether a rank that has left cannot meet the condition any more; otherwise its
     *     data may still arrive
     */
    private void await(
            Operation operation,
            BooleanSupplier over,
            IntPredicate missing,
            String omission,
            boolean ordered) {
        backoff.reset();
        long begin = 0;
        while (!over.getAsBoolean()) {
            if (group.poll()) {
                backoff.reset();
                continue;
            }
            if (!backoff.isLong()) {
                backoff.pause(Long.MAX_VALUE);
                continue;
            }
            begin = begin == 0 ? System.nanoTime() : begin;
            long waited = System.nanoTime() - begin;
            long left = operation.timeout().toNanos() - waited;
            group.checkWait(operation, missing, omission, ordered, waited);
            backoff.pause(Math.max(left, 1));
        }
    }

    /**
     * Sends and receives that are waited for together. Those between two ranks match in the order
     * in which they start, which is the same on both.
     */
    private final class Transfers {

        private final MpiRequests requests = new MpiRequests();
        private int[] peers = new int[16]; // by request

        void receive(int peer, long address, long size) {
            start(false, peer, address, size);
        }

        void send(int peer, long address, long size) {
            start(true, peer, address, size);
        }

        private void start(boolean sends, int peer, long address, long size) {
            int before = requests.count();
            group.transfer(sends, requests, address, size, peer, MpiGroup.DATA);
            if (requests.count() > peers.length) {
                peers = Arrays.copyOf(peers, 2 * requests.count());
            }
            Arrays.fill(peers, before, requests.count(), peer);
        }

        void complete(Operation operation) {
            String omission = "did not send or receive its data";
            await(operation, () -> group.test(requests), this::isMoving, omission, false);
        }

        private boolean isMoving(int peer) {
            return IntStream.range(0, requests.count())
                    .anyMatch(i -> peers[i] == peer && !group.test(requests, i));
        }

        /** Returns whether MPI accesses no memory any more. */
        boolean cancel() {
            return group.cancel(requests);
        }
    }

    /** Runs what moves data. If it fails, stops the transfers; the group is then broken. */
    private void move(Runnable body) {
        try {
            body.run();
        } catch (RuntimeException | Error e) {
            if (!(transfers.cancel() & next.cancel() & results.cancel())) {
                orphaned = true;
                ORPHANS.addAll(List.of(scratch, reduced));
            }
            throw e;
        }
    }

    /** Exchanges memory between all pairs of ranks; a null array has nothing to send or receive. */
    private void exchange(Operation operation, Extent[] outputs, Extent[] inputs) {
        start(transfers, outputs, inputs);
        if (outputs != null && inputs != null) {
            copy(outputs[rank].address(), inputs[rank].address(), inputs[rank].size());
        }
        transfers.complete(operation);
    }

    private void start(Transfers to, Extent[] outputs, Extent[] inputs) {
        for (int i = 1; outputs != null && i < worldSize; i++) {
            int peer = (rank + worldSize - i) % worldSize;
            to.receive(peer, outputs[peer].address(), outputs[peer].size());
        }
        for (int i = 1; inputs != null && i < worldSize; i++) {
            int peer = (rank + i) % worldSize;
            to.send(peer, inputs[peer].address(), inputs[peer].size());
        }
    }

    private static void copy(long destination, long source, long size) {
        if (destination != source && size > 0) {
            SharedMemory.copy(destination, source, size);
        }
    }

    private Extent[] extents(long[] addresses, long size) {
        Extent[] extents = new Extent[worldSize];
        for (int peer = 0; peer < worldSize; peer++) {
            extents[peer] = new Extent(addresses[peer], size);
        }
        return extents;
    }

    private Extent[] same(long address, long size) {
        Extent[] extents = new Extent[worldSize];
        Arrays.fill(extents, new Extent(address, size));
        return extents;
    }

    private long scratch(long size) {
        if (scratch.size() < size) {
            scratch = new Memory(size);
        }
        return Pointer.nativeValue(scratch);
    }

    private boolean fits(long size) {
        return size <= group.maxPayload();
    }

    private boolean fitsReduced(long size) {
        return fits(size) && size * (worldSize - 1) <= MAX_WHOLE;
    }

    /** Returns the address of each rank's data in its call; for this rank, {@code own}. */
    private long[] payloads(long own) {
        long[] addresses = new long[worldSize];
        for (int peer = 0; peer < worldSize; peer++) {
            addresses[peer] = peer == rank ? own : group.callOf(peer).payload();
        }
        return addresses;
    }

    @Override
    public void broadcast(Operation operation, HostTensor tensor, int root) {
        long size = tensor.byteSize();
        if (fits(size)) {
            agree(operation, tensor.address(), rank == root ? (int) size : 0);
            copy(tensor.address(), payloads(tensor.address())[root], size);
            group.endCall();
            return;
        }
        begin(operation);
        move(
                () -> {
                    if (worldSize > 2 && size > SCATTERED_BROADCAST) {
                        Extent[] parts = parts(tensor.address(), size, 1);
                        Extent own = parts[rank];
                        fromRoot(operation, root, own, parts);
                        exchange(operation, parts, same(own.address(), own.size()));
                    } else {
                        Extent whole = new Extent(tensor.address(), size);
                        fromRoot(operation, root, whole, same(whole.address(), size));
                    }
                });
    }

    /** Sends from the root: {@code inputs} to each rank, which receives it at {@code output}. */
    private void fromRoot(Operation operation, int root, Extent output, Extent[] inputs) {
        if (rank == root) {
            exchange(operation, null, inputs);
        } else {
            transfers.receive(root, output.address(), output.size());
            transfers.complete(operation);
        }
    }

    /** Returns the part of each rank, in multiples of an element's size. */
    private Extent[] parts(long address, long size, long itemSize) {
        long items = size / itemSize;
        Extent[] parts = new Extent[worldSize];
        for (int peer = 0; peer < worldSize; peer++) {
            long from = items * peer / worldSize * itemSize;
            long to = items * (peer + 1) / worldSize * itemSize;
            parts[peer] = new Extent(address + from, to - from);
        }
        return parts;
    }

    @Override
    public void allReduce(Operation operation, List<HostTensor> tensors, ReduceOp op) {
        HostTensor first = tensors.get(0);
        if (tensors.size() == 1 && fitsReduced(first.byteSize())) {
            agree(operation, first.address(), (int) first.byteSize());
            long[] addresses = payloads(first.address());
            reducer.reduce(first.address(), addresses, first.count(), first.type(), op);
            group.endCall();
            return;
        }
        begin(operation);
        move(
                () -> {
                    for (HostTensor tensor : tensors) {
                        allReduceParts(
                                operation, tensor.address(), tensor.byteSize(), tensor.type(), op);
                    }
                });
    }

    private void allReduceParts(
            Operation operation, long address, long size, ScalarType type, ReduceOp op) {
        boolean parts = size * (worldSize - 1) > MAX_WHOLE;
        List<Reduction> blocks = new ArrayList<>();
        long step = parts ? blockSize * worldSize : blockSize;
        for (long offset = 0; offset < size; offset += step) {
            Extent block = new Extent(address + offset, Math.min(step, size - offset));
            Extent[] to =
                    parts
                            ? parts(block.address(), block.size(), type.itemSize())
                            : same(block.address(), block.size());
            blocks.add(new Reduction(to, addresses(to), to[rank].address()));
        }
        reduceAll(operation, blocks, type, op, parts);
        results.complete(operation);
    }

    private static long[] addresses(Extent[] extents) {
        return Arrays.stream(extents).mapToLong(Extent::address).toArray();
    }

    /**
     * One block of a reduction: this rank reduces its part of what all ranks have.
     *
     * @param inputs {@code inputs[r]} is this rank's contribution to the part of rank r
     */
    private record Reduction(Extent[] parts, long[] inputs, long result) {}

    /** Reduces blocks: while one is reduced, the data of the next moves. */
    private void reduceAll(
            Operation operation,
            List<Reduction> blocks,
            ScalarType type,
            ReduceOp op,
            boolean gathers) {
        Transfers current = transfers;
        Transfers following = next;
        long[] contributions = new long[worldSize];
        long half = blocks.isEmpty() ? 0 : blocks.get(0).parts[rank].size() * (worldSize - 1);
        long free = scratch(2 * half);
        for (int i = 0; i <= blocks.size(); i++) {
            if (i < blocks.size()) {
                startReduction(following, blocks.get(i), free + i % 2 * half);
            }
            if (i > 0) {
                Reduction block = blocks.get(i - 1);
                current.complete(operation);
                long own = block.parts[rank].size();
                locate(contributions, block, free + (i - 1) % 2 * half);
                reducer.reduce(block.result, contributions, own / type.itemSize(), type, op);
                if (gathers) {
                    start(results, block.parts, same(block.result, own));
                }
            }
            Transfers swapped = current;
            current = following;
            following = swapped;
        }
    }

    private void startReduction(Transfers to, Reduction block, long free) {
        long own = block.parts[rank].size();
        for (int i = 1; i < worldSize; i++) {
            to.receive((rank + worldSize - i) % worldSize, free + (i - 1) * own, own);
        }
        for (int i = 1; i < worldSize; i++) {
            int peer = (rank + i) % worldSize;
            to.send(peer, block.inputs[peer], block.parts[peer].size());
        }
    }

    /** Sets where the contributions of all ranks are. */
    private void locate(long[] contributions, Reduction block, long free) {
        contributions[rank] = block.inputs[rank];
        for (int i = 1; i < worldSize; i++) {
            int peer = (rank + worldSize - i) % worldSize;
            contributions[peer] = free + (i - 1) * block.parts[rank].size();
        }
    }

    @Override
    public void reduce(Operation operation, HostTensor tensor, int root, ReduceOp op) {
        long size = tensor.byteSize();
        if (fitsReduced(size)) {
            agree(operation, tensor.address(), rank == root ? 0 : (int) size);
            if (rank == root) {
                long[] addresses = payloads(tensor.address());
                reducer.reduce(tensor.address(), addresses, tensor.count(), tensor.type(), op);
            }
            group.endCall();
            return;
        }
        begin(operation);
        move(() -> reduceParts(operation, tensor, root, op));
    }

    private void reduceParts(Operation operation, HostTensor tensor, int root, ReduceOp op) {
        Extent[] parts = parts(tensor.address(), tensor.byteSize(), tensor.type().itemSize());
        long own = parts[rank].size();
        // Not in place: the tensors of other ranks than the root do not change.
        if (rank != root && reduced.size() < own) {
            reduced = new Memory(own);
        }
        long result = rank == root ? parts[rank].address() : Pointer.nativeValue(reduced);
        reduceAll(operation, blocks(parts, addresses(parts), result), tensor.type(), op, false);
        if (rank == root) {
            exchange(operation, parts, null);
        } else {
            transfers.send(root, result, own);
            transfers.complete(operation);
        }
    }

    /** Cuts parts into blocks; all ranks have as many. */
    private List<Reduction> blocks(Extent[] parts, long[] inputs, long result) {
        long most = Arrays.stream(parts).mapToLong(Extent::size).max().orElse(0);
        List<Reduction> blocks = new ArrayList<>();
        for (long offset = 0; offset < most; offset += blockSize) {
            long start = offset;
            Extent[] block = new Extent[worldSize];
            for (int peer = 0; peer < worldSize; peer++) {
                block[peer] =
                        new Extent(
                                parts[peer].address() + start,
                                parts[peer].within(start, blockSize));
            }
            long[] from = Arrays.stream(inputs).map(address -> address + start).toArray();
            blocks.add(new Reduction(block, from, result + start));
        }
        return blocks;
    }

    @Override
    public void allGather(Operation operation, List<long[]> outputs, List<HostTensor> inputs) {
        HostTensor first = inputs.get(0);
        long size = first.byteSize();
        if (inputs.size() == 1 && fits(size)) {
            agree(operation, first.address(), (int) size);
            long[] addresses = payloads(first.address());
            for (int peer = 0; peer < worldSize; peer++) {
                copy(outputs.get(0)[peer], addresses[peer], size);
            }
            group.endCall();
            return;
        }
        begin(operation);
        move(
                () -> {
                    for (int i = 0; i < inputs.size(); i++) {
                        HostTensor input = inputs.get(i);
                        Extent[] parts = extents(outputs.get(i), input.byteSize());
                        exchange(operation, parts, same(input.address(), input.byteSize()));
                    }
                });
    }

    @Override
    public void gather(Operation operation, long[] outputs, HostTensor input, int root) {
        begin(operation);
        if (rank == root) {
            copy(outputs[rank], input.address(), input.byteSize());
            move(() -> exchange(operation, extents(outputs, input.byteSize()), null));
        } else {
            move(
                    () -> {
                        transfers.send(root, input.address(), input.byteSize());
                        transfers.complete(operation);
                    });
        }
    }

    @Override
    public void scatter(Operation operation, HostTensor output, long[] inputs, int root) {
        begin(operation);
        Extent out = new Extent(output.address(), output.byteSize());
        if (rank == root) {
            copy(out.address(), inputs[rank], out.size());
        }
        Extent[] all = rank == root ? extents(inputs, out.size()) : null;
        move(() -> fromRoot(operation, root, out, all));
    }

    @Override
    public void reduceScatter(
            Operation operation, List<HostTensor> outputs, List<long[]> inputs, ReduceOp op) {
        begin(operation);
        move(
                () -> {
                    for (int i = 0; i < outputs.size(); i++) {
                        reduceScatterParts(operation, outputs.get(i), inputs.get(i), op);
                    }
                });
    }

    private void reduceScatterParts(
            Operation operation, HostTensor output, long[] inputs, ReduceOp op) {
        Extent[] parts = same(0, output.byteSize());
        List<Reduction> blocks = blocks(parts, inputs, output.address());
        reduceAll(operation, blocks, output.type(), op, false);
    }

    @Override
    public void allToAll(Operation operation, Extent[] outputs, Extent[] inputs) {
        long[] sizes = new long[2 * worldSize];
        for (int peer = 0; peer < worldSize; peer++) {
            sizes[peer] = inputs[peer].size();
            sizes[worldSize + peer] = outputs[peer].size();
        }
        group.sendToAll(letter -> letter.putCall(rank, operation.signature(), sizes));
        awaitCalls(operation);
        try {
            HostCollectives.requireSizes(
                    operation,
                    worldSize,
                    (from, to) -> size(sizes, from, to),
                    (from, to) -> size(sizes, to, worldSize + from));
        } finally {
            group.endCall();
        }
        move(() -> exchange(operation, outputs, inputs));
    }

    private long size(long[] own, int peer, int index) {
        return peer == rank ? own[index] : group.callOf(peer).payloadWord(index);
    }
}

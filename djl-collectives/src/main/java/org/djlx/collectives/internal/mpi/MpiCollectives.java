// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.mpi;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.cpu.HostCollectives;
import org.djlx.collectives.internal.cpu.HostTensor;
import org.djlx.collectives.internal.cpu.Reducer;
import org.djlx.collectives.internal.host.CallWords;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.LongWaits;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.host.SharedMemory;
import org.djlx.nativeops.mpi.MpiCommunicator;
import org.djlx.nativeops.mpi.MpiRequest;
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

    // A part of this size stays in the cache between its arrival and its reduction.
    private static final long BLOCK = 256 << 10;

    // Larger broadcasts scatter parts and gather them: the root then sends its data about once.
    private static final long SCATTERED_BROADCAST = 64 << 10;

    // Memory that MPI may access until the process ends.
    private static final Queue<Memory> ORPHANS = new ConcurrentLinkedQueue<>();

    private final MpiGroup group;
    private final Reducer reducer;
    private final int rank;
    private final int worldSize;
    private final Backoff backoff = new Backoff();
    private final List<MpiRequest> requests = new ArrayList<>(); // reused
    private int[] peerOf = new int[16]; // by request
    private int started; // requests in use
    private Memory scratch = new Memory(BLOCK);
    private boolean orphaned;

    MpiCollectives(MpiGroup group, Reducer reducer) {
        this.group = group;
        this.reducer = reducer;
        rank = group.rank();
        worldSize = group.worldSize();
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
        await(operation, this::hasCalled, "did not arrive", true);
        boolean same = true;
        for (int peer = 0; peer < worldSize; peer++) {
            same &= peer == rank || group.callOf(peer).hasSignature(operation.signature());
        }
        if (!same) {
            List<long[]> calls =
                    IntStream.range(0, worldSize).mapToObj(peer -> words(operation, peer)).toList();
            group.endCall();
            throw GroupErrors.disagreement(operation, group.name(), calls);
        }
    }

    private long[] words(Operation operation, int peer) {
        long[] words = new long[CallWords.COUNT];
        long[] signature = peer == rank ? operation.signature() : group.callOf(peer).signature();
        CallWords.put(words, signature, false);
        return words;
    }

    private boolean hasCalled(int peer) {
        return peer == rank || group.callOf(peer) != null;
    }

    /** A condition on a peer. */
    private interface PeerCondition {
        boolean holds(int peer);
    }

    /**
     * Waits until a condition holds for all ranks.
     *
     * @param omission what the missing ranks did not do
     * @param ordered whether a rank that has left cannot meet the condition any more; otherwise its
     *     data may still arrive
     */
    private void await(
            Operation operation, PeerCondition condition, String omission, boolean ordered) {
        backoff.reset();
        long begin = 0;
        int next = 0;
        while (true) {
            while (next < worldSize && condition.holds(next)) {
                next++;
            }
            if (next == worldSize) {
                return;
            }
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
            checkWait(operation, condition, omission, ordered, waited, left);
            backoff.pause(Math.max(left, 1));
        }
    }

    private void checkWait(
            Operation operation,
            PeerCondition condition,
            String omission,
            boolean ordered,
            long waited,
            long left) {
        CollectiveException obstacle = group.obstacle(operation);
        if (obstacle != null) {
            throw obstacle;
        }
        if (Thread.currentThread().isInterrupted()) {
            throw GroupErrors.interrupted(operation, null);
        }
        List<Integer> missing = new ArrayList<>();
        for (int peer = 0; peer < worldSize; peer++) {
            String end = group.announcedEndOf(peer); // Before the condition: it arrives later.
            if (condition.holds(peer)) {
                continue;
            }
            if (end != null && (ordered || !end.equals(GroupErrors.left(peer)))) {
                throw GroupErrors.gone(operation, rank, end);
            }
            missing.add(peer);
        }
        if (missing.isEmpty()) {
            return;
        }
        if (left <= 0) {
            throw GroupErrors.timedOut(operation, rank, missing, omission);
        }
        if (operation.takeWarning(waited)) {
            LongWaits.warn(
                    operation + " on rank " + rank,
                    GroupErrors.ranks(missing),
                    waited,
                    operation.timeout());
        }
    }

    // Data. Transfers between two ranks match in their order, which is the same on both.

    private MpiRequest request(int peer) {
        if (started == requests.size()) {
            requests.add(new MpiRequest());
        }
        if (started == peerOf.length) {
            peerOf = Arrays.copyOf(peerOf, 2 * started);
        }
        peerOf[started] = peer;
        return requests.get(started++);
    }

    private void receive(int peer, long address, long size) {
        for (long offset = 0; offset < size; offset += MpiCommunicator.MAX_BYTES) {
            int piece = (int) Math.min(MpiCommunicator.MAX_BYTES, size - offset);
            group.receive(request(peer), address + offset, piece, peer, MpiGroup.DATA);
        }
    }

    private void send(int peer, long address, long size) {
        for (long offset = 0; offset < size; offset += MpiCommunicator.MAX_BYTES) {
            int piece = (int) Math.min(MpiCommunicator.MAX_BYTES, size - offset);
            group.send(request(peer), address + offset, piece, peer, MpiGroup.DATA);
        }
    }

    /** Waits until the transfers with all ranks have ended. */
    private void complete(Operation operation) {
        try {
            await(operation, this::hasMoved, "did not send or receive its data", false);
            started = 0;
        } catch (RuntimeException | Error e) {
            if (!group.cancel(requests.subList(0, started))) {
                orphaned = true;
                requests.clear();
                ORPHANS.add(scratch);
                scratch = new Memory(BLOCK);
            }
            started = 0;
            throw e;
        }
    }

    private boolean hasMoved(int peer) {
        for (int i = 0; i < started; i++) {
            if (peerOf[i] == peer && !group.test(requests.get(i))) {
                return false;
            }
        }
        return true;
    }

    /** Exchanges memory between all pairs of ranks; a null array has nothing to send or receive. */
    private void exchange(Operation operation, Extent[] outputs, Extent[] inputs) {
        for (int i = 1; outputs != null && i < worldSize; i++) {
            int peer = (rank + worldSize - i) % worldSize;
            receive(peer, outputs[peer].address(), outputs[peer].size());
        }
        for (int i = 1; inputs != null && i < worldSize; i++) {
            int peer = (rank + i) % worldSize;
            send(peer, inputs[peer].address(), inputs[peer].size());
        }
        if (outputs != null && inputs != null) {
            copy(outputs[rank].address(), inputs[rank].address(), inputs[rank].size());
        }
        complete(operation);
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
        if (worldSize > 2 && size > SCATTERED_BROADCAST) {
            Extent[] parts = parts(tensor.address(), size, 1);
            move(operation, root, parts[rank], parts);
            exchange(operation, parts, same(parts[rank].address(), parts[rank].size()));
        } else {
            Extent whole = new Extent(tensor.address(), size);
            move(operation, root, whole, same(whole.address(), size));
        }
    }

    /** Sends from the root: {@code inputs} to each rank, which receives it at {@code output}. */
    private void move(Operation operation, int root, Extent output, Extent[] inputs) {
        if (rank == root) {
            exchange(operation, null, inputs);
        } else {
            receive(root, output.address(), output.size());
            complete(operation);
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
    public void allReduce(Operation operation, HostTensor tensor, ReduceOp op) {
        if (fits(tensor.byteSize())) {
            agree(operation, tensor.address(), (int) tensor.byteSize());
            long[] addresses = payloads(tensor.address());
            reducer.reduce(tensor.address(), addresses, tensor.count(), tensor.type(), op);
            group.endCall();
            return;
        }
        begin(operation);
        allReduceParts(operation, tensor.address(), tensor.byteSize(), tensor.type(), op);
    }

    @Override
    public void allReduce(Operation operation, List<HostTensor> tensors, ReduceOp op) {
        begin(operation);
        for (HostTensor tensor : tensors) {
            allReduceParts(operation, tensor.address(), tensor.byteSize(), tensor.type(), op);
        }
    }

    private void allReduceParts(
            Operation operation, long address, long size, ScalarType type, ReduceOp op) {
        long step = BLOCK * worldSize;
        for (long offset = 0; offset < size; offset += step) {
            long length = Math.min(step, size - offset);
            Extent[] parts = parts(address + offset, length, type.itemSize());
            long[] inputs = Arrays.stream(parts).mapToLong(Extent::address).toArray();
            reduceParts(operation, parts[rank].address(), parts, inputs, type, op);
            exchange(operation, parts, same(parts[rank].address(), parts[rank].size()));
        }
    }

    /** Reduces this rank's part of what all ranks have. {@code inputs[r]} is for rank r. */
    private void reduceParts(
            Operation operation,
            long result,
            Extent[] parts,
            long[] inputs,
            ScalarType type,
            ReduceOp op) {
        long own = parts[rank].size();
        long[] contributions = new long[worldSize];
        long free = scratch(own * (worldSize - 1));
        for (int i = 1; i < worldSize; i++) {
            int peer = (rank + worldSize - i) % worldSize;
            contributions[peer] = free;
            receive(peer, free, own);
            free += own;
        }
        contributions[rank] = inputs[rank];
        for (int i = 1; i < worldSize; i++) {
            int peer = (rank + i) % worldSize;
            send(peer, inputs[peer], parts[peer].size());
        }
        complete(operation);
        reducer.reduce(result, contributions, own / type.itemSize(), type, op);
    }

    @Override
    public void reduce(Operation operation, HostTensor tensor, int root, ReduceOp op) {
        long size = tensor.byteSize();
        if (fits(size)) {
            agree(operation, tensor.address(), rank == root ? 0 : (int) size);
            if (rank == root) {
                long[] addresses = payloads(tensor.address());
                reducer.reduce(tensor.address(), addresses, tensor.count(), tensor.type(), op);
            }
            group.endCall();
            return;
        }
        begin(operation);
        long step = BLOCK * worldSize;
        for (long offset = 0; offset < size; offset += step) {
            long length = Math.min(step, size - offset);
            Extent[] parts = parts(tensor.address() + offset, length, tensor.type().itemSize());
            long[] inputs = Arrays.stream(parts).mapToLong(Extent::address).toArray();
            long own = parts[rank].size();
            // Not in place: the tensors of other ranks than the root do not change.
            long result =
                    rank == root ? inputs[rank] : scratch(own * worldSize) + own * (worldSize - 1);
            reduceParts(operation, result, parts, inputs, tensor.type(), op);
            if (rank == root) {
                exchange(operation, parts, null);
            } else {
                send(root, result, own);
                complete(operation);
            }
        }
    }

    @Override
    public void allGather(Operation operation, long[] outputs, HostTensor input) {
        long size = input.byteSize();
        if (fits(size)) {
            agree(operation, input.address(), (int) size);
            long[] addresses = payloads(input.address());
            for (int peer = 0; peer < worldSize; peer++) {
                copy(outputs[peer], addresses[peer], size);
            }
            group.endCall();
            return;
        }
        begin(operation);
        exchange(operation, extents(outputs, size), same(input.address(), size));
    }

    @Override
    public void allGather(Operation operation, List<long[]> outputs, List<HostTensor> inputs) {
        begin(operation);
        for (int i = 0; i < inputs.size(); i++) {
            HostTensor input = inputs.get(i);
            Extent[] parts = extents(outputs.get(i), input.byteSize());
            exchange(operation, parts, same(input.address(), input.byteSize()));
        }
    }

    @Override
    public void gather(Operation operation, long[] outputs, HostTensor input, int root) {
        begin(operation);
        if (rank == root) {
            copy(outputs[rank], input.address(), input.byteSize());
            exchange(operation, extents(outputs, input.byteSize()), null);
        } else {
            send(root, input.address(), input.byteSize());
            complete(operation);
        }
    }

    @Override
    public void scatter(Operation operation, HostTensor output, long[] inputs, int root) {
        begin(operation);
        Extent out = new Extent(output.address(), output.byteSize());
        if (rank == root) {
            copy(out.address(), inputs[rank], out.size());
        }
        move(operation, root, out, rank == root ? extents(inputs, out.size()) : null);
    }

    @Override
    public void reduceScatter(Operation operation, HostTensor output, long[] inputs, ReduceOp op) {
        begin(operation);
        reduceScatterParts(operation, output, inputs, op);
    }

    @Override
    public void reduceScatter(
            Operation operation, List<HostTensor> outputs, List<long[]> inputs, ReduceOp op) {
        begin(operation);
        for (int i = 0; i < outputs.size(); i++) {
            reduceScatterParts(operation, outputs.get(i), inputs.get(i), op);
        }
    }

    private void reduceScatterParts(
            Operation operation, HostTensor output, long[] inputs, ReduceOp op) {
        long size = output.byteSize();
        for (long offset = 0; offset < size; offset += BLOCK) {
            long start = offset;
            Extent[] parts = same(0, Math.min(BLOCK, size - offset));
            long[] from = Arrays.stream(inputs).map(address -> address + start).toArray();
            reduceParts(operation, output.address() + start, parts, from, output.type(), op);
        }
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
            GroupErrors.requireSizes(
                    operation,
                    worldSize,
                    (from, to) -> size(sizes, from, to),
                    (from, to) -> size(sizes, to, worldSize + from));
        } finally {
            group.endCall();
        }
        exchange(operation, outputs, inputs);
    }

    private long size(long[] own, int peer, int index) {
        return peer == rank ? own[index] : group.callOf(peer).payloadWord(index);
    }
}

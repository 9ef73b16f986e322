// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.IntFunction;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Support;
import org.djlx.collectives.spi.cpu.HostCollectives.Extent;
import org.djlx.collectives.spi.cpu.HostTensor.Access;
import org.djlx.nativeops.ContextLoader;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The base class of backends on CPUs. It opens the tensors of a call as memory, queues collectives,
 * runs messages concurrently with them, reduces in rank order, and completes the works. A subclass
 * brings the transport:
 *
 * <pre>{@code
 * final class MyBackend extends CpuBackend {
 *
 *     MyBackend(GroupContext context, MyPeers peers) { // extends PeerStates
 *         super("my", context, peers);
 *         start(context, new MyCollectives(peers, reducer()), MyChannel::new);
 *     }
 *
 *     protected void leave() {
 *         peers.leave(); // announces it to the other ranks, and frees the transport
 *     }
 * }
 * }</pre>
 *
 * <ul>
 *   <li>Collectives run one at a time, in the order of the calls, on the thread that waits for the
 *       work or on a thread of this class. The transport's methods block until the collective has
 *       ended.
 *   <li>One thread at a time makes progress on messages, concurrently with a collective. Channels
 *       never block.
 *   <li>An exception of the transport breaks the group. Exception: a {@link
 *       CollectiveMismatchException} with {@code isGroupBroken()} false, which all ranks throw at
 *       the same point.
 *   <li>The transport may use an address until the call or transfer has ended. Memory that it may
 *       still access after a failure is kept for the life of the process: {@link
 *       HostCollectives#takeOrphaned}, {@link Transfer#leak}.
 * </ul>
 */
public abstract class CpuBackend extends Backend {

    /** The operations, element types and reductions of backends on CPUs. */
    public static final Support SUPPORT =
            Support.builder()
                    .addMoves(
                            EnumSet.allOf(ScalarType.class),
                            OpType.BROADCAST,
                            OpType.ALL_GATHER,
                            OpType.ALL_GATHER_INTO_TENSOR,
                            OpType.GATHER,
                            OpType.SCATTER,
                            OpType.ALL_TO_ALL,
                            OpType.ALL_TO_ALL_SINGLE,
                            OpType.SEND,
                            OpType.RECV,
                            OpType.RECV_ANY_SOURCE)
                    .addReductions(
                            EnumSet.of(
                                    ScalarType.FLOAT64,
                                    ScalarType.FLOAT32,
                                    ScalarType.FLOAT16,
                                    ScalarType.BFLOAT16,
                                    ScalarType.COMPLEX128,
                                    ScalarType.COMPLEX64,
                                    ScalarType.COMPLEX32,
                                    ScalarType.INT64,
                                    ScalarType.INT32,
                                    ScalarType.INT16,
                                    ScalarType.INT8,
                                    ScalarType.UINT8,
                                    ScalarType.BOOL),
                            EnumSet.allOf(ReduceOp.Kind.class),
                            OpType.ALL_REDUCE,
                            OpType.REDUCE,
                            OpType.REDUCE_SCATTER,
                            OpType.REDUCE_SCATTER_TENSOR)
                    .addPlain(OpType.BARRIER)
                    .build();

    private static final Logger logger = LoggerFactory.getLogger(CpuBackend.class);
    private static final AtomicBoolean TOLD = new AtomicBoolean(); // that ranks share cores

    /** Owns the temporary arrays of operations. */
    final NDManager manager;

    private final String name;
    private final int rank;
    private final int worldSize;
    private final PeerStates peers;
    private final Reducer reducer;
    private HostCollectives collectives;
    private OpQueue queue;
    private MessageQueue messages;
    private boolean closed;

    /** Creates the backend of one rank, without its transport. */
    protected CpuBackend(String name, GroupContext context, PeerStates peers) {
        this(name, context, peers, new JavaSums());
    }

    /**
     * As the other constructor, with sums for some types and sizes that are faster than libtorch's.
     */
    protected CpuBackend(String name, GroupContext context, PeerStates peers, Reducer.Sums sums) {
        this.name = name;
        this.peers = peers;
        rank = peers.rank();
        worldSize = peers.worldSize();
        manager = ContextLoader.pytorch().newBaseManager(Device.cpu());
        manager.setName(name + "-" + context.name() + "-" + rank);
        reducer = new Reducer(manager, sums);
    }

    /** {@return the reducer of this rank's collectives} */
    protected final Reducer reducer() {
        return reducer;
    }

    /**
     * Sets the transport, and returns when all ranks have set theirs. Called once, at the end of
     * the subclass's constructor or after it. On failure it closes this backend.
     *
     * @param channels returns the channel to a rank; called once for each other rank
     */
    protected final void start(
            GroupContext context, HostCollectives transport, IntFunction<MessageChannel> channels) {
        String thread = name + "-" + context.name() + "-rank-" + rank;
        collectives = transport;
        if (rank == 0 && peers.ranksPerCore() > 1 && !TOLD.getAndSet(true)) {
            logger.warn(
                    "group '{}': {} ranks share each core of this host, {} in all: ranks that wait"
                            + " take time from those that compute. On 2 cores an all-reduce of 4 KB"
                            + " takes 8 ranks 290 to 440 us, and 2 ranks 11 to 40. Start no more"
                            + " ranks than cores",
                    context.name(),
                    peers.ranksPerCore(),
                    Runtime.getRuntime().availableProcessors());
        }
        try {
            messages = new MessageQueue(thread + "-p2p", peers, channels);
            queue = new OpQueue(thread, peers, peers.ranksPerCore());
            // Afterwards no peer needs the store, so this rank may close the store's server.
            collectives.barrier(context.joining());
        } catch (RuntimeException | Error e) {
            peers.fail(GroupErrors.failed("creating group '" + context.name() + "'", e));
            close();
            throw e;
        }
    }

    @Override
    public final String name() {
        return name;
    }

    @Override
    public final Support support() {
        return SUPPORT;
    }

    @Override
    public Device device() {
        return Device.cpu();
    }

    @Override
    public Work allReduce(Operation operation, NDArray tensor, ReduceOp op) {
        return allReduceCoalesced(operation, List.of(tensor), List.of(operation.tensor()), op);
    }

    @Override
    public Work reduce(Operation operation, NDArray tensor, int root, ReduceOp op) {
        return submit(
                operation,
                List.of(tensor),
                open -> {
                    Access access = rank == root ? Access.UPDATE : Access.READ;
                    HostTensor host = open.tensor(tensor, operation.tensor(), access);
                    return () -> collectives.reduce(operation, host, root, op);
                });
    }

    @Override
    public Work broadcast(Operation operation, NDArray tensor, int root) {
        return submit(
                operation,
                List.of(tensor),
                open -> {
                    Access access = rank == root ? Access.READ : Access.WRITE;
                    HostTensor host = open.tensor(tensor, operation.tensor(), access);
                    return () -> collectives.broadcast(operation, host, root);
                });
    }

    @Override
    public Work allGather(Operation operation, List<NDArray> outputs, NDArray input) {
        return submit(
                operation,
                outputs,
                open -> {
                    HostTensor in = open.tensor(input, operation.tensor(), Access.READ);
                    List<HostTensor> out = open.tensors(outputs, Access.WRITE);
                    return () ->
                            collectives.allGather(
                                    operation, List.of(addresses(out, in.byteSize())), List.of(in));
                });
    }

    @Override
    public Work gather(Operation operation, List<NDArray> outputs, NDArray input, int root) {
        return submit(
                operation,
                outputs,
                open -> {
                    HostTensor in = open.tensor(input, operation.tensor(), Access.READ);
                    List<HostTensor> out = open.tensors(outputs, Access.WRITE);
                    return () -> {
                        long[] addresses = rank == root ? addresses(out, in.byteSize()) : null;
                        collectives.gather(operation, addresses, in, root);
                    };
                });
    }

    @Override
    public Work scatter(Operation operation, NDArray output, List<NDArray> inputs, int root) {
        return submit(
                operation,
                List.of(output),
                open -> {
                    HostTensor out = open.tensor(output, operation.tensor(), Access.WRITE);
                    List<HostTensor> in = open.tensors(inputs, Access.READ);
                    return () -> {
                        long[] addresses = rank == root ? addresses(in, out.byteSize()) : null;
                        collectives.scatter(operation, out, addresses, root);
                    };
                });
    }

    // Coalesced operations process their tensors in order, small ones together in one step. The
    // first step compares the calls of all ranks, tensor count included.

    @Override
    public boolean batchesCollectives() {
        return false;
    }

    @Override
    public Work allReduceCoalesced(
            Operation operation, List<NDArray> tensors, List<TensorInfo> infos, ReduceOp op) {
        return submit(
                operation,
                tensors,
                open -> {
                    List<HostTensor> hosts = open.tensors(tensors, infos, Access.UPDATE);
                    return () -> collectives.allReduce(operation, hosts, op);
                });
    }

    @Override
    public Work allGatherCoalesced(
            Operation operation,
            List<NDArray> outputs,
            List<NDArray> inputs,
            List<TensorInfo> infos) {
        return submit(
                operation,
                outputs,
                open -> {
                    List<HostTensor> in = open.tensors(inputs, infos, Access.READ);
                    List<HostTensor> out = open.tensors(outputs, Access.WRITE);
                    return () -> collectives.allGather(operation, addresses(out, in), in);
                });
    }

    @Override
    public Work reduceScatterCoalesced(
            Operation operation,
            List<NDArray> outputs,
            List<NDArray> inputs,
            List<TensorInfo> infos,
            ReduceOp op) {
        return submit(
                operation,
                outputs,
                open -> {
                    List<HostTensor> in = open.tensors(inputs, Access.READ);
                    List<HostTensor> out = open.tensors(outputs, infos, Access.WRITE);
                    return () -> collectives.reduceScatter(operation, out, addresses(in, out), op);
                });
    }

    /**
     * Returns, for each tensor, the address of each rank's part; {@code parts} has the part sizes.
     */
    private List<long[]> addresses(List<HostTensor> tensors, List<HostTensor> parts) {
        List<long[]> addresses = new ArrayList<>(parts.size());
        for (int i = 0; i < parts.size(); i++) {
            addresses.add(addresses(tensors.subList(i, i + 1), parts.get(i).byteSize()));
        }
        return addresses;
    }

    @Override
    public Work allToAll(Operation operation, List<NDArray> outputs, List<NDArray> inputs) {
        return submit(
                operation,
                outputs,
                open -> {
                    List<HostTensor> out = open.tensors(outputs, Access.WRITE);
                    List<HostTensor> in = open.tensors(inputs, Access.READ);
                    return () -> collectives.allToAll(operation, extents(out), extents(in));
                });
    }

    private static Extent[] extents(List<HostTensor> tensors) {
        return tensors.stream()
                .map(tensor -> new Extent(tensor.address(), tensor.byteSize()))
                .toArray(Extent[]::new);
    }

    @Override
    public Work allToAllSingle(
            Operation operation,
            NDArray output,
            NDArray input,
            long[] outputCounts,
            long[] inputCounts) {
        return submit(
                operation,
                List.of(output),
                open -> {
                    HostTensor out = open.tensor(output, Torch.info(output), Access.WRITE);
                    HostTensor in = open.tensor(input, Torch.info(input), Access.READ);
                    return () ->
                            collectives.allToAll(
                                    operation, parts(out, outputCounts), parts(in, inputCounts));
                });
    }

    private static Extent[] parts(HostTensor tensor, long[] counts) {
        Extent[] parts = new Extent[counts.length];
        long address = tensor.address();
        for (int i = 0; i < parts.length; i++) {
            parts[i] = new Extent(address, counts[i] * tensor.type().itemSize());
            address += parts[i].size();
        }
        return parts;
    }

    @Override
    public Work send(Operation operation, NDArray tensor, int destination, int tag) {
        return submit(operation, tensor, Access.READ, destination, tag);
    }

    @Override
    public Work recv(Operation operation, NDArray tensor, int source, int tag) {
        return submit(operation, tensor, Access.WRITE, source, tag);
    }

    private Work submit(Operation operation, NDArray tensor, Access access, int peer, int tag) {
        HostTensor host = new HostTensor(manager, tensor, operation.tensor(), access);
        host.load(); // Loads now, because messages are not ordered after earlier operations.
        Transfer transfer = new Transfer(messages, operation, host, peer, tag, List.of(tensor));
        messages.submit(transfer);
        return transfer;
    }

    @Override
    public Work reduceScatter(
            Operation operation, NDArray output, List<NDArray> inputs, ReduceOp op) {
        return submit(
                operation,
                List.of(output),
                open -> {
                    HostTensor out = open.tensor(output, operation.tensor(), Access.WRITE);
                    List<HostTensor> in = open.tensors(inputs, Access.READ);
                    return () ->
                            collectives.reduceScatter(
                                    operation,
                                    List.of(out),
                                    List.of(addresses(in, out.byteSize())),
                                    op);
                });
    }

    /** Returns the addresses of the ranks' tensors: one tensor each, or parts of one tensor. */
    private long[] addresses(List<HostTensor> tensors, long partSize) {
        long[] addresses = new long[worldSize];
        for (int peer = 0; peer < worldSize; peer++) {
            addresses[peer] =
                    tensors.size() == 1
                            ? tensors.get(0).address() + peer * partSize
                            : tensors.get(peer).address();
        }
        return addresses;
    }

    @Override
    public Work barrier(Operation operation) {
        return submit(operation, List.of(), open -> () -> collectives.barrier(operation));
    }

    @Override
    public Work execute(Operation operation, Consumer<Operation> body) {
        return submit(
                operation,
                List.of(),
                open ->
                        () -> {
                            collectives.begin(operation);
                            NoGradient.run(() -> body.accept(operation));
                        });
    }

    /** Submits an operation, for a function that opens the tensors and returns the body. */
    private Work submit(
            Operation operation, List<NDArray> result, Function<HostTensors, Runnable> opener) {
        HostTensors tensors = new HostTensors(manager);
        Runnable body;
        try {
            body = opener.apply(tensors);
        } catch (RuntimeException | Error e) {
            tensors.close();
            throw e;
        }
        return queue.submit(
                operation,
                () -> run(operation, tensors, body),
                () -> {
                    if (collectives.takeOrphaned()) {
                        tensors.leak();
                    }
                    tensors.close();
                },
                result);
    }

    @Override
    public void abort(CollectiveException reason) {
        peers.fail(reason);
    }

    @Override
    public Optional<CollectiveException> failure() {
        return Optional.ofNullable(peers.failure());
    }

    /** {@inheritDoc} Ends all operations and messages, and then calls {@link #leave}. */
    @Override
    public final synchronized void close() {
        if (closed) {
            return;
        }
        closed = true;
        // On any failure, still stop all threads and announce that this rank has left.
        MessageQueue pending = messages; // null, as the queue, if the start failed
        OpQueue operations = queue;
        try (manager;
                reducer;
                pending;
                operations) {
            peers.close();
        } finally {
            leave();
        }
    }

    /**
     * Announces to the other ranks that this rank has left, and frees the transport. Called once,
     * after the last operation and message have ended.
     */
    protected abstract void leave();

    private void run(Operation operation, HostTensors tensors, Runnable body) {
        CollectiveMismatchException mismatch = operation.mismatchBefore();
        if (mismatch != null) {
            throw mismatch;
        }
        try {
            operation.started();
            tensors.load();
            body.run();
            tensors.flush();
        } catch (RuntimeException | Error e) {
            if (e instanceof CollectiveMismatchException calls && !calls.isGroupBroken()) {
                throw calls; // All ranks throw it at the same point, so the group stays usable.
            }
            CollectiveException reason = GroupErrors.failed(operation, e);
            peers.fail(reason);
            throw reason;
        }
    }
}

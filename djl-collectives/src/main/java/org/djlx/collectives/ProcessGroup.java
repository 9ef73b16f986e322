// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.collectives.trace.FlightRecorder;
import org.djlx.nativeops.torch.TensorInfo;

/**
 * One rank's handle on a group of communicating ranks; the counterpart of {@code
 * torch.distributed.ProcessGroup}. {@link ProcessGroups} creates it; do not implement it.
 *
 * <pre>{@code
 * Work work = group.allReduce(gradient, ReduceOp.AVG); // returns immediately
 * work.await(); // throws if the operation failed, naming operation, group and ranks
 *
 * ProcessGroup half = group.split(group.rank() % 2, group.rank());
 * half.broadcast(weights, 0).await(); // from rank 0 of the half
 * half.destroy();
 * }</pre>
 *
 * <h2>Calls and order</h2>
 *
 * <ul>
 *   <li>Every rank of the group must call the same collectives in the same order.
 *   <li>A call checks its arguments, returns a {@link Work} immediately and runs asynchronously.
 *   <li>Operations of one group run in the order of the calls. Operations of different groups do
 *       not wait for each other.
 *   <li>{@linkplain #send Messages} are exempt: only sender and receiver call, and messages and
 *       collectives do not wait for each other.
 *   <li>Roots and peers are ranks of this group. c10d uses ranks of the whole job instead; {@link
 *       #groupRank} translates.
 * </ul>
 *
 * <h2>Tensors</h2>
 *
 * <ul>
 *   <li>Tensors are PyTorch arrays on the {@linkplain #device() device} of the group. They need not
 *       be contiguous.
 *   <li>All ranks pass the same element type, and the same shape where a method says so.
 *   <li>An output must not share memory with an input, with two exceptions: both are the same
 *       tensor, or one of them is this rank's part of the other. So all-gather from a slice of the
 *       output and reduce-scatter into a slice of the input run in place, without a copy of that
 *       part.
 *   <li>Do not read or write a tensor before its work has completed; see {@link Work}.
 *   <li>Autograd does not record the operations. {@link
 *       org.djlx.collectives.gradient.DifferentiableCollectives} has collectives with gradients.
 * </ul>
 *
 * <h2>Streams (GPU)</h2>
 *
 * <ul>
 *   <li>An operation starts after the work that is on the caller's current stream at the time of
 *       the call.
 *   <li>The current stream does not wait for the operation. Call {@link Work#await()} or {@link
 *       Work#blockCurrentStream()} before you enqueue work that uses a result.
 *   <li>Exceptions: {@link #execute} and, with {@code cuda_p2p}, {@link #allReduce(NDArray,
 *       ReduceOp, boolean) allReduce(…, false)} can run on the current stream itself; see {@link
 *       CudaP2pOptions}.
 *   <li>A message waits for the current stream only. It follows an earlier collective only if that
 *       stream waits for the collective's work.
 *   <li>The first message between two ranks creates a communicator for the pair. NCCL may delay
 *       this until its running collectives have ended.
 * </ul>
 *
 * <h2>Errors</h2>
 *
 * <ul>
 *   <li>An invalid argument throws {@link IllegalArgumentException} before anything is sent.
 *   <li>If a rank does not arrive within the {@linkplain #timeout() timeout}, the other ranks get a
 *       {@link CollectiveTimeoutException} that names it. The group is then broken: destroy it and
 *       create a new one.
 *   <li>If the calls of the ranks do not match, every rank gets a {@link CollectiveException} that
 *       lists each rank's call, usually a {@link CollectiveMismatchException}.
 * </ul>
 *
 * <p>Calls are compared on {@code shm} and {@code mpi} before any tensor changes (the group stays
 * usable), on {@code cuda_p2p} after the call, asynchronously (the group is broken), on {@code
 * nccl} and on {@code cuda_p2p} without P2P memory not at all: a mismatch hangs until the timeout
 * or gives wrong results. With {@link DebugLevel#DETAIL} they are compared before the operation
 * runs, and the group stays usable. {@code docs/process-groups.md} has the exceptions.
 *
 * <h2>Threads</h2>
 *
 * <p>Methods are thread-safe. If several threads issue operations on one group, they must ensure
 * that all ranks issue them in the same order.
 */
public interface ProcessGroup extends AutoCloseable {

    /**
     * {@return the rank within the group, from 0; -1 if this rank is not a {@linkplain #isMember
     * member}}
     */
    int rank();

    /** {@return the number of ranks} */
    int worldSize();

    /**
     * {@return the global ranks of this group's members; the counterpart of {@code
     * torch.distributed.get_process_group_ranks}} A global rank is a rank of the initial group that
     * {@link ProcessGroups} created.
     *
     * <p>To find a rank of this group in another group, go through its global rank: {@code
     * other.groupRank(group.globalRank(rank))}.
     */
    List<Integer> ranks();

    /**
     * {@return the parent ranks of this group's members, indexed by rank of this group; for an
     * initial group, its own ranks} The parent is the group on which {@link #newGroup} or {@link
     * #split} was called.
     */
    List<Integer> parentRanks();

    /** Translates a rank of this group to a global rank. */
    default int globalRank(int groupRank) {
        if (groupRank < 0 || groupRank >= worldSize()) {
            throw new IllegalArgumentException(
                    String.format(
                            "rank %d is out of range: the group '%s' has ranks 0 to %d",
                            groupRank, name(), worldSize() - 1));
        }
        return ranks().get(groupRank);
    }

    /** Translates a global rank to a rank of this group. */
    default int groupRank(int globalRank) {
        int rank = ranks().indexOf(globalRank);
        if (rank < 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "global rank %d is not a member of group '%s'; its global ranks are %s",
                            globalRank, name(), ranks()));
        }
        return rank;
    }

    /**
     * {@return whether this rank is a member of the group} {@link #newGroup} and {@link #split}
     * return a non-member handle, the counterpart of {@code
     * torch.distributed.GroupMember.NON_GROUP_MEMBER}, on ranks that are not members. A non-member
     * handle has the group's name and ranks only: every operation throws {@link
     * IllegalStateException}, and {@link #destroy} is a no-op.
     */
    default boolean isMember() {
        return rank() >= 0;
    }

    /**
     * {@return the group's name, the same on all ranks} It is unique among the groups derived from
     * one initial group.
     */
    String name();

    /** {@return the device on which the group's tensors must be} */
    Device device();

    /**
     * {@return the name of the group's backend}
     *
     * @throws IllegalStateException if this rank is not a member of the group
     */
    String backendName();

    /**
     * {@return the flight recorder: this rank's last operations} It also works after {@link
     * #destroy}.
     *
     * @throws IllegalStateException if this rank is not a member of the group
     */
    FlightRecorder flightRecorder();

    /** {@return how long an operation waits for other ranks} */
    Duration timeout();

    /**
     * {@return a view of this group with another timeout, for example for a single call: {@code
     * group.withTimeout(Duration.ofSeconds(5)).barrier()}} The view is the same group: destroying
     * it destroys the group.
     *
     * <p>With {@code shm} a collective's timeout counts from its start, which is after the end of
     * the operations before it; a message's timeout counts from the call.
     *
     * @param timeout how long the view's operations wait for other ranks; positive
     */
    ProcessGroup withTimeout(Duration timeout);

    /**
     * {@return a view of this group whose all-gathers, reduce-scatters and broadcasts leave the SMs
     * to computation beside them, as with {@link CudaP2pOptions.Builder#optCopyEngines}} Only
     * {@code cuda_p2p} groups with P2P buffers differ. All ranks must call the same views.
     *
     * <p>{@link #allGatherIntoTensor} into an output that lies in the {@linkplain
     * org.djlx.collectives.p2p.P2pAllocator P2P heap} then needs no staging buffer: the other ranks
     * write into it directly. It must lie there at the same offset on all ranks, which is compared.
     */
    ProcessGroup withCopyEngines();

    /**
     * {@return whether the ranks can write to each other's memory: {@link #p2pBuffers()} is
     * present; the same on all ranks}
     */
    default boolean isP2pAvailable() {
        return p2pBuffers().isPresent();
    }

    /** {@return the group's symmetric memory; empty on all ranks if the group has none} */
    Optional<P2pBuffers> p2pBuffers();

    /**
     * {@return the buffers of {@link #p2pBuffers}}
     *
     * @throws IllegalStateException if the group has none
     */
    default P2pBuffers requireP2pBuffers() {
        return p2pBuffers()
                .orElseThrow(
                        () ->
                                new IllegalStateException(
                                        ("group '%s' of backend '%s' on %s has no P2P buffers; they"
                                             + " need backend 'cuda_p2p' with peer access between"
                                             + " all its GPUs, or 'shm'; isP2pAvailable() tells")
                                                .formatted(name(), backendName(), device())));
    }

    /**
     * {@return an object that a library attaches to this group on this rank, such as a cache of its
     * plans} The first call creates it; all views of the group share it. It is closed after the
     * group has been destroyed and all its operations have ended.
     *
     * <p>The object must not refer to the group, because a referenced group is never freed as
     * garbage; see {@link #destroy}.
     *
     * @param type the class of the object; at most one object per class
     * @param maker creates the object; must not use the group
     * @throws IllegalStateException if the group has been destroyed
     */
    <T extends AutoCloseable> T attachment(Class<T> type, Supplier<T> maker);

    /**
     * Reduces a tensor over all ranks, in place. Every rank gets the same bits.
     *
     * @param tensor this rank's contribution, overwritten with the result; the same shape on all
     *     ranks
     * @throws IllegalArgumentException if the tensor is null, closed, on another device, broadcast
     *     ({@code stride 0}), or of an element type for which the backend does not have the
     *     reduction
     */
    default Work allReduce(NDArray tensor, ReduceOp op) {
        return allReduce(tensor, op, true);
    }

    /**
     * Reduces a tensor over all ranks, in place. With {@code asyncOp=false}, c10d's default, the
     * code after the call sees the result:
     *
     * <ul>
     *   <li>On the CPU, the call returns when the tensor holds the result.
     *   <li>On a GPU, work enqueued later on the current stream sees the result. {@code cuda_p2p}
     *       can then reduce on the current stream itself, with half as many driver calls on the
     *       host.
     * </ul>
     *
     * @param tensor this rank's contribution, overwritten with the result; the same shape on all
     *     ranks
     * @param asyncOp true if the caller waits for the work itself; ranks may pass different values
     * @return the work; with {@code asyncOp=false} only needed to learn whether the operation
     *     failed later on the GPU
     * @throws CollectiveException with {@code asyncOp=false}: if the operation has failed (on a
     *     GPU, if the failure is already known)
     * @throws IllegalStateException with {@code asyncOp=false} on a GPU inside an {@link
     *     NcclBatch}, because its operations start only when the batch ends; nothing is sent
     */
    Work allReduce(NDArray tensor, ReduceOp op, boolean asyncOp);

    /**
     * Reduces a tensor over all ranks to one rank. The result has the bits of {@link #allReduce}.
     *
     * @param tensor this rank's contribution; overwritten with the result on the root, unchanged on
     *     other ranks; the same shape on all ranks
     * @throws IllegalArgumentException if the root is out of range, or as {@link #allReduce}
     */
    Work reduce(NDArray tensor, int root, ReduceOp op);

    /**
     * Copies a tensor from one rank to all other ranks.
     *
     * @param tensor the input on the root, the output on other ranks; the same shape on all ranks
     * @throws IllegalArgumentException if the root is out of range or the tensor is unusable
     */
    default Work broadcast(NDArray tensor, int root) {
        return broadcast(tensor, root, true);
    }

    /**
     * As {@link #broadcast(NDArray, int)}. With {@code asyncOp=false}, the code after the call sees
     * the result, as with {@link #allReduce(NDArray, ReduceOp, boolean)}.
     */
    Work broadcast(NDArray tensor, int root, boolean asyncOp);

    /**
     * Gathers the tensors of all ranks on every rank. If their shapes differ, it runs as one
     * broadcast for each rank.
     *
     * @param outputs one output per rank, in rank order, of the shape of that rank's input
     * @param input this rank's tensor
     */
    Work allGather(List<NDArray> outputs, NDArray input);

    /**
     * Gathers the tensors of all ranks into one tensor on every rank, in rank order. For inputs of
     * shape {@code (n, k)} the output is {@code (W·n, k)}, concatenated, or {@code (W, n, k)},
     * stacked, where W is the world size.
     *
     * @param output the gathered tensor, with W times as many elements as the input
     * @param input this rank's tensor; the same shape on all ranks
     */
    default Work allGatherIntoTensor(NDArray output, NDArray input) {
        return allGatherIntoTensor(output, input, true);
    }

    /**
     * As {@link #allGatherIntoTensor(NDArray, NDArray)}. With {@code asyncOp=false}, the code after
     * the call sees the result, as with {@link #allReduce(NDArray, ReduceOp, boolean)}.
     *
     * @return the work
     */
    Work allGatherIntoTensor(NDArray output, NDArray input, boolean asyncOp);

    /**
     * Checks arguments as {@link #allGatherIntoTensor} does, for library operations with the same
     * contract, which run by {@link #execute}; returns type, shape and address of the input.
     */
    TensorInfo checkAllGather(NDArray output, NDArray input);

    /**
     * Gathers the tensors of all ranks on one rank.
     *
     * @param outputs on the root, one output per rank, in rank order, each of the input's shape;
     *     null or empty on other ranks
     * @param input this rank's tensor; the same shape on all ranks
     * @return the work; its result is the list of outputs
     */
    Work gather(List<NDArray> outputs, NDArray input, int root);

    /**
     * Distributes a list of tensors from one rank, one tensor to each rank.
     *
     * @param output this rank's tensor; the same shape on all ranks
     * @param inputs on the root, one tensor per rank, in rank order, each of the output's shape;
     *     null or empty on other ranks
     */
    Work scatter(NDArray output, List<NDArray> inputs, int root);

    /**
     * Reduces lists of tensors over all ranks; rank r gets the reduction of all {@code inputs[r]}.
     * If the shapes of a list differ, it runs as one {@link #reduce} for each rank.
     *
     * @param output this rank's result
     * @param inputs one tensor per rank, in rank order, of the shape of that rank's output; the
     *     same shapes on all ranks
     */
    Work reduceScatter(NDArray output, List<NDArray> inputs, ReduceOp op);

    /**
     * Reduces a tensor over all ranks and scatters the result along its first dimension, in rank
     * order. For inputs of shape {@code (W·n, k)} rank r gets rows {@code r·n} to {@code (r+1)·n -
     * 1}, where W is the world size.
     *
     * @param output this rank's part of the result; the same shape on all ranks
     * @param input this rank's contribution, with W times as many elements as the output
     */
    default Work reduceScatterTensor(NDArray output, NDArray input, ReduceOp op) {
        return reduceScatterTensor(output, input, op, true);
    }

    /**
     * As {@link #reduceScatterTensor(NDArray, NDArray, ReduceOp)}. With {@code asyncOp=false}, the
     * code after the call sees the result, as with {@link #allReduce(NDArray, ReduceOp, boolean)}.
     */
    Work reduceScatterTensor(NDArray output, NDArray input, ReduceOp op, boolean asyncOp);

    /**
     * Checks arguments as {@link #reduceScatterTensor} does, for library operations with the same
     * contract, which run by {@link #execute}; returns type, shape and address of the output.
     */
    TensorInfo checkReduceScatter(NDArray output, NDArray input, ReduceOp op);

    /**
     * Sends one tensor from every rank to every rank. {@code inputs[q]} on rank r and {@code
     * outputs[r]} on rank q must have equal numbers of elements; otherwise shapes are free.
     *
     * @param outputs one output per source rank, in rank order
     * @param inputs one input per destination rank, in rank order; inputs and outputs all have the
     *     same element type
     */
    Work allToAll(List<NDArray> outputs, List<NDArray> inputs);

    /**
     * Sends an equal part of a tensor from every rank to every rank. The first dimensions of input
     * and output must be divisible by the world size.
     *
     * @param output the parts from all ranks, concatenated along the first dimension in rank order
     * @param input the parts for all ranks, concatenated along the first dimension in rank order
     */
    default Work allToAllSingle(NDArray output, NDArray input) {
        return allToAllSingle(output, input, null, null);
    }

    /**
     * As {@link #allToAllSingle(NDArray, NDArray)}. With {@code asyncOp=false}, the code after the
     * call sees the result, as with {@link #allReduce(NDArray, ReduceOp, boolean)}.
     */
    Work allToAllSingle(NDArray output, NDArray input, boolean asyncOp);

    /**
     * Sends a part of a tensor from every rank to every rank. {@code inputSplits[q]} on rank r must
     * equal {@code outputSplits[r]} on rank q. {@code shm} checks this before any tensor changes
     * and fails on all ranks; NCCL checks it only with {@link DebugLevel#DETAIL}.
     *
     * @param output the parts from all ranks, concatenated along the first dimension in rank order
     * @param input the parts for all ranks, concatenated along the first dimension in rank order;
     *     equal to the output in element type and in all dimensions but the first
     * @param outputSplits the number of rows that come from each rank; null for equal parts
     * @param inputSplits the number of rows that go to each rank; null for equal parts
     * @throws IllegalArgumentException if splits are negative, do not add up to the first
     *     dimension, or if this rank's splits for itself differ
     */
    Work allToAllSingle(NDArray output, NDArray input, long[] outputSplits, long[] inputSplits);

    /**
     * Sends a message to one rank, asynchronously; the counterpart of {@code
     * torch.distributed.isend}. The receiver calls {@link #recv} or {@link #recvAnySource}. The
     * work completes after the receiver has called and the whole message has been transferred.
     *
     * <ul>
     *   <li>Messages with the same tag between the same two ranks arrive in the order of the sends.
     *       Messages with different tags or destinations do not wait for each other.
     *   <li>If the receiver expects another element type or number of elements, both calls fail
     *       with a {@link CollectiveMismatchException}.
     *   <li>A message without a matching receive fails at the timeout and is withdrawn; the group
     *       stays usable.
     * </ul>
     *
     * <p>NCCL differs: it ignores tags, matches the messages of a pair in call order, and compares
     * them only with {@link DebugLevel#DETAIL}. What a message waits for and what its timeout
     * breaks: {@link NcclOptions.Builder#optPairCommunicators}.
     *
     * @param destination the receiving rank of this group; not this rank
     * @param tag distinguishes messages between two ranks; not negative
     */
    Work send(NDArray tensor, int destination, int tag);

    /**
     * Receives a message from one rank, asynchronously; the counterpart of {@code
     * torch.distributed.irecv}.
     *
     * @param tensor receives the message; its element type and number of elements must equal the
     *     sender's
     * @param source the sending rank of this group; not this rank
     */
    Work recv(NDArray tensor, int source, int tag);

    /**
     * Receives a message from any rank: the first one that arrives with this tag.
     *
     * @return the work; {@link Work#sourceRank()} returns the sender
     * @throws UnsupportedOperationException if the backend is {@code nccl} or {@code cuda_p2p}
     */
    Work recvAnySource(NDArray tensor, int tag);

    /**
     * Issues sends and receives that run concurrently; the counterpart of {@code
     * torch.distributed.batch_isend_irecv}. All messages are checked before the first is issued.
     *
     * @return the works, in the order of {@code ops}
     * @throws IllegalArgumentException if {@code ops} is empty, or a message is invalid
     */
    List<Work> batchIsendIrecv(List<P2pOp> ops);

    /** Synchronises all ranks. The returned work completes once every rank has called barrier(). */
    Work barrier();

    /**
     * Blocks until all ranks have called monitoredBarrier(), or throws and names the missing ranks;
     * the counterpart of {@code torch.distributed.monitored_barrier}. It does not wait for running
     * operations, and the group stays usable whatever the outcome.
     *
     * <p>It consists of messages: every rank reports to rank 0, and rank 0 answers with the
     * outcome. Rank 0 and all ranks that reported in time throw the same exception. A rank that
     * reports later gets no answer; its own call times out and names rank 0.
     *
     * @param timeout how long rank 0 waits for the other ranks
     * @param waitAllRanks true: rank 0 waits for the whole timeout and names all missing ranks;
     *     false: it stops at the first missing rank
     * @throws CollectiveTimeoutException if ranks are missing; {@link
     *     CollectiveTimeoutException#missingRanks()} lists them, or rank 0 if it did not answer
     */
    void monitoredBarrier(Duration timeout, boolean waitAllRanks);

    /**
     * All-reduces several tensors, as one operation per element type or one batch.
     *
     * @param tensors this rank's contributions, overwritten with the results; the same types and
     *     shapes in the same order on all ranks; must not overlap in memory
     * @return one work for all tensors
     * @throws IllegalArgumentException as {@link #allReduce}, and if there are no tensors or they
     *     overlap
     */
    Work allReduceCoalesced(List<NDArray> tensors, ReduceOp op);

    /**
     * All-gathers several tensors, as one operation per element type or one batch.
     *
     * @param outputs one gathered tensor per input; must not overlap in memory with another output
     *     or another input
     * @param inputs this rank's tensors; the same types and shapes in the same order on all ranks;
     *     an input may be this rank's part of its output
     * @throws IllegalArgumentException as {@link #allGatherIntoTensor}, and if there are no tensors
     */
    Work allGatherCoalesced(List<NDArray> outputs, List<NDArray> inputs);

    /**
     * Reduce-scatters several tensors, as one operation per element type or one batch.
     *
     * @param outputs this rank's parts of the results; the same types and shapes in the same order
     *     on all ranks; must not overlap in memory with another output or another input
     * @param inputs one contribution per output
     * @throws IllegalArgumentException as {@link #reduceScatterTensor}, and if there are no tensors
     *     or outputs overlap
     */
    Work reduceScatterCoalesced(List<NDArray> outputs, List<NDArray> inputs, ReduceOp op);

    /**
     * Runs code as one operation of the group, in call order. Libraries add their own operations on
     * {@link #p2pBuffers()} this way.
     *
     * <ul>
     *   <li>The code must call {@link P2pBuffers#awaitAgreement} before it uses data from other
     *       ranks.
     *   <li>It must not issue operations on the group.
     *   <li>If it throws, the group is broken. Exception: {@code shm} stays usable after a {@link
     *       CollectiveMismatchException}, which all ranks get.
     * </ul>
     *
     * @param body the code; runs once, on this thread or another
     * @throws UnsupportedOperationException if the backend does not run library operations
     */
    Work execute(OpType type, Agreed agreed, Consumer<Operation> body);

    /** Creates a sub-group with a generated name; see {@link #newGroup(List, String)}. */
    ProcessGroup newGroup(List<Integer> ranks);

    /**
     * Creates a sub-group; the counterpart of {@code torch.distributed.new_group}.
     *
     * <ul>
     *   <li>All ranks of this group call it with the same arguments, non-members included.
     *   <li>Members keep the order that they have in this group, whatever the order of {@code
     *       ranks}.
     *   <li>The sub-group has the backend, options and timeout of this group. {@linkplain #destroy
     *       Destroying} this group destroys the sub-group too; otherwise the two are independent.
     * </ul>
     *
     * @param ranks ranks of this group, each once
     * @param name the name within this group; the {@linkplain #name full name} is this group's
     *     name, a dot, and this name. It contains no dot, is not a number, and can be used once per
     *     parent group, even after the sub-group has been destroyed
     * @return the group; a {@linkplain #isMember non-member} handle on other ranks
     * @throws IllegalArgumentException if a rank or the name is invalid; on all ranks if the name
     *     was used before
     * @throws CollectiveException if the ranks pass different arguments, or do not all call in
     *     time; missing ranks are named by their rank in this group
     */
    ProcessGroup newGroup(List<Integer> ranks, String name);

    /**
     * Splits this group into disjoint sub-groups, one per color; the counterpart of {@code
     * MPI_Comm_split}. All ranks of this group call it. Otherwise as {@link #newGroup(List,
     * String)}.
     *
     * @param color the sub-group of this rank; negative for none
     * @param key orders the ranks of a sub-group; ranks with equal keys keep the order of this
     *     group
     * @return the sub-group of that color; a {@linkplain #isMember non-member} handle if the color
     *     is negative
     * @throws CollectiveException if not all ranks call in time
     */
    ProcessGroup split(int color, int key);

    /**
     * Creates a group of the surviving ranks after other ranks have died, without new processes;
     * the counterpart of PyTorch's {@code shrink_group}. This group may be broken. The remaining
     * ranks call it, each from a thread without a running operation of this group.
     *
     * <ul>
     *   <li>The ranks keep their order. Backend, options and timeout are those of this group.
     *   <li>On GPUs the new group has a new communicator. This works with every version of NCCL,
     *       although the communicator of this group is broken; {@code ncclCommShrink} is not used.
     *   <li>The ranks rendezvous in this group's store, which must outlive the excluded ranks. Let
     *       a launcher serve it, not rank 0.
     *   <li>This group stays as it is: destroy it after the new one, because destroying it destroys
     *       the new one too.
     * </ul>
     *
     * @param ranksToExclude ranks of this group, at least one; the same on all remaining ranks
     * @throws IllegalArgumentException if a rank is out of range, or is this rank
     * @throws CollectiveMismatchException if another rank excludes other ranks
     * @throws CollectiveTimeoutException if the remaining ranks do not all call in time
     */
    ProcessGroup shrink(List<Integer> ranksToExclude);

    /**
     * Creates a sub-group with a backend and options of its own, timeout included; the counterpart
     * of {@code torch.distributed.new_group(ranks, timeout, backend, pg_options, group_desc)}.
     * Otherwise as {@link #newGroup(List, String)}.
     *
     * @param backend the backend's name; the same on all ranks
     * @param options the backend's options on this rank
     * @throws IllegalArgumentException also if the backend is unknown or does not take the options
     */
    ProcessGroup newGroup(List<Integer> ranks, String name, String backend, BackendOptions options);

    /**
     * Creates a sub-group of all ranks with a generated name; see {@link #newGroup(List, String,
     * String, BackendOptions)}.
     */
    ProcessGroup newGroup(String backend, BackendOptions options);

    /**
     * Breaks the group, because this rank cannot make a call that the other ranks make, for example
     * for lack of memory. Running operations and later calls fail with the cause, on this rank at
     * once, on other ranks within a second. Collectives call it themselves; call it if your own
     * code fails between collectives and the other ranks would wait. Destroy the group afterwards.
     *
     * <p>Any thread may call it. No-op if the group is broken already, or destroyed.
     */
    void abort(Throwable cause);

    /**
     * Returns why the group is broken, without an operation.
     *
     * <ul>
     *   <li>A group is broken by a timeout, a rank that died or failed, {@link #abort}, and on GPUs
     *       by a mismatch of calls. All later operations fail: {@linkplain #destroy destroy} it.
     *   <li>The failure of another rank is known within a second, on CPUs at once. A rank that has
     *       only destroyed the group did not break it.
     *   <li>Empty is no promise that the next operation succeeds.
     * </ul>
     */
    Optional<CollectiveException> failure();

    /**
     * Leaves the group: frees its resources and destroys its sub-groups. Later calls throw {@link
     * IllegalStateException}. Idempotent.
     *
     * <p>Running operations:
     *
     * <ul>
     *   <li><b>GPU:</b> a stream may wait for their results, so this call waits until they have
     *       ended. An operation that another rank has not called fails: at its timeout, when that
     *       rank dies, or (with {@code cuda_p2p}, except messages) when that rank destroys the
     *       group.
     *   <li>If the calling thread is interrupted, this call does not wait; the operations fail, and
     *       streams that wait for them get invalid results.
     *   <li>This call does not wait for CUDA graphs. First synchronise the streams on which they
     *       were launched.
     *   <li><b>{@code shm}:</b> only the host can wait for results. Operations that no thread waits
     *       for fail immediately with an error that says why.
     * </ul>
     *
     * <p>GPU memory that other ranks have mapped is freed once those ranks have left and their GPUs
     * are idle, possibly after this call has returned.
     *
     * <p>A group that is garbage without having been destroyed is destroyed later, and the log
     * warns once. Do not rely on this: the garbage collector decides when. Details:
     *
     * <ul>
     *   <li>A group is garbage when nothing refers to a handle, a view or a sub-group of it, and
     *       none of its operations is running on this rank.
     *   <li>A {@link Work}, the {@linkplain #p2pBuffers() buffers} and arrays in them do not keep
     *       the group.
     *   <li>A group with an operation in a CUDA graph is never freed this way.
     * </ul>
     */
    void destroy();

    /** Calls {@link #destroy()}. */
    @Override
    default void close() {
        destroy();
    }
}

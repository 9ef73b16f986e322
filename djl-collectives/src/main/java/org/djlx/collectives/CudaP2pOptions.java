/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import ai.djl.ndarray.NDArray;
import java.time.Duration;
import java.util.Optional;
import org.djlx.collectives.internal.host.Required;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.nativeops.cuda.GpuTopology;

/**
 * Options of the {@code cuda_p2p} backend. All but the devices must be the same on all ranks.
 *
 * <p>What this backend does not leave to NCCL are all-reduces up to {@link #oneShotBytes(int)} or
 * {@link #twoShotBytes(int, boolean)}, which run on the stream of the group as NCCL's operations
 * do, and operators on P2P buffers ({@link ProcessGroup#execute}), which run on the caller's
 * current stream; there, too, may run all-reduces {@linkplain ProcessGroup#allReduce(NDArray,
 * ReduceOp, boolean) that are waited for}. A call returns when its work is enqueued: hosts do not
 * wait for each other, unless one is hundreds of calls ahead; except that a call of an operator
 * waits until the operations before are enqueued, and NCCL waits for other ranks before the first
 * of a kind is. It is the GPUs that wait, in kernels that give up at the operation's timeout, or
 * when the group breaks or is destroyed. Operations of a group run in the order of the calls, also
 * on different streams and whether NCCL runs them or not; on batches, see {@link NcclBatch}.
 *
 * <p><b>Which GPUs.</b> If the GPUs of every two ranks can access each other's memory, all this is
 * done between them. GPUs that form a hybrid cube mesh, as in a DGX-1, are asked for that only
 * where they are linked by NVLink: eight ranks there do all-reduces up to {@link
 * #oneShotBytes(int)} over these links, and have no P2P buffers, so that operators fall back.
 * Everywhere else NCCL does all. GPUs may be of different architectures; what one of them has no
 * kernel for, bfloat16 before sm_80, NCCL does on all ranks. Before sm_70, NCCL does all.
 *
 * <p><b>Calls that differ.</b> What each rank calls is compared behind the calls, messages and the
 * sizes of an all-to-all excepted. Calls that differ break the group: on every rank, what is under
 * way and what is called later fails with an error that names what each called, and tensors of what
 * was under way hold anything. With {@link NcclOptions.Builder#optVerify} in {@link
 * Builder#optNcclOptions}, a call waits on the host until all ranks have made theirs and compares
 * before anything is enqueued; calls that differ then leave the group usable. That is for finding
 * errors, and each rank needs a thread of its own for it.
 *
 * <p><b>Several groups.</b> Each group has a stream, so that its operations do not wait for those
 * of other groups. A stream that is told to wait for a work, or that runs an operator, does so
 * before anything that it is given later, for another group as well: ranks that share several
 * groups call operators in one order, or on a stream for each group; otherwise GPUs wait for each
 * other until the timeout. Streams do not help operators that are one launch, as fused ones are on
 * Hopper GPUs or an exchange before or behind a matmul, nor all-reduces of P2P kernels from some
 * 256 KiB on: such a kernel waits for those of the other ranks on all multiprocessors, all-reduces
 * on all but 32, and what another group has launched on its GPU gets few or none until then. Ranks
 * call those of all groups in one order. CUDA maps the streams of a process to 8 hardware queues of
 * a GPU, in which one waits for another; with more streams than that, set {@code
 * CUDA_DEVICE_MAX_CONNECTIONS=32} in the environment. A stream on which operations ran must not be
 * destroyed before they have ended.
 *
 * <p><b>Graphs.</b> What NCCL does not run can be recorded by {@link
 * org.djlx.nativeops.cuda.CudaGraph#capture}; what NCCL runs, messages included, then throws. All
 * ranks record it at the same place among their calls, which is compared, and launch their graphs
 * equally often, which is not. A launch waits on the GPU for those of the other ranks. An operation
 * outside of graphs follows on a graph that was launched before on the caller's current stream; the
 * reverse does not hold, and graphs are not ordered with each other: launch them on one stream,
 * which has waited for the works of the operations before, or order the streams, and launch none
 * any more once the group is destroyed. A launch whose peers do not arrive within the timeout with
 * which the operation was recorded breaks the group: its output holds arbitrary values, NaN among
 * them, until the next call on the group, or {@code await} of a work of it, throws the error.
 */
public final class CudaP2pOptions extends BackendOptions {

    /** The size of a rank's P2P buffer unless told otherwise: 256 MiB. */
    public static final long DEFAULT_BUFFER_SIZE = 256L << 20;

    // Two ranks send no more by one-shot than by anything else. More do: so much, to all together.
    private static final long ONE_SHOT_BYTES = 64 << 20;
    private static final long ONE_SHOT_BYTES_TO_ALL = 768 << 10;

    // On 2 and 4 H200s two-shot is ahead of NCCL up to 64 MiB. On 8 it takes 0.95 of NCCL's time at
    // 16 MiB and 1.17 at 64; between the two, where nothing was measured, both would be alike at 20
    // to 22 MiB. Of 5 to 7 ranks nothing was measured either: they are taken for 8. Direct was
    // measured on 2 alone.
    private static final long TWO_SHOT_BYTES = 64 << 20;
    private static final long TWO_SHOT_BYTES_OF_MANY = 16 << 20;
    private static final int MANY = 5; // ranks
    private static final String USUAL = "what suits the ranks";
    private static final long MAX_SIZE = 1L << 40; // more than any GPU has, and sums stay longs

    private final long bufferSize;
    private final long heapSize;
    private final NcclOptions ncclOptions;
    private final Long oneShotBytes; // null if it depends on the number of ranks
    private final Long twoShotBytes; // likewise
    private final GpuTopology.Kind topology;
    private final boolean sharedGpus;
    private final Boolean direct; // null if it depends on the number of ranks

    private CudaP2pOptions(Builder builder) {
        super(
                builder.timeout == null ? builder.ncclOptions.timeout() : builder.timeout,
                builder.ncclOptions.warnAfter());
        bufferSize = builder.bufferSize;
        heapSize = builder.heapSize;
        ncclOptions = builder.ncclOptions.withTimeout(timeout());
        oneShotBytes = builder.oneShotBytes;
        twoShotBytes = builder.twoShotBytes;
        topology = builder.topology;
        sharedGpus = builder.sharedGpus;
        direct = builder.direct;
    }

    /**
     * Returns the size of each rank's P2P buffer.
     *
     * @return the size in bytes; 0 if there is none
     */
    public long bufferSize() {
        return bufferSize;
    }

    /**
     * Returns the size of each rank's P2P heap.
     *
     * @return the size in bytes; 0 if there is none
     */
    public long heapSize() {
        return heapSize;
    }

    /**
     * Returns the options of what runs on NCCL.
     *
     * @return the options, also for the timeout and the devices
     */
    public NcclOptions ncclOptions() {
        return ncclOptions;
    }

    /**
     * Returns up to which size an all-reduce is one-shot, or takes the mesh algorithm.
     *
     * @param worldSize the number of ranks, at least 1
     * @return the size in bytes
     */
    public long oneShotBytes(int worldSize) {
        if (oneShotBytes != null) {
            return oneShotBytes;
        }
        return worldSize <= 2 ? ONE_SHOT_BYTES : ONE_SHOT_BYTES_TO_ALL / (worldSize - 1);
    }

    /**
     * Returns up to which size an all-reduce is two-shot.
     *
     * @param worldSize the number of ranks, at least 1
     * @param recorded whether it is recorded into a graph, which cannot hold what NCCL runs
     * @return the size in bytes
     */
    public long twoShotBytes(int worldSize, boolean recorded) {
        if (twoShotBytes != null) {
            return twoShotBytes;
        }
        return worldSize < MANY || recorded ? TWO_SHOT_BYTES : TWO_SHOT_BYTES_OF_MANY;
    }

    /**
     * Returns how the GPUs are taken to be linked.
     *
     * @return the topology, or empty if NVML tells
     */
    public Optional<GpuTopology.Kind> topology() {
        return Optional.ofNullable(topology);
    }

    /** All that must be the same on all ranks, in words. */
    @Override
    public String toString() {
        return String.format(
                "a buffer of %d bytes, a heap of %d, one-shot up to %s, two-shot up to %s, topology"
                        + " %s%s%s%s",
                bufferSize,
                heapSize,
                oneShotBytes == null ? USUAL : oneShotBytes,
                twoShotBytes == null ? USUAL : twoShotBytes,
                topology == null ? "from NVML" : topology,
                sharedGpus ? ", shared GPUs" : "",
                direct == null ? "" : direct ? ", direct" : ", not direct",
                ncclOptions.isVerify() ? ", verified" : "");
    }

    /**
     * Tells whether ranks may share a GPU.
     *
     * @return whether they may
     */
    public boolean isSharedGpus() {
        return sharedGpus;
    }

    /**
     * Tells whether ranks of one process may read and write each other's tensors.
     *
     * @return whether they may
     */
    public boolean isDirect() {
        return direct == null || direct;
    }

    /**
     * Tells whether an all-reduce is direct, if it is too large for two-shot.
     *
     * @param worldSize the number of ranks, at least 1
     * @param recorded whether it is recorded into a graph, which cannot hold what NCCL runs
     * @return whether it is, where it can be
     */
    public boolean isDirect(int worldSize, boolean recorded) {
        return direct != null ? direct : worldSize < MANY || recorded;
    }

    /**
     * Returns a builder.
     *
     * @return the builder, with the defaults
     */
    public static Builder builder() {
        return new Builder();
    }

    /** Builds {@link CudaP2pOptions}. */
    public static final class Builder {

        private long bufferSize = DEFAULT_BUFFER_SIZE;
        private long heapSize;
        private NcclOptions ncclOptions = NcclOptions.builder().build();
        private Duration timeout; // null: that of NCCL's options
        private Long oneShotBytes;
        private Long twoShotBytes;
        private GpuTopology.Kind topology;
        private boolean sharedGpus;
        private Boolean direct;

        private Builder() {}

        /**
         * Sets the size of each rank's P2P buffer.
         *
         * @param bytes the size in bytes; 0 for none
         * @return this builder
         */
        public Builder optBufferSize(long bytes) {
            this.bufferSize = requireSize("the buffer size", bytes);
            return this;
        }

        /**
         * Sets the size of each rank's P2P heap, from which {@link
         * org.djlx.collectives.p2p.P2pAllocator} gives out arrays.
         *
         * @param bytes the size in bytes; 0, none, unless set
         * @return this builder
         */
        public Builder optHeapSize(long bytes) {
            this.heapSize = requireSize("the heap size", bytes);
            return this;
        }

        /**
         * Sets how long an operation may take, on NCCL or not.
         *
         * @param timeout the timeout; that of the options for NCCL unless set
         * @return this builder
         */
        public Builder optTimeout(Duration timeout) {
            this.timeout = Required.argument("optTimeout: timeout", timeout);
            return this;
        }

        /**
         * Sets the options of what runs on NCCL. The timeout, when to warn, the devices, whether
         * waiting for a work blocks the host, and whether calls are verified, are also those of the
         * rest.
         *
         * @param options the options
         * @return this builder
         */
        public Builder optNcclOptions(NcclOptions options) {
            this.ncclOptions = Required.argument("optNcclOptions: options", options);
            return this;
        }

        /**
         * Sets up to which size an all-reduce is one-shot, or takes the mesh algorithm where the
         * GPUs form a hybrid cube mesh.
         *
         * <p>Kernels of large all-reduces take all multiprocessors but 32 until the other ranks
         * have come. Where these are to go on with something else, as with the backward pass behind
         * gradients, smaller sizes here and for two-shot leave large ones to what takes a few (see
         * {@link #optDirect}).
         *
         * @param bytes the size in bytes; unless set, 64 MiB for two ranks, otherwise 768 KiB
         *     divided by the number of other ranks
         * @return this builder
         */
        public Builder optOneShotBytes(long bytes) {
            this.oneShotBytes = requireSize("the largest one-shot size", bytes);
            return this;
        }

        /**
         * Sets up to which size an all-reduce is two-shot, if it is too large for one-shot.
         *
         * @param bytes the size in bytes; unless set, 64 MiB for up to four ranks and in graphs,
         *     otherwise 16 MiB
         * @return this builder
         */
        public Builder optTwoShotBytes(long bytes) {
            this.twoShotBytes = requireSize("the largest two-shot size", bytes);
            return this;
        }

        private static long requireSize(String what, long bytes) {
            if (bytes < 0 || bytes > MAX_SIZE) {
                throw new IllegalArgumentException(
                        what + " must be from 0 to " + MAX_SIZE + " bytes: " + bytes);
            }
            return bytes;
        }

        /**
         * Lets ranks share a GPU, to try out what runs on P2P buffers where there are fewer GPUs
         * than ranks. What needs NCCL fails then, as NCCL refuses to share. Ranks of one process
         * must each have a current stream of their own, as they wait for each other on it, and run
         * with two settings in the environment. {@code CUDA_MODULE_LOADING=EAGER}: otherwise a
         * kernel is loaded with its first launch, which may wait for kernels that already run on
         * that very GPU and wait for this rank. {@code CUDA_DEVICE_MAX_CONNECTIONS=32}: otherwise
         * streams of several ranks may have one hardware queue, in which the kernel of one rank
         * comes behind the stream of another that waits for it. Neither helps where one rank alone
         * loads a kernel while those of others wait for it, as cuBLAS does for a size that it has
         * not seen; kernels of this project are loaded once for all ranks of a process. And a rank
         * synchronises its stream before it copies from or to memory that is not pinned, as {@code
         * create} and {@code toFloatArray} of arrays do: such a copy waits for the stream, and
         * until then the driver takes no calls for that GPU, not even of the rank that is waited
         * for. Kernels that wait for peers take at most half of the SMs together, so that a matmul
         * of the rank that is waited for finds room.
         *
         * @param shared whether they may; false, NCCL alone, unless set
         * @return this builder
         */
        public Builder optSharedGpus(boolean shared) {
            this.sharedGpus = shared;
            return this;
        }

        /**
         * Lets ranks that are threads of one process, on GPUs that are all linked by NVLink, reduce
         * large tensors where they lie: each reads and writes a part of all ranks' tensors, by a
         * few blocks that leave the other multiprocessors to what runs beside them. Otherwise NCCL
         * reduces tensors that are too large for two-shot, as it does where ranks are processes,
         * where libtorch's segments of memory can grow ({@code expandable_segments}), and for types
         * and operations that only NCCL has.
         *
         * <p>When such an all-reduce has failed, for example because a rank was late, that rank may
         * still write into the tensor: its values count for nothing, whatever is written to it,
         * until all ranks have destroyed the group. Its memory is kept until then; that of a graph
         * as long as the graph.
         *
         * @param allowed whether they may; unless set, up to four ranks, and in graphs
         * @return this builder
         */
        public Builder optDirect(boolean allowed) {
            this.direct = allowed;
            return this;
        }

        /**
         * Sets how the GPUs are taken to be linked, for tests; NVML tells unless set. In a hybrid
         * cube mesh, ranks 0 to 3 and 4 to 7 are taken to be the fours, and rank i to be linked to
         * rank i + 4; between other ranks there is no P2P then, whatever the GPUs can do.
         *
         * @param kind the topology
         * @return this builder
         */
        public Builder optTopology(GpuTopology.Kind kind) {
            this.topology = Required.argument("optTopology: kind", kind);
            return this;
        }

        /**
         * Builds the options.
         *
         * @return the options
         */
        public CudaP2pOptions build() {
            return new CudaP2pOptions(this);
        }
    }
}

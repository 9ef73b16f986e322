// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import ai.djl.ndarray.NDArray;
import java.time.Duration;
import java.util.Optional;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.nativeops.cuda.GpuTopology;
import org.djlx.nativeops.host.Required;

/**
 * Options of the {@code cuda_p2p} backend: NCCL plus GPU kernels that use peer memory. All options
 * except the devices must be the same on all ranks.
 *
 * <pre>{@code
 * BackendOptions options = CudaP2pOptions.builder().optBufferSize(512L << 20).build();
 * List<ProcessGroup> groups = ProcessGroups.local("cuda_p2p", 8, options);
 * }</pre>
 *
 * <table>
 * <caption>Which operation runs where</caption>
 * <tr><th>operation</th><th>runs as</th><th>stream</th></tr>
 * <tr>
 *   <td>all-reduce up to {@link #oneShotBytes(int)}</td>
 *   <td>one-shot kernel</td>
 *   <td>the group's</td>
 * </tr>
 * <tr>
 *   <td>all-reduce up to {@link #twoShotBytes(int, boolean)}</td>
 *   <td>two-shot kernel</td>
 *   <td>the group's</td>
 * </tr>
 * <tr>
 *   <td>larger all-reduce, ranks in one process: up to 4, or in a CUDA graph</td>
 *   <td>direct kernel, see {@link Builder#optDirect}</td>
 *   <td>the group's</td>
 * </tr>
 * <tr>
 *   <td>{@linkplain ProcessGroup#allReduce(NDArray, ReduceOp, boolean) synchronous} all-reduce</td>
 *   <td>as above</td>
 *   <td>the caller's, where possible</td>
 * </tr>
 * <tr>
 *   <td>operator on P2P buffers ({@link ProcessGroup#execute})</td>
 *   <td>the operator's kernels</td>
 *   <td>the caller's</td>
 * </tr>
 * <tr>
 *   <td>all-gather, all-to-all, broadcast; reduce-scatter of SUM or AVG in float32, float16 or
 *       bfloat16</td>
 *   <td>exchange kernel, if every two GPUs are linked by NVLink</td>
 *   <td>the group's; the caller's with {@code asyncOp=false}</td>
 * </tr>
 * <tr>
 *   <td>the same above 1 MiB a rank (not all-to-all), and barrier, with {@link
 *       Builder#optCopyEngines}</td>
 *   <td>copies</td>
 *   <td>the group's</td>
 * </tr>
 * <tr><td>all else</td><td>NCCL</td><td>the group's</td></tr>
 * </table>
 *
 * <p>Exchange kernels move every bit as it is, and add in rank order, in float32, with one
 * rounding: the same bits in every run. On the group's stream a kernel of many bytes takes at most
 * 32 SMs, because other work may run beside it. With {@link NcclOptions.Builder#optVerify} NCCL
 * runs all-to-alls outside of graphs, because it compares the sizes of all parts first.
 *
 * <p>Operations of a group run in the order of the calls, whichever stream or library runs them.
 * For batches see {@link NcclBatch}.
 *
 * <h2>Host</h2>
 *
 * <p>A call returns when its work is enqueued; hosts do not wait for each other. GPUs wait, in
 * kernels that stop at the operation's timeout or when the group breaks or is destroyed.
 * Exceptions:
 *
 * <ul>
 *   <li>A host that is hundreds of calls ahead of another host waits for that host.
 *   <li>A call of an operator waits until the operations before it are enqueued.
 *   <li>The first NCCL operation of a kind waits for the other ranks.
 * </ul>
 *
 * <h2>Supported GPUs</h2>
 *
 * <ul>
 *   <li>P2P is used if every pair of GPUs has peer access.
 *   <li>In a hybrid cube mesh (DGX-1), P2P is used over NVLink only. Eight ranks then run
 *       all-reduces up to {@link #meshBytes()} over these links. They have no P2P buffers, so
 *       operators use their fallback.
 *   <li>Otherwise, and before sm_70, NCCL runs everything.
 *   <li>GPUs may have different architectures. If one rank's GPU has no kernel for an operation
 *       (bfloat16 before sm_80), NCCL runs the operation on all ranks.
 * </ul>
 *
 * <h2>Calls that do not match</h2>
 *
 * <p>The ranks compare their calls asynchronously, except messages and the sizes of an all-to-all.
 * A mismatch breaks the group on every rank: running and later operations fail with an error that
 * lists each rank's call, and the tensors of running operations hold arbitrary values.
 *
 * <p>To find such an error, set {@link NcclOptions.Builder#optVerify} in {@link
 * Builder#optNcclOptions}. Each call then blocks until all ranks have called, and compares the
 * calls before it enqueues anything. A mismatch leaves the group usable. Each rank needs its own
 * thread for that.
 *
 * <h2>Several groups on the same GPUs</h2>
 *
 * <ul>
 *   <li>Each group has its own stream, so its operations do not wait for other groups' operations.
 *   <li>While a caller's stream waits for a work or runs an operator, later work on that stream
 *       waits too, also of other groups. Ranks that share several groups must call operators in the
 *       same order, or use one stream per group. Otherwise the GPUs wait for each other until the
 *       timeout.
 *   <li>Single-kernel operators (fused operators on Hopper) fill a GPU while they wait for their
 *       peers. The groups of a process take turns: a call may block until the other ranks have made
 *       earlier calls of other groups, at most for the group's timeout. A thread that calls several
 *       groups must therefore call them in the same order on all ranks, as must processes.
 *   <li>A group is refused, on all ranks, if a process of another job has a group on one of its
 *       GPUs: kernels of two processes could block each other.
 *   <li>Three or more groups that run all-reduces of many MiB at once must call them in the same
 *       order: each leaves 32 SMs free while it waits for its peers.
 *   <li>CUDA maps the streams of a process to 8 hardware queues per GPU, and streams in one queue
 *       wait for each other. A group uses up to four streams: set {@code
 *       CUDA_DEVICE_MAX_CONNECTIONS=32} in the environment if threads call three or more groups of
 *       a GPU in different orders.
 *   <li>Do not destroy a stream before the operations on it have ended.
 * </ul>
 *
 * <h2>CUDA graphs</h2>
 *
 * <ul>
 *   <li>{@link org.djlx.nativeops.cuda.CudaGraph#capture} records everything except NCCL
 *       operations, which throw. Messages are NCCL operations.
 *   <li>All ranks record an operation at the same position in their calls; this is compared.
 *   <li>All ranks launch their graphs equally often; this is not compared. A launch waits on the
 *       GPU for the launches of the other ranks.
 *   <li>Launches of graphs and operations outside of graphs run in the order of the calls, also on
 *       different streams: a stream waits for the group's last launch or operation. The order is
 *       the same on all ranks, as that of all operations; this is not compared.
 *   <li>Do not launch a graph after the group has been destroyed.
 *   <li>If the peers do not arrive within the timeout of the recorded operation, the launch breaks
 *       the group. Its outputs hold arbitrary values, NaN included. The launch's stream is blocked
 *       until the group is broken, so your next call on the group throws the error.
 * </ul>
 */
public final class CudaP2pOptions extends BackendOptions {

    /** The default size of a rank's P2P buffer: 256 MiB. */
    public static final long DEFAULT_BUFFER_SIZE = 256L << 20;

    // With two ranks one-shot sends no more bytes than other algorithms. With more ranks this
    // limits the bytes that a rank sends to all peers together.
    private static final long ONE_SHOT_BYTES = 64 << 20;
    private static final long ONE_SHOT_BYTES_TO_ALL = 768 << 10;

    // Each link carries the tensor once, plus its sum in float32 on one of four; PyTorch's limit.
    private static final long MESH_BYTES = 256 << 10;

    // Measured on H200: on 2 and 4 GPUs two-shot beats NCCL up to 64 MiB. On 8 GPUs it takes 0.95×
    // NCCL's time at 16 MiB and 1.17× at 64 MiB; the crossover, by interpolation, is at about 20
    // MiB. 5 to 7 GPUs were not measured and use the limit for 8. Direct was measured on 2 GPUs
    // only.
    private static final long TWO_SHOT_BYTES = 64 << 20;
    private static final long TWO_SHOT_BYTES_OF_MANY = 16 << 20;
    private static final int MANY = 5; // ranks
    private static final String AUTOMATIC = "automatic";
    private static final long MAX_SIZE = 1L << 40; // beyond any GPU; sums do not overflow a long

    private final Builder values; // never changed
    private final NcclOptions ncclOptions;

    private CudaP2pOptions(Builder builder) {
        super(builder, builder.ncclOptions);
        values = builder.copy();
        ncclOptions = values.ncclOptions.withCommon(this);
    }

    /** {@return the size of each rank's P2P buffer in bytes; 0 if there is none} */
    public long bufferSize() {
        return values.bufferSize;
    }

    /** {@return the size of each rank's P2P heap in bytes; 0 if there is none} */
    public long heapSize() {
        return values.heapSize;
    }

    /** {@return the NCCL options} Their timeout and devices apply to the whole backend. */
    public NcclOptions ncclOptions() {
        return ncclOptions;
    }

    /**
     * {@return the largest size for the all-reduce in a hybrid cube mesh, in bytes: 256 KiB unless
     * {@link Builder#optOneShotBytes} sets it}
     */
    public long meshBytes() {
        return values.oneShotBytes != null ? values.oneShotBytes : MESH_BYTES;
    }

    /**
     * {@return the largest size for the one-shot all-reduce in bytes}
     *
     * @param worldSize the number of ranks, at least 1
     */
    public long oneShotBytes(int worldSize) {
        if (values.oneShotBytes != null) {
            return values.oneShotBytes;
        }
        return worldSize <= 2 ? ONE_SHOT_BYTES : ONE_SHOT_BYTES_TO_ALL / (worldSize - 1);
    }

    /**
     * {@return the largest size for the two-shot all-reduce in bytes}
     *
     * @param worldSize the number of ranks, at least 1
     * @param recorded whether it is recorded into a CUDA graph, which excludes NCCL
     */
    public long twoShotBytes(int worldSize, boolean recorded) {
        if (values.twoShotBytes != null) {
            return values.twoShotBytes;
        }
        return worldSize < MANY || recorded ? TWO_SHOT_BYTES : TWO_SHOT_BYTES_OF_MANY;
    }

    /** {@return the assumed topology of the GPUs; empty if NVML is queried} */
    public Optional<GpuTopology.Kind> topology() {
        return Optional.ofNullable(values.topology);
    }

    /** Returns the options that must be the same on all ranks, as text. */
    @Override
    public String toString() {
        return String.format(
                "a buffer of %d bytes, a heap of %d, one-shot up to %s, two-shot up to %s, topology"
                        + " %s%s%s%s%s",
                values.bufferSize,
                values.heapSize,
                values.oneShotBytes == null ? AUTOMATIC : values.oneShotBytes,
                values.twoShotBytes == null ? AUTOMATIC : values.twoShotBytes,
                values.topology == null ? "from NVML" : values.topology,
                values.sharedGpus ? ", shared GPUs" : "",
                values.direct == null ? "" : values.direct ? ", direct" : ", not direct",
                isCopyEngines() ? ", copy engines" : "",
                ncclOptions.isVerify() ? ", verified" : "");
    }

    /** {@return whether ranks may share a GPU} */
    public boolean isSharedGpus() {
        return values.sharedGpus;
    }

    /** {@return whether copy engines run collectives, see {@link Builder#optCopyEngines}} */
    public boolean isCopyEngines() {
        return values.copyEngines == null ? values.sharedGpus : values.copyEngines;
    }

    /** {@return whether ranks of one process may read and write each other's tensors} */
    public boolean isDirect() {
        return values.direct == null || values.direct;
    }

    /**
     * {@return whether an all-reduce that is too large for two-shot is direct, where that is
     * possible}
     *
     * @param worldSize the number of ranks, at least 1
     * @param recorded whether it is recorded into a CUDA graph, which excludes NCCL
     */
    public boolean isDirect(int worldSize, boolean recorded) {
        return values.direct != null ? values.direct : worldSize < MANY || recorded;
    }

    /** {@return the builder, with the defaults} */
    public static Builder builder() {
        return new Builder();
    }

    /** Builds {@link CudaP2pOptions}. */
    public static final class Builder extends BackendOptions.Builder<Builder> {

        private long bufferSize = DEFAULT_BUFFER_SIZE;
        private long heapSize;
        private NcclOptions ncclOptions = NcclOptions.builder().build();
        private Long oneShotBytes; // null: depends on the number of ranks
        private Long twoShotBytes; // null: depends on the number of ranks, and on graphs
        private GpuTopology.Kind topology; // null: from NVML
        private boolean sharedGpus;
        private Boolean direct; // null: depends on the number of ranks, and on graphs
        private Boolean copyEngines; // null: only if ranks share GPUs

        private Builder() {}

        /**
         * Sets the size of each rank's P2P buffer.
         *
         * @param bytes the size in bytes; 0 for no buffer; 256 MiB unless set
         * @return this builder
         */
        public Builder optBufferSize(long bytes) {
            this.bufferSize = requireSize("the buffer size", bytes);
            return this;
        }

        /**
         * Sets the size of each rank's P2P heap, from which {@link
         * org.djlx.collectives.p2p.P2pAllocator} allocates arrays.
         *
         * @param bytes the size in bytes; 0 (no heap) unless set
         * @return this builder
         */
        public Builder optHeapSize(long bytes) {
            this.heapSize = requireSize("the heap size", bytes);
            return this;
        }

        /**
         * Sets how long an operation may take, whether NCCL runs it or not.
         *
         * @param timeout the timeout; the timeout of the NCCL options unless set
         * @return this builder
         */
        @Override
        public Builder optTimeout(Duration timeout) {
            return super.optTimeout(timeout);
        }

        /**
         * Sets the NCCL options. {@code optTimeout}, {@code optWarnAfter}, {@code optDevices},
         * {@code optBlockingWait} and {@code optVerify} apply to the whole backend.
         *
         * @param options the options
         * @return this builder
         */
        public Builder optNcclOptions(NcclOptions options) {
            this.ncclOptions = Required.argument("optNcclOptions: options", options);
            return this;
        }

        /**
         * Sets the largest size for the one-shot all-reduce, or for the mesh algorithm in a hybrid
         * cube mesh.
         *
         * <p>While large all-reduce kernels wait for other ranks they occupy all SMs but 32. If
         * other work should overlap, such as the backward pass during gradient reduction, set
         * smaller limits here and in {@link #optTwoShotBytes}. Larger tensors then use algorithms
         * with few SMs; see {@link #optDirect}.
         *
         * @param bytes the size in bytes; unless set, 64 MiB for two ranks, 768 KiB divided by the
         *     number of other ranks for more, and 256 KiB in a hybrid cube mesh
         * @return this builder
         */
        public Builder optOneShotBytes(long bytes) {
            this.oneShotBytes = requireSize("the largest one-shot size", bytes);
            return this;
        }

        /**
         * Sets the largest size for the two-shot all-reduce. It is used above the one-shot limit.
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
                        what + " must be 0 to " + MAX_SIZE + " bytes, but is " + bytes);
            }
            return bytes;
        }

        /**
         * Lets ranks share a GPU, to test P2P operations on a machine with fewer GPUs than ranks.
         * NCCL does not support shared GPUs. All-reduces, all-gathers, reduce-scatters,
         * all-to-alls, broadcasts and barriers run without NCCL, see {@link #optCopyEngines}; other
         * collectives fail.
         *
         * <p>For ranks in one process:
         *
         * <ul>
         *   <li>Each rank needs its own current stream, because ranks wait for each other on it.
         *   <li>Set {@code CUDA_MODULE_LOADING=EAGER}. With lazy loading the first launch of a
         *       kernel may wait for running kernels of the same GPU, and these wait for this rank.
         *       Where each rank of a process has a GPU of its own, do not set it: loading a library
         *       would wait for running kernels of all GPUs of the process, and they for this rank.
         *   <li>Set {@code CUDA_DEVICE_MAX_CONNECTIONS=32}. Otherwise streams of several ranks may
         *       share a hardware queue. A stream that waits for a kernel then blocks the queue, and
         *       with it this kernel. 32 is the maximum. A group is refused if the ranks on a GPU,
         *       those of all groups of the process, need more queues: four each.
         *   <li>Neither setting helps if a rank loads a kernel while kernels of other ranks wait:
         *       the load waits for these, and meanwhile no thread can launch on the GPU. cuBLAS
         *       loads a kernel for a new matrix size. Before such a call let all ranks of all
         *       groups on the GPU synchronise their streams and wait for each other on the host; if
         *       several groups run on threads of their own, let one group after the other run every
         *       size once. Otherwise an operation of any of these groups may time out. Kernels of
         *       this project are loaded once for all ranks of a process.
         *   <li>Synchronise the rank's stream before you copy from the GPU to memory that is not
         *       pinned, as {@code toFloatArray} and {@code getFloat} do. While the copy waits for
         *       the stream, it holds a lock of the driver. Other ranks can then allocate no memory
         *       and create no event on that GPU, not even the rank that the stream waits for: all
         *       ranks wait until the timeout.
         *   <li>Free no memory of the GPU while ranks wait for each other: no {@code cudaFree}, no
         *       emptying of libtorch's cache, which libtorch empties itself when memory runs out.
         *       {@code cudaFree} waits for all kernels of the GPU, and during that time nothing can
         *       be launched on the GPU.
         * </ul>
         *
         * <p>Kernels that wait for peers use at most half of the SMs together. The other half is
         * free for a matmul of the peer.
         *
         * @param shared true to share; false unless set
         * @return this builder
         */
        public Builder optSharedGpus(boolean shared) {
            this.sharedGpus = shared;
            return this;
        }

        /**
         * Allows the direct all-reduce for tensors that are too large for two-shot. Each rank reads
         * and writes its part of all ranks' tensors, without a staging buffer, on a few SMs. NCCL
         * is used instead if:
         *
         * <ul>
         *   <li>ranks are separate processes, or not all GPUs are linked by NVLink;
         *   <li>libtorch uses expandable segments ({@code expandable_segments}), which are not
         *       peer-mapped;
         *   <li>only NCCL supports the element type or the reduction.
         * </ul>
         *
         * <p>After a failed direct all-reduce a late rank may still write to this rank's tensor. Do
         * not use the tensor's values until all ranks have destroyed the group. Its memory is kept
         * until then. Memory used in a graph is kept as long as the graph; if a replay has failed,
         * until all ranks have destroyed the group.
         *
         * @param allowed true to allow it; unless set, it is allowed for up to four ranks and in
         *     graphs
         * @return this builder
         */
        public Builder optDirect(boolean allowed) {
            this.direct = allowed;
            return this;
        }

        /**
         * Runs all-gathers, reduce-scatters and broadcasts of more than 1 MiB a rank, and barriers,
         * as copies through the P2P buffers. Copy engines leave the SMs to concurrent computation,
         * for example while a fully sharded trainer gathers parameters.
         *
         * <ul>
         *   <li>Kernels run only to wait for the other ranks and, on at most 32 SMs, to reduce.
         *   <li>Tensors larger than the buffers are copied in several rounds.
         *   <li>Reductions run in rank order, as in {@link org.djlx.collectives.spi.Reductions}.
         *   <li>Like fused operators, these collectives overwrite the P2P buffers.
         *   <li>They can be captured in a CUDA graph, except reductions other than SUM and AVG of
         *       float32, float16 and bfloat16.
         *   <li>{@link ProcessGroup#withCopyEngines} does the same for some calls of a group.
         *   <li>If ranks share GPUs, all-reduces without a kernel also run as copies.
         *   <li>Without P2P buffers, NCCL runs all of them.
         * </ul>
         *
         * @param used whether to use copy engines; by default, only if ranks share GPUs
         * @return this builder
         */
        public Builder optCopyEngines(boolean used) {
            this.copyEngines = used;
            return this;
        }

        /**
         * Sets the topology of the GPUs, for tests and for machines that do not report it; NVML and
         * the driver are queried unless set. In a hybrid cube mesh, ranks 0 to 3 are fully linked,
         * ranks 4 to 7 are fully linked, and rank i is linked to rank i + 4. Other pairs do not use
         * P2P, even if their GPUs could.
         *
         * @param kind the topology
         * @return this builder
         */
        public Builder optTopology(GpuTopology.Kind kind) {
            this.topology = Required.argument("optTopology: kind", kind);
            return this;
        }

        /** {@return the options} */
        public CudaP2pOptions build() {
            return new CudaP2pOptions(this);
        }
    }
}

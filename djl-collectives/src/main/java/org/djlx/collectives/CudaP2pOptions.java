// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

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
 * <p>The pages in {@code docs} tell what runs where:
 *
 * <ul>
 *   <li>{@code design/all-reduce.md}, {@code design/collectives.md}: algorithms, streams, and what
 *       NCCL runs
 *   <li>{@code support.md}, Topologies: GPUs and links
 *   <li>{@code process-groups.md}, cuda_p2p: when hosts wait, and CUDA graphs
 *   <li>{@code operations.md}, Several groups on the same GPUs: the order of calls, and the
 *       environment
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

    /** The user's choice about an algorithm. */
    private enum Choice {
        AUTOMATIC,
        YES,
        NO;

        static Choice of(boolean yes) {
            return yes ? YES : NO;
        }

        boolean isYes(boolean automatic) {
            return this == AUTOMATIC ? automatic : this == YES;
        }

        String text(String yes, String no) {
            return this == AUTOMATIC ? "" : this == YES ? yes : no;
        }
    }

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

    /**
     * {@return the NCCL options, with those of {@link Builder#optNcclOptions} that apply to all}
     */
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

    /** {@return the largest size for the one-shot all-reduce in bytes} */
    public long oneShotBytes(int worldSize) {
        if (values.oneShotBytes != null) {
            return values.oneShotBytes;
        }
        return worldSize <= 2 ? ONE_SHOT_BYTES : ONE_SHOT_BYTES_TO_ALL / (worldSize - 1);
    }

    /**
     * {@return the largest size for the two-shot all-reduce in bytes}
     *
     * @param recorded whether it is recorded into a CUDA graph, which excludes NCCL
     */
    public long twoShotBytes(int worldSize, boolean recorded) {
        if (values.twoShotBytes != null) {
            return values.twoShotBytes;
        }
        return worldSize < MANY || recorded ? TWO_SHOT_BYTES : TWO_SHOT_BYTES_OF_MANY;
    }

    /**
     * {@return whether an eager group measures from which size on NCCL's all-reduce is faster than
     * the kernels, see {@link Builder#optMeasureNcclLimit}}
     *
     * @param multicast whether NCCL may reduce within NVSwitches (NVLS)
     */
    public boolean measuresNcclLimit(int worldSize, boolean multicast) {
        return worldSize > 1
                && values.oneShotBytes == null
                && values.twoShotBytes == null
                && values.measureNcclLimit.isYes(multicast);
    }

    /** {@return the assumed topology of the GPUs; empty if NVML is queried} */
    public Optional<GpuTopology.Kind> topology() {
        return Optional.ofNullable(values.topology);
    }

    /** Returns the options that ranks compare when a group is made: not timeouts, nor NCCL's. */
    @Override
    public String toString() {
        return String.format(
                "a buffer of %d bytes, a heap of %d, one-shot up to %s, two-shot up to %s, topology"
                        + " %s%s%s%s%s%s",
                values.bufferSize,
                values.heapSize,
                values.oneShotBytes == null ? AUTOMATIC : values.oneShotBytes,
                values.twoShotBytes == null ? AUTOMATIC : values.twoShotBytes,
                values.topology == null ? "from NVML" : values.topology,
                values.sharedGpus ? ", shared GPUs" : "",
                values.direct.text(", direct", ", not direct"),
                isCopyEngines() ? ", copy engines" : "",
                values.measureNcclLimit.text(", NCCL measured", ", NCCL not measured"),
                debug() == DebugLevel.DETAIL ? ", verified" : "");
    }

    /** {@return whether ranks may share a GPU} */
    public boolean isSharedGpus() {
        return values.sharedGpus;
    }

    /** {@return whether copy engines run collectives, see {@link Builder#optCopyEngines}} */
    public boolean isCopyEngines() {
        return values.copyEngines.isYes(values.sharedGpus);
    }

    /** {@return whether ranks of one process may read and write each other's tensors} */
    public boolean isDirect() {
        return values.direct.isYes(true);
    }

    /**
     * {@return whether an all-reduce that is too large for two-shot is direct, where that is
     * possible}
     *
     * @param recorded whether it is recorded into a CUDA graph, which excludes NCCL
     */
    public boolean isDirect(int worldSize, boolean recorded) {
        return values.direct.isYes(worldSize < MANY || recorded);
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
        private Choice direct = Choice.AUTOMATIC; // by the number of ranks, and in graphs
        private Choice copyEngines = Choice.AUTOMATIC; // only if ranks share GPUs
        private Choice measureNcclLimit = Choice.AUTOMATIC; // only if NCCL may use multicast

        private Builder() {}

        /** Sets the size of each rank's P2P buffer in bytes; 0 for none, 256 MiB unless set. */
        public Builder optBufferSize(long bytes) {
            this.bufferSize = requireSize("the buffer size", bytes);
            return this;
        }

        /**
         * Sets the size of each rank's P2P heap in bytes, from which {@link
         * org.djlx.collectives.p2p.P2pAllocator} allocates arrays; 0 (none) unless set.
         */
        public Builder optHeapSize(long bytes) {
            this.heapSize = requireSize("the heap size", bytes);
            return this;
        }

        /**
         * Sets how long an operation may take, whether NCCL runs it or not; unless set, the timeout
         * of the NCCL options.
         */
        @Override
        public Builder optTimeout(Duration timeout) {
            return super.optTimeout(timeout);
        }

        /**
         * Sets the NCCL options. Of these, {@code optDevices} and {@code optBlockingWait} apply to
         * the whole backend, and {@code optTimeout}, {@code optWarnAfter} and {@code optDebug} do
         * unless this builder sets them.
         */
        public Builder optNcclOptions(NcclOptions options) {
            this.ncclOptions = Required.argument("optNcclOptions: options", options);
            return this;
        }

        /**
         * Sets the largest size for the one-shot all-reduce, or for the mesh algorithm in a hybrid
         * cube mesh. Large all-reduce kernels occupy all SMs but 32 while they wait for other
         * ranks. With smaller limits here and in {@link #optTwoShotBytes}, other work can overlap:
         * larger tensors use algorithms with few SMs, see {@link #optDirect}.
         *
         * @param bytes the size in bytes; unless set, 64 MiB for two ranks, 768 KiB divided by the
         *     number of other ranks for more, and 256 KiB in a hybrid cube mesh
         */
        public Builder optOneShotBytes(long bytes) {
            this.oneShotBytes = requireSize("the largest one-shot size", bytes);
            return this;
        }

        /**
         * Sets the largest size for the two-shot all-reduce in bytes, which is used above the
         * one-shot limit; unless set, 64 MiB for up to four ranks and in graphs, otherwise 16 MiB.
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
         * NCCL does not support shared GPUs: collectives run without it (see {@link
         * #optCopyEngines}), or fail. Ranks of one process need settings and care that {@code
         * docs/operations.md}, Ranks that share a GPU, lists.
         *
         * @param shared true to share; false unless set
         */
        public Builder optSharedGpus(boolean shared) {
            this.sharedGpus = shared;
            return this;
        }

        /**
         * Allows the direct all-reduce for tensors that are too large for two-shot: each rank reads
         * and writes its part of all ranks' tensors, without a staging buffer, on a few SMs. It
         * needs ranks in one process, NVLink between all GPUs, and libtorch without {@code
         * expandable_segments}.
         *
         * <p>After a failed direct all-reduce a late rank may still write to this rank's tensor. Do
         * not use the tensor's values until all ranks have destroyed the group; its memory is kept
         * until then.
         *
         * @param allowed true to allow it; unless set, it is allowed for up to four ranks and in
         *     graphs
         */
        public Builder optDirect(boolean allowed) {
            this.direct = Choice.of(allowed);
            return this;
        }

        /**
         * Lets eager groups measure from which size on NCCL's all-reduce is faster than the
         * kernels. All ranks of an eager group connect NCCL when it is created, see {@link
         * NcclOptions}. Larger tensors then use NCCL, except in CUDA graphs.
         *
         * <ul>
         *   <li>Groups do not measure if a limit is set, if they are lazy, or if they are split
         *       from another group.
         *   <li>NCCL sums in another order, and the measured size may differ from run to run.
         *   <li>NCCL allocates its buffers for the measurement.
         * </ul>
         *
         * @param measured whether to measure; by default, only if NCCL may reduce within NVSwitches
         *     (NVLS): the GPUs support multicast, and {@code NCCL_NVLS_ENABLE} is not 0
         */
        public Builder optMeasureNcclLimit(boolean measured) {
            this.measureNcclLimit = Choice.of(measured);
            return this;
        }

        /**
         * Runs all-gathers, reduce-scatters and broadcasts of more than 1 MiB a rank, and barriers,
         * as copies through the P2P buffers, which leave the SMs to concurrent computation. {@link
         * ProcessGroup#withCopyEngines} does the same for some calls of a group. Without P2P
         * buffers, NCCL runs all of them.
         *
         * @param used whether to use copy engines; by default, only if ranks share GPUs
         */
        public Builder optCopyEngines(boolean used) {
            this.copyEngines = Choice.of(used);
            return this;
        }

        /**
         * Sets the topology of the GPUs, for tests and for machines that do not report it; NVML and
         * the driver are queried unless set. In a hybrid cube mesh, ranks 0 to 3 are fully linked,
         * ranks 4 to 7 are fully linked, and rank i is linked to rank i + 4. Other pairs do not use
         * P2P, even if their GPUs could.
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

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import java.time.Duration;
import java.util.EnumMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.IntSupplier;
import java.util.stream.Collectors;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaMemory;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.GpuTopology;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.KernelStruct;
import org.djlx.nativeops.cuda.LaunchSize;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Launches the kernels of {@code all_reduce.cu} for one rank: on the group's stream, on callers'
 * streams, and into graphs. Any thread may launch; launches are serialized.
 */
final class AllReduceKernels implements AutoCloseable {

    enum Algorithm {
        ONE_SHOT("one_shot"),
        TWO_SHOT("two_shot"),
        MESH("mesh"),
        DIRECT("direct");

        private final String kernel;

        Algorithm(String kernel) {
            this.kernel = kernel;
        }

        String kernel() {
            return kernel;
        }
    }

    private static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "all_reduce/all_reduce.cu");
    private static final KernelConstants CONSTANTS = new KernelConstants(SOURCE);
    private static final int MESH_THREADS = CONSTANTS.value("MESH_THREADS");
    private static final int MESH_BLOCKS =
            CONSTANTS.value("MAX_BLOCKS"); // the flags of the control block
    private static final int THREADS = 256;
    private static final int DIRECT_BLOCKS = 8; // saturate the links of an H200
    private static final long PACK = 16; // bytes

    // SMs left to NCCL's kernels: messages must be able to run while an all-reduce waits for peers.
    // On 2 H200s, the first message between two ranks ran with 32 SMs left, but not with 8.
    private static final int RESERVED_SMS = 32;

    private static final KernelConstants.Layout LAUNCH = CONSTANTS.struct("Launch");
    private static final int PEERS = LAUNCH.offset("peers");
    private static final int STATUS = LAUNCH.offset("status");
    private static final int TIMEOUT = LAUNCH.offset("timeout");
    private static final int BEGIN = LAUNCH.offset("begin");
    private static final int HALF = LAUNCH.offset("half_bytes");
    private static final int SLOT = LAUNCH.offset("slot_bytes");
    private static final int RANK = LAUNCH.offset("rank");

    private final P2pRegion region;
    private final int rank;
    private final int maxThreads;
    private final CudaModule module;
    private final Map<Algorithm, Map<ScalarType, CudaKernel>> kernels =
            new EnumMap<>(Algorithm.class);
    private final WaitStatus status;
    private final KernelArguments arguments = new KernelArguments();
    private final KernelStruct launch; // for all algorithms but MESH
    private final KernelStruct meshLaunch;
    private final int quad; // of this rank in a mesh, as a bit mask
    private final int relay;
    private int maxBlocks; // guarded by this
    private IntSupplier now = () -> Integer.MAX_VALUE; // most blocks as of now; guarded by this
    private int maxMeshBlocks = MESH_BLOCKS; // the same on all ranks; guarded by this
    private boolean ended; // guarded by this

    AllReduceKernels(
            P2pRegion region, CudaDevice device, WaitStatus status, KernelCompiler compiler) {
        this.region = region;
        this.status = status;
        this.rank = region.rank();
        String ranks = "-DRANKS=" + region.ranks();
        maxThreads = new KernelConstants(SOURCE, ranks).value("MAX_THREADS");
        module = compiler.load(device, SOURCE, ranks);
        for (Algorithm algorithm : Algorithm.values()) {
            boolean used = algorithm != Algorithm.DIRECT || region.isDirect();
            kernels.put(
                    algorithm,
                    used ? module.kernels(algorithm.kernel) : new EnumMap<>(ScalarType.class));
        }
        launch = launch(Algorithm.ONE_SHOT); // Two-shot uses the same slots, direct none.
        meshLaunch = launch(Algorithm.MESH);
        maxBlocks = maxBlocks(device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT));
        P2pLinks links = region.links();
        boolean mesh = links.kind() == GpuTopology.Kind.HYBRID_CUBE_MESH;
        quad = mesh ? links.quad(rank) : 0;
        relay = mesh ? links.relay(rank) : 0;
    }

    /** Returns the most blocks that run at once: blocks wait for those of other ranks. */
    static int maxBlocks(int processors) {
        return Math.max(1, processors - RESERVED_SMS);
    }

    private KernelStruct launch(Algorithm algorithm) {
        RegionLayout layout = region.layout();
        KernelStruct struct = new KernelStruct(LAUNCH.byteSize());
        for (int peer = 0; peer < region.ranks(); peer++) {
            struct.put(PEERS + peer * Long.BYTES, region.address(peer));
        }
        return struct.put(STATUS, status.address())
                .put(BEGIN, layout.begin(algorithm))
                .put(HALF, layout.half(algorithm))
                .put(SLOT, layout.slot(algorithm))
                .put(RANK, rank);
    }

    /** Returns the names of the kernels that the GPU can run. */
    Set<String> names() {
        return kernels.values().stream()
                .flatMap(ofType -> ofType.values().stream())
                .map(CudaKernel::name)
                .collect(Collectors.toCollection(TreeSet::new));
    }

    /** Keeps only these kernels, which the GPUs of all ranks can run. */
    void retain(Set<String> names) {
        kernels.values()
                .forEach(ofType -> ofType.values().removeIf(k -> !names.contains(k.name())));
    }

    boolean isSupported(Algorithm algorithm, ScalarType type) {
        return kernels.get(algorithm).containsKey(type);
    }

    /**
     * Limits the blocks of a launch, to the same number on all ranks, because ranks share a GPU;
     * see {@link P2pParts#waitingBlocks}. Blocks of {@link Algorithm#MESH} have a limit of their
     * own, as they wait for blocks of their index. While other groups use the GPU, {@code now}
     * returns a lower limit, which may differ between ranks, for one-shot and two-shot, whose
     * blocks wait for packs and not for blocks.
     */
    synchronized void shareGpu(int most, int mesh, IntSupplier now) {
        this.now = now;
        maxBlocks = Math.min(maxBlocks, most);
        maxMeshBlocks = Math.min(maxMeshBlocks, mesh);
    }

    /**
     * Enqueues an all-reduce in place of a tensor whose address is aligned to its elements: several
     * launches if it is larger than a slot.
     */
    synchronized void enqueue(
            CudaStream stream,
            Algorithm algorithm,
            long address,
            long count,
            ScalarType type,
            float divisor,
            Duration timeout) {
        if (ended) {
            throw GroupErrors.buffersDestroyed();
        }
        KernelStruct struct = algorithm == Algorithm.MESH ? meshLaunch : launch;
        struct.put(TIMEOUT, timeout.toNanos());
        CudaKernel kernel = kernels.get(algorithm).get(type);
        long itemSize = type.itemSize();
        long most = region.layout().most(algorithm) / itemSize;
        long done = 0;
        do {
            long part = Math.min(most, count - done);
            arguments.clear().add(address + done * itemSize).add(part).add(struct).add(divisor);
            if (algorithm == Algorithm.MESH) {
                arguments.add(quad).add(relay);
            }
            kernel.launch(stream, size(algorithm, part * itemSize), arguments);
            done += part;
        } while (done < count);
    }

    /** Returns whether {@link Algorithm#DIRECT} can use a tensor in place, without a copy. */
    static boolean isReachable(CudaDevice device, long address) {
        return address % PACK == 0 && CudaMemory.isPeerAccessible(device, address);
    }

    private LaunchSize size(Algorithm algorithm, long byteSize) {
        long packs = ceilDiv(byteSize, PACK);
        if (algorithm == Algorithm.MESH) {
            long wanted = Math.max(1, ceilDiv(packs, MESH_THREADS));
            return LaunchSize.of((int) Math.min(maxMeshBlocks, wanted), MESH_THREADS);
        }
        long work = algorithm == Algorithm.TWO_SHOT ? ceilDiv(packs, region.ranks()) : packs;
        if (algorithm == Algorithm.DIRECT) {
            return LaunchSize.of(Math.min(maxBlocks, DIRECT_BLOCKS), maxThreads);
        }
        return size(work, maxThreads, Integer.MAX_VALUE);
    }

    /**
     * Returns the launch size of a kernel whose threads wait for the packs that each rank sends to
     * a peer. The limit, the most blocks, may differ between ranks.
     */
    synchronized LaunchSize size(long packs, int maxThreads, int limit) {
        int most = Math.min(limit, Math.min(maxBlocks, now.getAsInt()));
        int threads = ceilDiv(packs, THREADS) <= most ? THREADS : maxThreads;
        return LaunchSize.of((int) Math.max(1, Math.min(most, ceilDiv(packs, threads))), threads);
    }

    private static long ceilDiv(long a, long b) {
        return (a + b - 1) / b;
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

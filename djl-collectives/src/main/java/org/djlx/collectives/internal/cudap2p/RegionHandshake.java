// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import com.google.gson.Gson;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Function;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.internal.cudap2p.AllReduceKernels.Algorithm;
import org.djlx.collectives.internal.gpu.Disposal;
import org.djlx.collectives.internal.gpu.GpuLease;
import org.djlx.collectives.internal.gpu.GpuTurns;
import org.djlx.collectives.internal.host.HostSync;
import org.djlx.collectives.internal.host.Liveness;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaException;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CudaVirtualMemory;
import org.djlx.nativeops.cuda.GpuTopology;
import org.djlx.nativeops.host.Descriptor;
import org.djlx.nativeops.host.DescriptorChannel;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Creates the {@link P2pRegion} of each rank, when a group is created. After each step the ranks
 * exchange its result through the store, so that all get a region or none.
 *
 * <p>Ranks of one process share one mapping, to which the GPUs of linked ranks get access. To a
 * rank of another process, a rank sends a file descriptor of its memory over a {@link
 * DescriptorChannel}. Ranks that are not linked share nothing.
 */
final class RegionHandshake {

    private static final Logger logger = LoggerFactory.getLogger(RegionHandshake.class);
    private static final Gson GSON = new Gson();
    private static final Duration FREE_PATIENCE = Duration.ofSeconds(5);
    private static final int TOKEN_BYTES = 16;

    // A GPU's hardware queues for the streams of a process.
    private static final String CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS";
    private static final int DEFAULT_QUEUES = 8;
    private static final int MAX_QUEUES = 32;

    // The caller's stream, one that a graph runs on, the group's stream and the side stream.
    private static final int STREAMS_PER_RANK = 4;

    /** The most ranks of a process on one GPU, counting all groups. */
    static final int MOST_SHARING = MAX_QUEUES / STREAMS_PER_RANK;

    private static final AtomicBoolean WARNED = new AtomicBoolean(); // that queues are few

    private final GroupContext context;
    private final CudaP2pOptions options;
    private final CudaDevice device;
    private final Function<List<String>, GpuTopology> topology;
    private final int rank;
    private final List<CudaDevice> opened = new ArrayList<>(); // GPUs of peers in this process
    private NativeMemory[] memory = {}; // of each rank; null if not linked
    private List<RankInfo> infos;
    private P2pLinks links;
    private int[] linked; // the ranks that this rank is linked to, including itself
    private RegionLayout layout;
    private DescriptorChannel channel; // null if it could not be opened
    private HostSync hosts;
    private Place place; // null until it is taken
    private CudaVirtualMemory own;
    private PeerProbe probe; // null before the probes
    private boolean direct; // all-reduces can be direct, as far as this rank knows

    private RegionHandshake(
            GroupContext context,
            CudaP2pOptions options,
            CudaDevice device,
            Function<List<String>, GpuTopology> topology) {
        this.context = context;
        this.options = options;
        this.device = device;
        this.topology = topology;
        this.rank = context.rank();
    }

    /** Information about a rank, which all ranks exchange. */
    static final class RankInfo {
        String problem;
        String options; // the same on all ranks
        String host;
        long pid;
        int ordinal;
        String bus;
        String channel; // name of the channel for descriptors
        String job; // of the process
        String ncclP2pDisable; // the environment variable
        String token; // proves to the receiver that a descriptor is meant for it
    }

    /**
     * The result of the handshake on all ranks: a region, or null and a problem. The hosts may be
     * null; so is this rank's place on its GPU without a region.
     */
    record Outcome(P2pRegion region, HostSync hosts, Place place, String problem) {}

    /**
     * A rank's place on its GPU: its turn among other groups of this process, and the lease that
     * reserves the GPU against other jobs.
     */
    record Place(GpuTurns.Member turn, GpuLease lease) {

        /** Leaves the GPU to others. A second call does nothing. */
        void leave() {
            turn.leave();
            lease.close();
        }
    }

    /** Maps the memory of all ranks and probes every pair that is linked. */
    static Outcome run(
            GroupContext context,
            CudaP2pOptions options,
            CudaDevice device,
            Function<List<String>, GpuTopology> topology) {
        // After this exchange, all ranks have left earlier groups: their memory can be freed.
        context.exchange("p2p-begin", new byte[0]);
        Disposal.run("P2P memory of earlier groups", RetiredRegions::free);
        if (options.isSharedGpus()) {
            // Freeing waits for all kernels of the GPU, and blocks kernels that these wait for.
            Disposal.await(FREE_PATIENCE);
        }
        RegionHandshake handshake = new RegionHandshake(context, options, device, topology);
        boolean done = false;
        try {
            String problem = handshake.connect();
            if (problem != null) {
                return new Outcome(null, null, null, problem);
            }
            P2pRegion region =
                    new P2pRegion(
                            handshake.layout,
                            handshake.links,
                            context.rank(),
                            handshake.direct,
                            handshake.own,
                            handshake.memory);
            done = true;
            return new Outcome(region, handshake.hosts, handshake.place, null);
        } finally {
            handshake.close(done);
        }
    }

    /** Takes all steps up to the first that fails; returns its problem, or null. */
    private String connect() {
        RankInfo info = new RankInfo();
        info.options = options.toString();
        info.problem = attempt(() -> fill(info));
        infos =
                context.exchange("p2p", bytes(GSON.toJson(info))).stream()
                        .map(json -> GSON.fromJson(text(json), RankInfo.class))
                        .toList();
        String problem = reasonAgainst(infos, options.isSharedGpus());
        if (problem == null) {
            String refusal = agree(context, "p2p-place", this::takePlace);
            if (refusal != null) {
                throw new EngineException(
                        "cannot create group '" + context.name() + "': " + refusal);
            }
            problem = firstProblem(context, "p2p-hosts", joinHosts());
        }
        if (problem == null) {
            List<String> buses = infos.stream().map(one -> one.bus).toList();
            links = links(context, options, buses, topology);
            linked = links.linkedTo(rank);
            layout = new RegionLayout(options, links);
            problem = agree(context, "p2p-allocated", this::allocate);
        }
        if (problem == null) {
            problem = agree(context, "p2p-sent", this::send);
        }
        if (problem == null) {
            byte[] address = bytes(Long.toString(own.memory().address()));
            List<byte[]> addresses = context.exchange("p2p-address", address);
            problem = agree(context, "p2p-mapped", () -> mapPeers(addresses));
        }
        if (problem == null) {
            problem = agree(context, "p2p-probed", this::writeProbes);
        }
        if (problem == null) {
            problem = agree(context, "p2p-checked", this::checkProbes);
            if (problem != null) {
                return brokenAccess(context.name(), infos, problem);
            }
        }
        return problem == null ? agree(context, "p2p-cleared", this::clearProbes) : problem;
    }

    /** Describes this rank, and opens its channel. */
    private void fill(RankInfo info) {
        if (context.worldSize() > RegionLayout.MAX_RANKS) {
            throw new EngineException(
                    "P2P groups have at most " + RegionLayout.MAX_RANKS + " ranks");
        }
        if (!CudaVirtualMemory.isSupported(device)) {
            throw new EngineException(
                    device + " or its driver cannot share memory by file descriptors");
        }
        // NCCL_HOSTID declares ranks to be on different hosts, for NCCL and so for P2P.
        info.host = Liveness.HOST + " " + System.getenv("NCCL_HOSTID");
        info.pid = ProcessHandle.current().pid();
        info.job = GpuLease.JOB;
        info.ncclP2pDisable = System.getenv("NCCL_P2P_DISABLE");
        info.ordinal = device.device().getDeviceId();
        info.bus = device.pciBusId();
        try {
            channel = DescriptorChannel.open();
            info.channel = channel.name();
        } catch (EngineException e) {
            logger.debug(
                    "group '{}': cannot pass descriptors to other processes", context.name(), e);
        }
        byte[] token = new byte[TOKEN_BYTES];
        new SecureRandom().nextBytes(token);
        info.token = HexFormat.of().formatHex(token);
    }

    /** Returns the reason why these ranks cannot use P2P, or null. */
    static String reasonAgainst(List<RankInfo> infos, boolean sharedGpus) {
        for (int rank = 0; rank < infos.size(); rank++) {
            RankInfo info = infos.get(rank);
            if (!info.problem.isEmpty()) {
                return "rank " + rank + ": " + info.problem;
            }
            if (!info.host.equals(infos.get(0).host)) {
                return "rank 0 and rank " + rank + " are on different hosts";
            }
            if (!info.options.equals(infos.get(0).options)) {
                return String.format(
                        "rank 0 and rank %d have different options: %s; and %s",
                        rank, infos.get(0).options, info.options);
            }
            for (int other = 0; other < rank && !sharedGpus; other++) {
                if (info.bus.equals(infos.get(other).bus)) {
                    return "rank " + other + " and rank " + rank + " are on the same GPU";
                }
            }
        }
        return null;
    }

    /** Takes a place on the GPU, or throws. */
    private void takePlace() {
        Set<String> jobs = new TreeSet<>();
        infos.forEach(info -> jobs.add(info.job));
        GpuLease lease = GpuLease.acquire(device.uuid(), jobs);
        List<String> gpus = infos.stream().map(info -> info.bus).toList();
        String key = infos.get(0).token;
        place = new Place(GpuTurns.PROCESS.join(key, context.name(), rank, gpus), lease);
        checkStreams(place.turn.sharesGpu(), countRanks(), System.getenv(CONNECTIONS));
    }

    /** Counts the ranks on the GPU: of this group those in this process, of other groups all. */
    private int countRanks() {
        String bus = infos.get(rank).bus;
        long others =
                infos.stream().filter(info -> info.bus.equals(bus) && !sharesProcess(info)).count();
        return place.turn.ranksOnGpu() - (int) others;
    }

    /**
     * Refuses more ranks on a GPU than the GPU has queues for, if a group has several of them.
     * Streams that share a queue run in the order of their calls: a kernel that waits for a peer
     * would block the peer's kernel. If each group has one rank on the GPU, that needs threads that
     * call the groups in different orders, so the log warns, once.
     *
     * @param queues the value of {@code CUDA_DEVICE_MAX_CONNECTIONS}; null if it is not set
     */
    static void checkStreams(boolean shared, int ranks, String queues) {
        int count = DEFAULT_QUEUES;
        try {
            count = queues == null ? count : Math.min(MAX_QUEUES, Integer.parseInt(queues.strip()));
        } catch (NumberFormatException e) {
            logger.debug("{}={} is not a number", CONNECTIONS, queues);
        }
        int needed = ranks * STREAMS_PER_RANK;
        if (ranks == 1 || needed <= count) {
            return;
        }
        if (shared) {
            throw new EngineException(
                    String.format(
                            "%d ranks of this process share a GPU, counting those of all cuda_p2p"
                                + " groups. They need %d queues of the GPU, %d each, and there are"
                                + " %d: set %s=%d in the environment, use fewer ranks (at most %d)"
                                + " or backend 'nccl'",
                            ranks,
                            needed,
                            STREAMS_PER_RANK,
                            count,
                            CONNECTIONS,
                            MAX_QUEUES,
                            MOST_SHARING));
        }
        if (WARNED.compareAndSet(false, true)) {
            logger.warn(
                    "{} cuda_p2p groups use a GPU, and {} streams share its {} queues: set {}={} in"
                            + " the environment if threads call the groups in different orders",
                    ranks,
                    needed,
                    count,
                    CONNECTIONS,
                    MAX_QUEUES);
        }
    }

    /** Joins the hosts, which tell when memory can be freed; returns the problem, or "". */
    private String joinHosts() {
        try {
            hosts = HostSync.join(context);
            return "";
        } catch (CollectiveTimeoutException e) {
            throw e; // A rank that did not come will not come to exchange problems, either.
        } catch (RuntimeException e) {
            return e.toString();
        }
    }

    /**
     * Returns the links between the ranks, the same on all ranks: the links in the options, or else
     * the links that rank 0 detects.
     */
    static P2pLinks links(
            GroupContext context,
            CudaP2pOptions options,
            List<String> buses,
            Function<List<String>, GpuTopology> topology) {
        int ranks = buses.size();
        if (options.topology().isPresent()) {
            return P2pLinks.of(options.topology().get(), ranks);
        }
        P2pLinks links = P2pLinks.of(GpuTopology.Kind.OTHER, ranks);
        if (context.rank() == 0) {
            String found;
            try {
                GpuTopology seen = topology.apply(buses);
                links = P2pLinks.of(seen);
                found = seen.summary();
            } catch (RuntimeException | LinkageError e) {
                found = "cannot find how the GPUs are linked: " + e;
            }
            logger.info("group '{}': {}; {}", context.name(), found, meaning(links.kind()));
        }
        List<byte[]> all = context.exchange("p2p-links", bytes(GSON.toJson(links)));
        return GSON.fromJson(text(all.get(0)), P2pLinks.class);
    }

    private static String meaning(GpuTopology.Kind kind) {
        return switch (kind) {
            case FULLY_CONNECTED_NVLINK -> "all-reduces of floats go from GPU to GPU";
            case HYBRID_CUBE_MESH -> "small all-reduces go from GPU to GPU, other ones use NCCL";
            case OTHER ->
                    "all-reduces use NCCL; if NVLink joins all of them, say so by"
                            + " CudaP2pOptions.optTopology";
        };
    }

    private void allocate() {
        openDevices();
        try {
            own = CudaVirtualMemory.allocate(device, opened, layout.byteSize());
        } catch (CudaException e) {
            // Earlier groups may still be being freed.
            Disposal.await(FREE_PATIENCE);
            Disposal.run("P2P memory", RetiredRegions::free);
            own = CudaVirtualMemory.allocate(device, opened, layout.byteSize());
        }
        try (CudaStream stream = CudaStream.create(device)) {
            long begin = own.memory().address();
            stream.memsetAsync(begin, (byte) 0, layout.buffer());
            long oneShot = begin + layout.begin(Algorithm.ONE_SHOT);
            stream.memsetAsync(oneShot, RegionLayout.ABSENT, 2 * layout.half(Algorithm.ONE_SHOT));
            stream.synchronize();
        }
    }

    /** Opens the GPUs of linked peers in this process; finds out whether all-reduces are direct. */
    private void openDevices() {
        direct =
                options.isDirect()
                        && links.kind() == GpuTopology.Kind.FULLY_CONNECTED_NVLINK
                        && infos.stream().allMatch(this::sharesProcess);
        for (int peer : linked) {
            RankInfo info = infos.get(peer);
            if (sharesProcess(info) && info.ordinal != device.device().getDeviceId()) {
                CudaDevice other = CudaDevice.open(Device.gpu(info.ordinal));
                opened.add(other);
                if (!other.canAccessPeer(device)) {
                    throw new EngineException(other + " cannot access " + device);
                }
                direct = direct && enableAccess(other);
            }
        }
        direct = direct && isTorchMemoryAccessible();
    }

    private boolean enableAccess(CudaDevice other) {
        try {
            device.enablePeerAccess(other);
            return true;
        } catch (CudaException e) {
            logger.debug("{} cannot access all memory of {}", device, other, e);
            return false;
        }
    }

    /** Expandable segments are not peer-mapped, so the direct all-reduce is off with them. */
    private boolean isTorchMemoryAccessible() {
        try (NDManager manager = NDManager.newBaseManager(device.device(), "PyTorch")) {
            NDArray any = Torch.empty(manager, new Shape(1), ScalarType.INT32);
            return AllReduceKernels.isReachable(device, Torch.dataPointer(any));
        } catch (EngineException e) { // out of memory
            logger.debug("group '{}' does not use direct all-reduces", context.name(), e);
            return false;
        }
    }

    /** Sends a descriptor of this rank's memory to linked ranks of other processes. */
    private void send() {
        for (int peer : linked) {
            RankInfo info = infos.get(peer);
            if (sharesProcess(info)) {
                continue;
            }
            if (info.channel == null || channel == null) {
                throw new EngineException("descriptors cannot be passed between processes here");
            }
            byte[] token = HexFormat.of().parseHex(info.token);
            try (Descriptor descriptor = own.export()) {
                DescriptorChannel.send(
                        info.channel, token, rank, descriptor, context.options().timeout());
            }
        }
    }

    private void mapPeers(List<byte[]> addresses) {
        NativeMemory[] found = new NativeMemory[infos.size()];
        byte[] token = HexFormat.of().parseHex(infos.get(rank).token);
        boolean done = false;
        try {
            for (int peer : linked) {
                if (peer == rank) {
                    found[peer] = own.memory();
                } else if (sharesProcess(infos.get(peer))) {
                    found[peer] = mappedHere(peer, Long.parseLong(text(addresses.get(peer))));
                } else {
                    // One arrives from each linked rank, in any order.
                    DescriptorChannel.Received received =
                            channel.receive(token, context.options().timeout())
                                    .orElseThrow(
                                            () ->
                                                    new EngineException(
                                                            "the memory of another process did not"
                                                                    + " arrive"));
                    try (Descriptor descriptor = received.descriptor()) {
                        found[checkSender(received.tag(), found)] = map(descriptor);
                    }
                }
            }
            memory = found;
            done = true;
        } finally {
            for (int peer = 0; peer < found.length && !done; peer++) {
                if (found[peer] != null && peer != rank) {
                    found[peer].close();
                }
            }
        }
    }

    private int checkSender(int tag, NativeMemory[] found) {
        if (tag < 0
                || tag >= found.length
                || sharesProcess(infos.get(tag))
                || !links.isLinked(rank, tag)
                || found[tag] != null) {
            throw new EngineException("rank " + tag + " sent memory unexpectedly");
        }
        return tag;
    }

    /** Returns the memory of a peer in this process, which has given this GPU access. */
    private NativeMemory mappedHere(int peer, long address) {
        // libtorch needs the GPU that owns the memory.
        Device owner = Device.gpu(infos.get(peer).ordinal);
        return new NativeMemory(address, own.memory().byteSize(), owner, () -> {});
    }

    private NativeMemory map(Descriptor descriptor) {
        CudaVirtualMemory mapped =
                CudaVirtualMemory.open(device, descriptor, own.memory().byteSize());
        // Fails here, and not within an operation, if libtorch refuses the memory.
        try (NDManager manager = NDManager.newBaseManager(device.device(), "PyTorch")) {
            Torch.view(manager, mapped.memory(), 0, new Shape(1), ScalarType.INT32);
            return mapped.memory();
        } catch (Throwable e) {
            mapped.close();
            throw e;
        }
    }

    private static int seed(int from, int to) {
        return 0x5eed0000 + (from * RegionLayout.MAX_RANKS + to) * PeerProbe.BYTES;
    }

    /** Returns the address on a rank at which a source rank writes its probe. */
    private long probe(int on, int source) {
        return memory[on].address() + layout.flags(source);
    }

    private void writeProbes() {
        probe = new PeerProbe(device);
        for (int peer : linked) {
            probe.write(probe(peer, rank), seed(rank, peer));
        }
    }

    private void checkProbes() {
        for (int peer : linked) {
            probe.check(
                    probe(rank, peer),
                    seed(peer, rank),
                    "what rank " + peer + " wrote to rank " + rank + " did not arrive");
            probe.check(
                    probe(peer, rank),
                    seed(rank, peer),
                    "rank " + rank + " cannot read what it wrote to rank " + peer);
        }
    }

    /** Clears the flags, after all ranks have read their probes there. */
    private void clearProbes() {
        try (CudaStream stream = CudaStream.create(device)) {
            for (int peer : linked) {
                stream.memsetAsync(probe(rank, peer), (byte) 0, PeerProbe.BYTES);
            }
            stream.synchronize();
        }
    }

    /**
     * Returns the problem of a group whose probes failed, which then uses NCCL without peer access.
     *
     * @throws EngineException unless the ranks have switched off NCCL's peer access, because NCCL
     *     would lose data, too
     */
    static String brokenAccess(String group, List<RankInfo> infos, String problem) {
        if (infos.stream().allMatch(info -> "1".equals(info.ncclP2pDisable))) {
            return problem;
        }
        throw new EngineException(
                String.format(
                        "cannot create group '%s': %s. Accesses between the GPUs fail, often"
                            + " because of an IOMMU or PCIe ACS, and NCCL would lose data, too: set"
                            + " NCCL_P2P_DISABLE=1 in the environment of all ranks, which then"
                            + " exchange data through the host",
                        group, problem));
    }

    private boolean sharesProcess(RankInfo info) {
        return info.pid == ProcessHandle.current().pid();
    }

    /**
     * Runs a step on all ranks. Returns the problem of the first rank on which it failed, the same
     * on all ranks; null if none.
     */
    static String agree(GroupContext context, String name, Runnable step) {
        return firstProblem(context, name, attempt(step));
    }

    /** Exchanges problems, "" for none; returns the one of the lowest rank, or null. */
    private static String firstProblem(GroupContext context, String name, String own) {
        List<byte[]> problems = context.exchange(name, bytes(own));
        for (int rank = 0; rank < problems.size(); rank++) {
            if (problems.get(rank).length > 0) {
                return "rank " + rank + ": " + text(problems.get(rank));
            }
        }
        return null;
    }

    /** Returns the names, without commas, that every rank has: the same on all ranks. */
    static Set<String> common(GroupContext context, String name, Set<String> own) {
        Set<String> common = new TreeSet<>(own);
        for (byte[] names : context.exchange(name, bytes(String.join(",", own)))) {
            common.retainAll(Set.of(text(names).split(",")));
        }
        return common;
    }

    /** Runs a step; returns its problem, or "". */
    private static String attempt(Runnable step) {
        try {
            step.run();
            return "";
        } catch (RuntimeException | LinkageError e) {
            return e.toString();
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    /** Frees what the region does not own; without a region, everything. */
    private void close(boolean done) {
        if (channel != null) {
            channel.close();
        }
        if (probe != null) {
            probe.close();
        }
        opened.forEach(CudaDevice::close);
        if (!done && place != null) {
            place.leave();
        }
        if (!done) {
            retire(own, memory, rank, hosts);
        }
    }

    /**
     * Leaves a group that could not be created. A rank that does not know yet may still write its
     * probe: this rank's own memory is freed once all ranks have left. Null are {@code own} if
     * there is none, unmapped memory of ranks, and hosts that have not met.
     */
    static void retire(AutoCloseable own, NativeMemory[] memory, int rank, HostSync hosts) {
        if (own != null) {
            P2pRegion region = new P2pRegion(null, null, rank, false, own, memory);
            RetiredRegions.add(region, hosts, () -> {});
        } else if (hosts != null) {
            hosts.close();
        }
    }
}

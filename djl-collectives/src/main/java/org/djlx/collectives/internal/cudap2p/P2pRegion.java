/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import com.google.gson.Gson;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.GroupContext;
import org.djlx.collectives.internal.gpu.Disposal;
import org.djlx.collectives.internal.host.HostSync;
import org.djlx.collectives.internal.host.Liveness;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaException;
import org.djlx.nativeops.CudaMemory;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.GpuTopology;
import org.djlx.nativeops.NativeMemory;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Memory of each rank's GPU that the GPUs of all ranks can address: by peer access within a JVM,
 * whose GPUs have one address space, and by CUDA IPC between processes.
 */
final class P2pRegion implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(P2pRegion.class);
    private static final Gson GSON = new Gson();
    private static final List<P2pRegion> RETIRED = new ArrayList<>();
    private static final long LOOK_MILLIS = 250;
    private static final Duration FREE_PATIENCE = Duration.ofSeconds(5);

    private final RegionLayout layout;
    private final CudaDevice device;
    private final int rank;
    private final NativeMemory own;
    private final List<NativeMemory> regions = new ArrayList<>(); // of each rank, as seen from here
    private final List<String> buses = new ArrayList<>(); // where the ranks' GPUs are
    private final List<CudaDevice> peers = new ArrayList<>();
    private boolean inOneProcess; // some ranks are
    private HostSync hosts; // once it is retired

    private P2pRegion(RegionLayout layout, CudaDevice device, int rank) {
        this.layout = layout;
        this.device = device;
        this.rank = rank;
        this.own = CudaMemory.allocate(device, layout.byteSize());
    }

    /** What a rank tells the others about itself. */
    static final class Card {
        String problem;
        String options; // that must be the same everywhere
        String host;
        long pid;
        int ordinal;
        String bus;
        long address;
        long byteSize;
        String handle; // null if other processes cannot map the memory
        String noHandle; // why
    }

    /** A region, or why there is none: the same answer on all ranks. */
    record Mapped(P2pRegion region, String problem) {}

    /**
     * Maps the memory of all ranks and probes every pair.
     *
     * @param context the group and the rank
     * @param options the options, which also tell how it is divided
     * @param device the rank's GPU
     */
    static Mapped map(GroupContext context, CudaP2pOptions options, CudaDevice device) {
        // All have left the groups before this one, so that the memory of those can be freed.
        context.exchange("p2p-begin", new byte[0]);
        Disposal.run("P2P memory of groups before", P2pRegion::freeRetired);
        P2pRegion region = null;
        Card card = new Card();
        card.options = options.toString();
        try {
            if (context.worldSize() > RegionLayout.MAX_RANKS) {
                throw new EngineException(
                        "P2P groups have at most " + RegionLayout.MAX_RANKS + " ranks");
            }
            region = allocate(context, options, device);
            region.clear();
            region.fill(card);
        } catch (RuntimeException | LinkageError e) {
            card.problem = e.toString();
        }
        String problem = firstProblem(region, context, card, options.isSharedGpus());
        if (problem == null) {
            return new Mapped(region, null);
        }
        if (region != null) {
            region.close();
        }
        return new Mapped(null, problem);
    }

    private static P2pRegion allocate(
            GroupContext context, CudaP2pOptions options, CudaDevice device) {
        RegionLayout layout = new RegionLayout(options, context.worldSize());
        try {
            return new P2pRegion(layout, device, context.rank());
        } catch (CudaException e) {
            // Maybe groups before this one are still being freed.
            Disposal.await(FREE_PATIENCE);
            Disposal.run("P2P memory", P2pRegion::freeRetired);
            return new P2pRegion(layout, device, context.rank());
        }
    }

    private static String firstProblem(
            P2pRegion region, GroupContext context, Card card, boolean sharedGpus) {
        List<Card> cards =
                context.exchange("p2p", bytes(GSON.toJson(card))).stream()
                        .map(json -> GSON.fromJson(text(json), Card.class))
                        .toList();
        String problem = describe(cards, sharedGpus);
        if (problem != null) {
            return problem;
        }
        problem = agree(context, "p2p-mapped", () -> region.open(cards));
        if (problem == null) {
            problem = agree(context, "p2p-probed", region::writeProbes);
        }
        return problem == null ? agree(context, "p2p-checked", region::checkProbes) : problem;
    }

    /**
     * Does something on all ranks that may fail.
     *
     * @param context the group and the rank
     * @param name names the step
     * @param step what to do
     * @return the first problem; null if there is none on any rank. The same answer on all
     */
    static String agree(GroupContext context, String name, Runnable step) {
        List<byte[]> problems = context.exchange(name, bytes(attempt(step)));
        for (int rank = 0; rank < problems.size(); rank++) {
            if (problems.get(rank).length > 0) {
                return "rank " + rank + ": " + text(problems.get(rank));
            }
        }
        return null;
    }

    /** What speaks against P2P in what the ranks said; everybody finds the same. */
    static String describe(List<Card> cards, boolean sharedGpus) {
        for (int rank = 0; rank < cards.size(); rank++) {
            Card card = cards.get(rank);
            if (card.problem != null) {
                return "rank " + rank + ": " + card.problem;
            }
            if (!card.host.equals(cards.get(0).host)) {
                return "rank 0 and rank " + rank + " are on different hosts";
            }
            if (!card.options.equals(cards.get(0).options)) {
                return String.format(
                        "rank 0 and rank %d have different options: %s; and %s",
                        rank, cards.get(0).options, card.options);
            }
            for (int other = 0; other < rank && !sharedGpus; other++) {
                if (card.bus.equals(cards.get(other).bus)) {
                    return "rank " + other + " and rank " + rank + " are on the same GPU";
                }
            }
        }
        return null;
    }

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

    private void clear() {
        try (CudaStream stream = CudaStream.create(device)) {
            stream.memsetAsync(own.address(), (byte) 0, layout.buffer());
            stream.synchronize();
        }
    }

    private void fill(Card card) {
        // Whoever tells NCCL that ranks are on different hosts means it for P2P, too.
        card.host = Liveness.HOST + " " + System.getenv("NCCL_HOSTID");
        card.pid = ProcessHandle.current().pid();
        card.ordinal = device.device().getDeviceId();
        card.bus = device.pciBusId();
        card.address = own.address();
        card.byteSize = own.byteSize();
        try {
            card.handle = HexFormat.of().formatHex(CudaMemory.exportHandle(device, own));
        } catch (CudaException e) {
            card.noHandle = e.getMessage();
        }
    }

    private void open(List<Card> cards) {
        inOneProcess = cards.stream().map(card -> card.pid).distinct().count() < cards.size();
        for (int peer = 0; peer < cards.size(); peer++) {
            Card card = cards.get(peer);
            buses.add(card.bus);
            if (peer == rank) {
                regions.add(own);
            } else if (card.pid == ProcessHandle.current().pid()) {
                regions.add(openHere(card));
            } else {
                regions.add(openThere(card));
            }
        }
    }

    private NativeMemory openHere(Card card) {
        CudaDevice other = CudaDevice.open(Device.gpu(card.ordinal));
        peers.add(other);
        if (!other.device().equals(device.device())) {
            if (!device.canAccessPeer(other)) {
                throw new EngineException(device + " cannot access " + other);
            }
            device.enablePeerAccess(other);
        }
        // libtorch wants to know on which GPU the memory is.
        return new NativeMemory(card.address, card.byteSize, other.device(), () -> {});
    }

    private NativeMemory openThere(Card card) {
        if (card.handle == null) {
            throw new EngineException("the memory of another process: " + card.noHandle);
        }
        byte[] handle = HexFormat.of().parseHex(card.handle);
        NativeMemory opened = CudaMemory.openHandle(device, handle, card.byteSize);
        boolean done = false;
        try {
            Device owner = CudaMemory.owner(device, opened);
            NativeMemory memory =
                    new NativeMemory(opened.address(), card.byteSize, owner, opened::close);
            // libtorch must agree; if not, it says so here and not in the middle of an operation.
            try (NDManager manager = NDManager.newBaseManager(device.device(), "PyTorch")) {
                Torch.view(manager, memory, 0, new Shape(1), ScalarType.INT32);
            }
            done = true;
            return memory;
        } finally {
            if (!done) {
                opened.close();
            }
        }
    }

    private static int pattern(int from, int to) {
        return 0x5eed0000 + from * 256 + to + 1;
    }

    private void writeProbes() {
        try (CudaStream stream = CudaStream.create(device)) {
            for (int peer = 0; peer < regions.size(); peer++) {
                stream.writeValue32(
                        regions.get(peer).address() + layout.probe(rank), pattern(rank, peer));
            }
            stream.synchronize();
        }
    }

    private void checkProbes() {
        try (NDManager manager = NDManager.newBaseManager(device.device(), "PyTorch")) {
            for (int peer = 0; peer < regions.size(); peer++) {
                NDArray word =
                        Torch.view(
                                manager, own, layout.probe(peer), new Shape(1), ScalarType.INT32);
                if (word.toIntArray()[0] != pattern(peer, rank)) {
                    throw new EngineException(
                            "what rank " + peer + " wrote to rank " + rank + " did not arrive");
                }
            }
        }
    }

    /** How the ranks' GPUs are linked, as rank 0 sees it; asked on all ranks. */
    GpuTopology.Kind topology(GroupContext context) {
        GpuTopology.Kind kind = GpuTopology.Kind.OTHER;
        if (rank == 0) {
            try {
                kind = GpuTopology.queryBus(buses).kind();
            } catch (RuntimeException | LinkageError e) {
                logger.warn("cannot tell how the GPUs are linked; all-reduce uses NCCL", e);
            }
        }
        List<byte[]> kinds = context.exchange("p2p-topology", bytes(kind.name()));
        return GpuTopology.Kind.valueOf(text(kinds.get(0)));
    }

    RegionLayout layout() {
        return layout;
    }

    int rank() {
        return rank;
    }

    int ranks() {
        return regions.size();
    }

    /**
     * Whether some ranks are in one process, where the driver may wait for all of its GPUs. Memory
     * that is mapped without peer access would not change that: NCCL enables peer access between
     * the GPUs of a process (p2pMap in its transport/p2p.cc).
     */
    boolean isInOneProcess() {
        return inOneProcess;
    }

    /** A rank's region, as this rank's GPU addresses it. */
    NativeMemory memory(int peer) {
        return regions.get(peer);
    }

    long address(int peer) {
        return regions.get(peer).address();
    }

    /**
     * Gives the region up. Another rank may still write into it, and would break its CUDA context
     * if the memory were gone: it is freed when all ranks have given theirs up, or have died; at
     * the latest, with the process.
     *
     * @param hosts the other ranks, of which this one takes its leave; closed with the region
     */
    void retire(HostSync hosts) {
        closePeers();
        this.hosts = hosts;
        hosts.leave();
        synchronized (RETIRED) {
            RETIRED.add(this);
            if (RETIRED.size() == 1) {
                Thread thread = new Thread(P2pRegion::freeInTime, "cuda_p2p-free");
                thread.setDaemon(true);
                thread.start();
            }
        }
        freeRetired();
    }

    /** Frees what other processes have yet to leave; ends when nothing is left to free. */
    private static void freeInTime() {
        try {
            do {
                Thread.sleep(LOOK_MILLIS);
                Disposal.run("P2P memory", P2pRegion::freeRetired);
            } while (isAnyRetired());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static boolean isAnyRetired() {
        synchronized (RETIRED) {
            return !RETIRED.isEmpty();
        }
    }

    private static void freeRetired() {
        synchronized (RETIRED) {
            List<P2pRegion> unused =
                    RETIRED.stream().filter(region -> region.hosts.isAlone()).toList();
            RETIRED.removeAll(unused);
            for (P2pRegion region : unused) {
                try {
                    region.own.close();
                    region.hosts.close();
                } catch (RuntimeException e) {
                    logger.warn("P2P memory cannot be freed", e);
                }
            }
        }
    }

    /** Unmaps the memory of the others. */
    private void closePeers() {
        for (NativeMemory region : regions) {
            if (region != own) {
                region.close();
            }
        }
        peers.forEach(CudaDevice::close);
    }

    /** Frees this rank's memory and unmaps that of the others; nothing may use it any more. */
    @Override
    public void close() {
        closePeers();
        own.close();
    }
}

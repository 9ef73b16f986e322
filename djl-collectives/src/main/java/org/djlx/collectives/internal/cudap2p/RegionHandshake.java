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
import java.security.SecureRandom;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Function;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.internal.cudap2p.AllReduceKernels.Algorithm;
import org.djlx.collectives.internal.gpu.Disposal;
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
 * Makes a {@link P2pRegion} with the other ranks, when a group is created. Step by step the ranks
 * tell each other through the store how it went, so that all have a region or none.
 *
 * <p>Ranks of one process use one mapping, to which the GPUs of those that are linked are given
 * access; to another process a rank passes a file descriptor of its memory, over a {@link
 * DescriptorChannel}. Of ranks that are not linked nothing is asked.
 */
final class RegionHandshake {

    private static final Logger logger = LoggerFactory.getLogger(RegionHandshake.class);
    private static final Gson GSON = new Gson();
    private static final Duration FREE_PATIENCE = Duration.ofSeconds(5);
    private static final int TOKEN_BYTES = 16;

    private final GroupContext context;
    private final CudaP2pOptions options;
    private final CudaDevice device;
    private final Function<List<String>, GpuTopology> topology;
    private final int rank;
    private final List<CudaDevice> opened = new ArrayList<>(); // of other ranks of this process
    private NativeMemory[] memory = {}; // of each rank; null where it is not linked
    private List<Card> cards;
    private P2pLinks links;
    private int[] linked; // the ranks that this one is linked to, itself among them
    private RegionLayout layout;
    private DescriptorChannel channel; // null if it could not be opened
    private CudaVirtualMemory own;
    private boolean direct; // all-reduces may be, as far as this rank can tell

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

    /** What a rank tells the others about itself. */
    static final class Card {
        String problem;
        String options; // that must be the same everywhere
        String host;
        long pid;
        int ordinal;
        String bus;
        String channel; // where it receives descriptors
        String token; // with which
    }

    /**
     * What came of it, the same on all ranks.
     *
     * @param region the memory; null if there is a problem
     * @param problem why there is none, or null
     */
    record Outcome(P2pRegion region, String problem) {}

    /**
     * Maps the memory of all ranks and probes every pair that is linked.
     *
     * @param context the group and the rank
     * @param options the options, which also tell how the memory is divided
     * @param device the rank's GPU
     * @param topology how the ranks' GPUs are linked, by where they are on the PCI bus
     */
    static Outcome run(
            GroupContext context,
            CudaP2pOptions options,
            CudaDevice device,
            Function<List<String>, GpuTopology> topology) {
        // All have left the groups before this one, so that the memory of those can be freed.
        context.exchange("p2p-begin", new byte[0]);
        Disposal.run("P2P memory of groups before", RetiredRegions::free);
        RegionHandshake handshake = new RegionHandshake(context, options, device, topology);
        boolean done = false;
        try {
            String problem = handshake.firstProblem();
            if (problem != null) {
                return new Outcome(null, problem);
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
            return new Outcome(region, null);
        } finally {
            handshake.close(done);
        }
    }

    private String firstProblem() {
        Card card = new Card();
        card.options = options.toString();
        card.problem = attempt(() -> fill(card));
        cards =
                context.exchange("p2p", bytes(GSON.toJson(card))).stream()
                        .map(json -> GSON.fromJson(text(json), Card.class))
                        .toList();
        String problem = describe(cards, options.isSharedGpus());
        if (problem == null) {
            List<String> buses = cards.stream().map(one -> one.bus).toList();
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
            problem = agree(context, "p2p-mapped", () -> open(addresses));
        }
        if (problem == null) {
            problem = agree(context, "p2p-probed", this::writeProbes);
        }
        return problem == null ? agree(context, "p2p-checked", this::checkProbes) : problem;
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

    /**
     * Finds what all ranks have.
     *
     * @param context the group and the rank
     * @param name names the step
     * @param own what this rank has: names, without commas
     * @return what is on every rank. The same answer on all
     */
    static Set<String> common(GroupContext context, String name, Set<String> own) {
        Set<String> common = new TreeSet<>(own);
        for (byte[] names : context.exchange(name, bytes(String.join(",", own)))) {
            common.retainAll(Set.of(text(names).split(",")));
        }
        return common;
    }

    /** What speaks against P2P in what the ranks said; everybody finds the same. */
    static String describe(List<Card> cards, boolean sharedGpus) {
        for (int rank = 0; rank < cards.size(); rank++) {
            Card card = cards.get(rank);
            if (!card.problem.isEmpty()) {
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

    private void fill(Card card) {
        if (context.worldSize() > RegionLayout.MAX_RANKS) {
            throw new EngineException(
                    "P2P groups have at most " + RegionLayout.MAX_RANKS + " ranks");
        }
        if (!CudaVirtualMemory.isSupported(device)) {
            throw new EngineException(
                    device + " and its driver have no memory that others can map by a descriptor");
        }
        // Whoever tells NCCL that ranks are on different hosts means it for P2P, too.
        card.host = Liveness.HOST + " " + System.getenv("NCCL_HOSTID");
        card.pid = ProcessHandle.current().pid();
        card.ordinal = device.device().getDeviceId();
        card.bus = device.pciBusId();
        try {
            channel = DescriptorChannel.open();
            card.channel = channel.name();
        } catch (EngineException e) {
            logger.debug("group '{}': no descriptors for other processes", context.name(), e);
        }
        byte[] token = new byte[TOKEN_BYTES];
        new SecureRandom().nextBytes(token);
        card.token = HexFormat.of().formatHex(token);
    }

    private boolean isHere(Card card) {
        return card.pid == ProcessHandle.current().pid();
    }

    private void allocate() {
        direct =
                options.isDirect()
                        && links.kind() == GpuTopology.Kind.FULLY_CONNECTED_NVLINK
                        && cards.stream().allMatch(this::isHere);
        for (int peer : linked) {
            Card card = cards.get(peer);
            if (isHere(card) && card.ordinal != device.device().getDeviceId()) {
                CudaDevice other = CudaDevice.open(Device.gpu(card.ordinal));
                opened.add(other);
                if (!other.canAccessPeer(device)) {
                    throw new EngineException(other + " cannot access " + device);
                }
                direct = direct && enableAccess(other);
            }
        }
        direct = direct && isTorchMemoryAccessible();
        try {
            own = CudaVirtualMemory.allocate(device, opened, layout.byteSize());
        } catch (CudaException e) {
            // Maybe groups before this one are still being freed.
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

    private boolean enableAccess(CudaDevice other) {
        try {
            device.enablePeerAccess(other);
            return true;
        } catch (CudaException e) {
            logger.debug("{} cannot access all memory of {}", device, other, e);
            return false;
        }
    }

    /** Segments of libtorch's that can grow are memory of which peers would have to be told. */
    private boolean isTorchMemoryAccessible() {
        try (NDManager manager = NDManager.newBaseManager(device.device(), "PyTorch")) {
            NDArray any = Torch.empty(manager, new Shape(1), ScalarType.INT32);
            return AllReduceKernels.isReachable(device, Torch.dataPointer(any));
        } catch (EngineException e) { // There is no memory now.
            logger.debug("group '{}' does without direct all-reduces", context.name(), e);
            return false;
        }
    }

    /** Gives this rank's memory to the ranks of other processes that are linked to it. */
    private void send() {
        for (int peer : linked) {
            Card card = cards.get(peer);
            if (isHere(card)) {
                continue;
            }
            if (card.channel == null || channel == null) {
                throw new EngineException("descriptors cannot be passed between processes here");
            }
            byte[] token = HexFormat.of().parseHex(card.token);
            try (Descriptor descriptor = own.export()) {
                DescriptorChannel.send(
                        card.channel, token, rank, descriptor, context.options().timeout());
            }
        }
    }

    private void open(List<byte[]> addresses) {
        NativeMemory[] found = new NativeMemory[cards.size()];
        byte[] token = HexFormat.of().parseHex(cards.get(rank).token);
        boolean done = false;
        try {
            for (int peer : linked) {
                if (peer == rank) {
                    found[peer] = own.memory();
                } else if (isHere(cards.get(peer))) {
                    found[peer] = openHere(peer, Long.parseLong(text(addresses.get(peer))));
                } else {
                    // They come in any order; there is one from each that is linked.
                    DescriptorChannel.Received received =
                            channel.receive(token, context.options().timeout())
                                    .orElseThrow(
                                            () ->
                                                    new EngineException(
                                                            "the memory of another process did not"
                                                                    + " arrive"));
                    try (Descriptor descriptor = received.descriptor()) {
                        found[sender(received.tag(), found)] = openThere(descriptor);
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

    private int sender(int tag, NativeMemory[] found) {
        if (tag < 0
                || tag >= found.length
                || isHere(cards.get(tag))
                || !links.isLinked(rank, tag)
                || found[tag] != null) {
            throw new EngineException("memory arrived of a rank " + tag + " that does not send it");
        }
        return tag;
    }

    /** The mapping of another rank of this process, which has given this one's GPU access. */
    private NativeMemory openHere(int peer, long address) {
        // libtorch wants to know on which GPU the memory is.
        Device owner = Device.gpu(cards.get(peer).ordinal);
        return new NativeMemory(address, own.memory().byteSize(), owner, () -> {});
    }

    private NativeMemory openThere(Descriptor descriptor) {
        CudaVirtualMemory mapped =
                CudaVirtualMemory.open(device, descriptor, own.memory().byteSize());
        boolean done = false;
        // libtorch must agree; if not, it says so here and not in the middle of an operation.
        try (NDManager manager = NDManager.newBaseManager(device.device(), "PyTorch")) {
            Torch.view(manager, mapped.memory(), 0, new Shape(1), ScalarType.INT32);
            done = true;
            return mapped.memory();
        } finally {
            if (!done) {
                mapped.close();
            }
        }
    }

    private static int pattern(int from, int to) {
        return 0x5eed0000 + from * 256 + to + 1;
    }

    private void writeProbes() {
        try (CudaStream stream = CudaStream.create(device)) {
            for (int peer : linked) {
                stream.writeValue32(
                        memory[peer].address() + layout.probe(rank), pattern(rank, peer));
            }
            stream.synchronize();
        }
    }

    private void checkProbes() {
        try (NDManager manager = NDManager.newBaseManager(device.device(), "PyTorch")) {
            for (int peer : linked) {
                long probe = layout.probe(peer);
                NDArray word =
                        Torch.view(manager, own.memory(), probe, new Shape(1), ScalarType.INT32);
                if (word.toIntArray()[0] != pattern(peer, rank)) {
                    throw new EngineException(
                            "what rank " + peer + " wrote to rank " + rank + " did not arrive");
                }
            }
        }
    }

    /**
     * Finds how the ranks are linked, as the options or rank 0 say; asked on all ranks, and the
     * same answer on all.
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
            try {
                links = P2pLinks.of(topology.apply(buses));
            } catch (RuntimeException | LinkageError e) {
                logger.warn("cannot tell how the GPUs are linked; all-reduce uses NCCL", e);
            }
        }
        List<byte[]> all = context.exchange("p2p-links", bytes(GSON.toJson(links)));
        return GSON.fromJson(text(all.get(0)), P2pLinks.class);
    }

    /** Gives up what a region does not need, and everything if there is none. */
    private void close(boolean done) {
        if (channel != null) {
            channel.close();
        }
        opened.forEach(CudaDevice::close);
        if (done) {
            return;
        }
        for (int peer = 0; peer < memory.length; peer++) {
            if (memory[peer] != null && peer != rank) {
                memory[peer].close();
            }
        }
        if (own != null) {
            own.close();
        }
    }
}

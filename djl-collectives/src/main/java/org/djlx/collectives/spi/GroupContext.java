// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi;

import ai.djl.Device;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.function.IntFunction;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.internal.host.GroupExchange;
import org.djlx.collectives.internal.host.Peers;
import org.djlx.collectives.internal.host.RankProcess;
import org.djlx.collectives.store.Store;
import org.djlx.nativeops.host.Required;

/**
 * The group for which a backend is created: name, rank, world size, options, and the store for the
 * rendezvous of the ranks. Thread-safe.
 */
public final class GroupContext {

    private final String name;
    private final int rank;
    private final int worldSize;
    private final Store store;
    private final BackendOptions options;
    private final Device device;
    private final GroupExchange groupExchange;

    /**
     * Creates the context of a rank.
     *
     * @param name the group's name, the same on all ranks
     * @param store the store in which the ranks meet; no other group uses its keys
     * @param options the options, the same on all ranks
     * @param device for a sub-group, this rank's device in the parent; null for an initial group,
     *     where the backend chooses
     */
    public GroupContext(
            String name,
            int rank,
            int worldSize,
            Store store,
            BackendOptions options,
            Device device) {
        this(
                name,
                rank,
                worldSize,
                store,
                options,
                device,
                Collections.nCopies(Math.max(0, worldSize), null),
                Optional::empty,
                peer -> "rank " + peer);
    }

    private GroupContext(
            String name,
            int rank,
            int worldSize,
            Store store,
            BackendOptions options,
            Device device,
            List<RankProcess> processes,
            Supplier<Optional<Throwable>> obstacle,
            IntFunction<String> rankNames) {
        checkRank(rank, worldSize);
        this.name = Required.argument("the group's name", name);
        this.rank = rank;
        this.worldSize = worldSize;
        this.store = Required.argument("the group's store", store);
        this.options = Required.argument("the group's options", options);
        this.device = device;
        groupExchange =
                new GroupExchange(name, rank, worldSize, store, processes, obstacle, rankNames);
    }

    /**
     * Creates the context of this rank in a sub-group. Error messages name the sub-group's ranks by
     * their rank in this group.
     *
     * @param members the sub-group's ranks, by rank in this group; includes this rank
     * @param partDevice the device of this rank; null if the backend chooses
     * @param obstacle returns why waiting for other members cannot succeed, or empty
     */
    public GroupContext part(
            String partName,
            List<Integer> members,
            Store partStore,
            BackendOptions partOptions,
            Device partDevice,
            Supplier<Optional<Throwable>> obstacle) {
        List<RankProcess> processes = groupExchange.processes();
        return new GroupContext(
                partName,
                Required.argument("part: members", members).indexOf(rank),
                members.size(),
                partStore,
                partOptions,
                partDevice,
                members.stream().map(processes::get).collect(Collectors.toList()),
                obstacle,
                member -> "rank " + members.get(member) + " of group '" + name + "'");
    }

    /** Checks a rank and a world size. */
    public static void checkRank(int rank, int worldSize) {
        if (worldSize < 1) {
            throw new IllegalArgumentException(
                    "the world size must be at least 1, but is " + worldSize);
        }
        if (rank < 0 || rank >= worldSize) {
            throw new IllegalArgumentException(
                    "rank %s is out of range: the group has ranks 0 to %s"
                            .formatted(rank, worldSize - 1));
        }
    }

    /** {@return the name, the same on all ranks} */
    public String name() {
        return name;
    }

    /** {@return the rank within the group} */
    public int rank() {
        return rank;
    }

    /** {@return the number of ranks} */
    public int worldSize() {
        return worldSize;
    }

    /** {@return the store in which the ranks meet; no other group uses its keys} */
    public Store store() {
        return store;
    }

    /** {@return the options, the same on all ranks} */
    public BackendOptions options() {
        return options;
    }

    /**
     * {@return the device that a sub-group takes over from its parent; null for an initial group,
     * where the backend chooses}
     */
    public Device device() {
        return device;
    }

    /**
     * All-gathers a value through the store. Slow; for set-up only. It leaves no keys in the store
     * if it succeeds on all ranks.
     *
     * @param key the name of the exchange; usable once per group
     * @return the values in rank order
     * @throws CollectiveMismatchException if the store contains a value of another group, or the
     *     ranks have different world sizes
     * @throws CollectiveException if a rank's process on this host has died
     * @throws CollectiveTimeoutException if not all ranks call it within the timeout; names the
     *     missing ranks
     */
    public List<byte[]> exchange(String key, byte[] value) {
        Required.argument("exchange: value", value);
        return groupExchange.exchange(key, value, options);
    }

    /**
     * {@return a new watch of the ranks' processes, to be closed by the caller}
     *
     * @throws IllegalStateException before the first {@link #exchange}, in which the ranks learn
     *     each other's processes
     */
    public PeerWatch watchPeers() {
        List<RankProcess> processes = groupExchange.processes();
        if (processes.contains(null)) {
            throw new IllegalStateException(
                    "group '" + name + "': call exchange before watchPeers");
        }
        return Peers.of(name, rank, store, processes);
    }

    /**
     * Makes exchanges fail on all ranks, because this rank has failed: the other ranks need not
     * wait for the timeout.
     *
     * @param keys the names of exchanges that this rank may not have completed
     */
    public void failExchanges(String reason, List<String> keys) {
        Required.argument("failExchanges: reason", reason);
        groupExchange.fail(reason, Required.argument("failExchanges: keys", keys));
    }

    /**
     * {@return the reason if another rank has called {@link #failExchanges} for an exchange that
     * has not completed on all ranks; otherwise empty} Waits for the store, but not for ranks.
     */
    public Optional<String> failureOfExchange(String key) {
        return groupExchange.failureOf(key);
    }

    /**
     * {@return a number that tells this group from earlier ones of the same name, the same on all
     * ranks; 0 before the first {@link #exchange} has ended}
     */
    public long generation() {
        return groupExchange.generation();
    }

    /**
     * Deletes the keys of an exchange among some ranks. Each of these ranks has set one key, and
     * calls this after it has read all keys. The last caller deletes them.
     *
     * <p>If a rank never calls this, or the store cannot delete, the keys stay. That is not an
     * error.
     *
     * @param keys the keys, one per participating rank, in the same order on these ranks
     */
    public void forget(List<String> keys) {
        groupExchange.forget(keys);
    }

    /**
     * {@return the operation that represents the creation of the group, with sequence number 0} A
     * backend may use it to synchronise the ranks once by its own means.
     */
    public Operation joining() {
        Operation.Agreed nothing = new Operation.Agreed(null, new long[0], null, 0);
        return new Operation(OpType.INIT, 0, name, options.timeout(), nothing)
                .warningAfter(options.warnAfter());
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
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
import org.djlx.collectives.internal.host.Required;
import org.djlx.collectives.internal.store.GroupExchange;
import org.djlx.collectives.internal.store.RankProcess;
import org.djlx.collectives.store.Store;

/**
 * What a backend is told about the group it serves: who is in it, and where its ranks meet.
 * Thread-safe.
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
     * @param rank this rank within the group
     * @param worldSize the number of ranks
     * @param store where the ranks find each other; keys are the group's own
     * @param options the options, the same on all ranks
     * @param device this rank's device in the group that this one was split off; null if it is the
     *     first, and the backend chooses
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
        checkNotNull("name", name);
        checkNotNull("store", store);
        checkNotNull("options", options);
        checkRank(rank, worldSize);
        this.name = name;
        this.rank = rank;
        this.worldSize = worldSize;
        this.store = store;
        this.options = options;
        this.device = device;
        groupExchange =
                new GroupExchange(name, rank, worldSize, store, processes, obstacle, rankNames);
    }

    /**
     * Creates the context of this rank in a group of some ranks of this group. Whoever creates that
     * knows its ranks by what they are here, and so do messages. Once there is an obstacle, waiting
     * for the others in the store is in vain.
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
                Required.argument("members", members).indexOf(rank),
                members.size(),
                partStore,
                partOptions,
                partDevice,
                members.stream().map(processes::get).collect(Collectors.toList()),
                obstacle,
                member -> "rank " + members.get(member) + " of group '" + name + "'");
    }

    private static void checkNotNull(String what, Object value) {
        if (value == null) {
            throw new IllegalArgumentException("the " + what + " of a group must not be null");
        }
    }

    public static void checkRank(int rank, int worldSize) {
        if (worldSize < 1) {
            throw new IllegalArgumentException("the world size must be positive: " + worldSize);
        }
        if (rank < 0 || rank >= worldSize) {
            throw new IllegalArgumentException(
                    "rank " + rank + " lies outside a group of " + worldSize + " ranks");
        }
    }

    /**
     * Returns the group's name.
     *
     * @return the name, the same on all ranks
     */
    public String name() {
        return name;
    }

    /**
     * Returns this rank.
     *
     * @return the rank within the group
     */
    public int rank() {
        return rank;
    }

    /**
     * Returns the number of ranks.
     *
     * @return the world size
     */
    public int worldSize() {
        return worldSize;
    }

    /**
     * Returns where the ranks find each other.
     *
     * @return the store, whose keys are the group's own
     */
    public Store store() {
        return store;
    }

    /**
     * Returns the options.
     *
     * @return the options, the same on all ranks
     */
    public BackendOptions options() {
        return options;
    }

    /**
     * Returns this rank's device in the group that this one was split off.
     *
     * @return the device; null if this group is the first, and the backend chooses
     */
    public Device device() {
        return device;
    }

    /**
     * Gathers a value from every rank through the store; a slow all-gather for setting up. It
     * leaves nothing in the store if it succeeds on all ranks.
     *
     * @param key what the values are; used once in the life of the group
     * @param value this rank's value
     * @return the values in rank order
     * @throws CollectiveMismatchException if the store has the value of another group where that of
     *     a rank should be, or the ranks do not agree on the number of ranks
     * @throws CollectiveException if a rank runs on this host in a process that has died
     * @throws CollectiveTimeoutException if not all ranks call it within the timeout, with those
     *     missing
     */
    public List<byte[]> exchange(String key, byte[] value) {
        Required.argument("exchange: value", value);
        return groupExchange.exchange(key, value, options);
    }

    /**
     * Deletes keys through which some ranks have told each other something, once all have called
     * this: the last to do so deletes them. Each of the ranks has set one of the keys and calls
     * this after it has read all.
     *
     * <p>If a rank does not get that far, or if the store cannot delete, the keys stay. That is no
     * error here: the ranks have what they wanted.
     *
     * @param keys the keys in the same order on all of these ranks, as many as there are ranks
     */
    public void forget(List<String> keys) {
        groupExchange.forget(keys);
    }

    /**
     * Returns the operation in which the ranks come together when the group is created; a backend
     * may use it to synchronise them once more, by its own means.
     *
     * @return the operation, with number 0
     */
    public Operation joining() {
        Operation.Agreed nothing = new Operation.Agreed(null, new long[0], null, 0);
        return new Operation(OpType.INIT, 0, name, options.timeout(), nothing)
                .warningAfter(options.warnAfter());
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import ai.djl.Device;
import java.util.List;
import java.util.Objects;
import java.util.stream.IntStream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What a backend is told about the group it serves.
 *
 * @param name the group's name, the same on all ranks
 * @param rank this rank within the group
 * @param worldSize the number of ranks
 * @param store where the ranks find each other; keys are the group's own
 * @param options the options, the same on all ranks
 * @param device this rank's device in the group that this one was split off; null if it is the
 *     first, and the backend chooses
 */
public record GroupContext(
        String name, int rank, int worldSize, Store store, BackendOptions options, Device device) {

    private static final Logger logger = LoggerFactory.getLogger(GroupContext.class);

    /**
     * Checks the arguments.
     *
     * @param name the group's name, the same on all ranks
     * @param rank this rank within the group
     * @param worldSize the number of ranks
     * @param store where the ranks find each other; keys are the group's own
     * @param options the options, the same on all ranks
     * @param device this rank's device, or null
     */
    public GroupContext {
        Objects.requireNonNull(name, "name");
        Objects.requireNonNull(store, "store");
        Objects.requireNonNull(options, "options");
        checkRank(rank, worldSize);
    }

    static void checkRank(int rank, int worldSize) {
        if (worldSize < 1) {
            throw new IllegalArgumentException("the world size must be positive: " + worldSize);
        }
        if (rank < 0 || rank >= worldSize) {
            throw new IllegalArgumentException(
                    "rank " + rank + " lies outside a group of " + worldSize + " ranks");
        }
    }

    /**
     * Gathers a value from every rank through the store; a slow all-gather for setting up. It
     * leaves nothing in the store if it succeeds on all ranks.
     *
     * @param key what the values are; used once in the life of the group
     * @param value this rank's value
     * @return the values in rank order
     * @throws CollectiveException if not all ranks call it within the timeout, with those missing
     */
    public List<byte[]> exchange(String key, byte[] value) {
        store.set(key + "/" + rank, value);
        List<String> keys =
                IntStream.range(0, worldSize).mapToObj(peer -> key + "/" + peer).toList();
        List<byte[]> values;
        try {
            values = store.multiGet(keys, options.timeout());
        } catch (StoreTimeoutException e) {
            List<Integer> missing =
                    IntStream.range(0, worldSize)
                            .filter(peer -> e.missingKeys().contains(keys.get(peer)))
                            .boxed()
                            .toList();
            throw new CollectiveTimeoutException(
                    "creating group '"
                            + name
                            + "' timed out on rank "
                            + rank
                            + " after "
                            + options.timeout()
                            + ": ranks "
                            + missing
                            + " of "
                            + worldSize
                            + " did not arrive",
                    missing,
                    e);
        }
        forget(keys);
        return values;
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
        String readers = keys.get(0) + "/read";
        try {
            if (store.add(readers, 1) == keys.size()) {
                keys.forEach(store::delete);
                store.delete(readers);
            }
        } catch (RuntimeException e) {
            logger.debug("group '{}': the keys {} stay in the store", name, keys, e);
        }
    }

    /**
     * Returns the operation in which the ranks come together when the group is created; a backend
     * may use it to synchronise them once more, by its own means.
     *
     * @return the operation, with number 0
     */
    public Operation joining() {
        Operation.Agreed nothing = new Operation.Agreed(null, new long[0], null, 0);
        return new Operation(OpType.INIT, 0, name, options.timeout(), nothing);
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.store;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.IntFunction;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.internal.host.Deadline;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.LongWaits;
import org.djlx.collectives.internal.host.Required;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.StoreTimeoutException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Where the ranks of a group meet while it is created: they exchange values through a store.
 *
 * <p>With each value a rank {@linkplain Introduction introduces} itself, so that values of another
 * group, or of an earlier one of the same name, are never taken for those of this group, whatever
 * led them to the same keys. It also says in which process it runs: who waits for others looks
 * whether the processes that are known still run, so that a death does not cost the timeout.
 * Thread-safe.
 */
public final class GroupExchange {

    private static final Logger logger = LoggerFactory.getLogger(GroupExchange.class);

    // A rank that waits looks at what has come so far, and who has died: often enough that its user
    // need not wait for the message, and the more ranks there are the less often, as all of them
    // ask one server.
    private static final long MIN_SLICE_MILLIS = 200;
    private static final long SLICE_MILLIS_PER_RANK = 10;

    private final String group;
    private final int rank;
    private final int worldSize;
    private final Store store;
    private final long nonce = ThreadLocalRandom.current().nextLong();

    /** What the nonces of all ranks make together; 0 until they are known. */
    private volatile long generation;

    /** The processes of the ranks; null where one is not known. */
    private final RankProcess[] processes;

    private final Supplier<Optional<Throwable>> obstacle;
    private final IntFunction<String> names;

    /**
     * Creates a rank's part in an exchange.
     *
     * @param group the group's name
     * @param rank the rank
     * @param worldSize the number of ranks
     * @param store the store, whose keys are the group's own
     * @param known the processes of the ranks, null where one is not known yet
     * @param obstacle why not all ranks will come, once that is known
     * @param names what to call a rank in a message to the user
     */
    public GroupExchange(
            String group,
            int rank,
            int worldSize,
            Store store,
            List<RankProcess> known,
            Supplier<Optional<Throwable>> obstacle,
            IntFunction<String> names) {
        processes = known.toArray(RankProcess[]::new);
        this.obstacle = obstacle;
        this.names = names;
        this.group = group;
        this.rank = rank;
        this.worldSize = worldSize;
        this.store = store;
    }

    /**
     * Returns in which processes the ranks run, as far as they have said so.
     *
     * @return the processes in rank order, null where one is not known
     */
    public List<RankProcess> processes() {
        synchronized (processes) {
            return Arrays.asList(processes.clone());
        }
    }

    /**
     * Gathers a value from every rank. It leaves nothing in the store if it succeeds on all ranks.
     *
     * @param key what the values are; used once in the life of the group
     * @param value this rank's value
     * @param options how long to wait for the others, and when the log is to tell of it
     * @return the values in rank order
     * @throws CollectiveMismatchException if a value is there that is not of this group
     * @throws CollectiveException if the process of a rank has died, or there is an obstacle
     * @throws CollectiveTimeoutException if not all ranks come within the timeout
     */
    public List<byte[]> exchange(String key, byte[] value, BackendOptions options) {
        List<String> keys =
                IntStream.range(0, worldSize).mapToObj(peer -> key + "/" + peer).toList();
        Introduction self =
                new Introduction(group, worldSize, nonce, generation, RankProcess.own());
        byte[] own = self.before(value);
        store.set(keys.get(rank), own);
        byte[][] found = new byte[worldSize][];
        Introduction[] peers = new Introduction[worldSize];
        await(keys, options, found, peers);
        if (!Arrays.equals(own, found[rank])) {
            throw new CollectiveMismatchException(
                    "creating group '"
                            + group
                            + "': another process or thread is rank "
                            + rank
                            + ", too; give every one a rank of its own");
        }
        if (self.generation() == 0) {
            generation = Introduction.generation(List.of(peers));
        }
        forget(keys);
        return Arrays.stream(found).map(Introduction::valueIn).toList();
    }

    /**
     * Waits for the values of all ranks, and compares what has come even while some are missing.
     */
    private void await(
            List<String> keys, BackendOptions options, byte[][] found, Introduction[] peers) {
        Deadline deadline = Deadline.after(options.timeout());
        long start = System.nanoTime();
        boolean warned = false;
        Duration slice = Duration.ofMillis(MIN_SLICE_MILLIS + SLICE_MILLIS_PER_RANK * worldSize);
        List<Integer> missing = IntStream.range(0, worldSize).boxed().toList();
        while (!missing.isEmpty()) {
            Duration left = Duration.ofNanos(deadline.remainingNanos());
            List<Integer> here = missing;
            try {
                store.waitFor(keysOf(missing, keys), left.compareTo(slice) < 0 ? left : slice);
                missing = List.of();
            } catch (StoreTimeoutException e) {
                List<String> unset = e.missingKeys();
                missing = here.stream().filter(peer -> unset.contains(keys.get(peer))).toList();
                if (deadline.isOver() && !missing.isEmpty()) {
                    throw timeout(options.timeout(), missing, e);
                }
            }
            // Looked at before the store is asked once more: a rank may be done with all this, and
            // have ended, after the last value has come.
            String end = missing.isEmpty() ? null : endOfHope();
            if (end != null && !store.check(keysOf(missing, keys))) {
                throw new CollectiveException(
                        "creating group '" + group + "' failed on rank " + rank + ": " + end);
            }
            long waited = System.nanoTime() - start;
            if (!warned && !missing.isEmpty() && waited >= options.warnAfter().toNanos()) {
                warned = true;
                LongWaits.tell(
                        "creating group '" + group + "' on rank " + rank,
                        named(missing),
                        waited,
                        options.timeout());
            }
            List<Integer> come = new ArrayList<>(here);
            come.removeAll(missing);
            List<byte[]> values = store.multiGet(keysOf(come, keys), slice);
            for (int i = 0; i < come.size(); i++) {
                int peer = come.get(i);
                found[peer] = values.get(i);
                peers[peer] = introduced(peer, values.get(i));
                synchronized (processes) {
                    processes[peer] = peers[peer].process();
                }
            }
        }
    }

    /** Why a rank that is missing may never come; null if nothing is known. */
    private String endOfHope() {
        String death = death();
        return death != null ? death : obstacle.get().map(Throwable::getMessage).orElse(null);
    }

    /** What is known of a rank whose process has ended; null if there is none. */
    private String death() {
        List<RankProcess> all = processes();
        for (int peer = 0; peer < worldSize; peer++) {
            RankProcess process = all.get(peer);
            if (process != null && process.hasDied()) {
                return GroupErrors.died(names.apply(peer), process.pid());
            }
        }
        return null;
    }

    private static List<String> keysOf(List<Integer> peers, List<String> keys) {
        return peers.stream().map(keys::get).toList();
    }

    private String named(List<Integer> peers) {
        return peers.stream().map(names::apply).collect(Collectors.joining(", "));
    }

    private CollectiveTimeoutException timeout(
            Duration timeout, List<Integer> missing, StoreTimeoutException cause) {
        return new CollectiveTimeoutException(
                "creating group '"
                        + group
                        + "' timed out on rank "
                        + rank
                        + " after "
                        + timeout
                        + ": "
                        + named(missing)
                        + " of "
                        + worldSize
                        + " did not arrive",
                missing,
                cause);
    }

    private Introduction introduced(int peer, byte[] message) {
        Introduction other = Introduction.in(message);
        String problem = null;
        if (other == null) {
            problem = "there is a value that no rank of a group has put there";
        } else if (!other.group().equals(group)) {
            problem =
                    "there is the value of a group '"
                            + other.group()
                            + "'; give one of the groups another name or another store";
        } else if (other.worldSize() != worldSize) {
            problem =
                    "that rank says that the group has "
                            + other.worldSize()
                            + " ranks, this one that it has "
                            + worldSize
                            + "; pass the same world size on all ranks";
        } else if (other.generation() != 0 && generation != 0 && other.generation() != generation) {
            problem =
                    "some ranks took what a group of the same name had left in the store for what"
                            + " others of this group say; give each group a name that was not used"
                            + " in the store before";
        }
        if (problem != null) {
            throw new CollectiveMismatchException(
                    "creating group '"
                            + group
                            + "' failed on rank "
                            + rank
                            + ": where rank "
                            + peer
                            + " should answer, "
                            + problem);
        }
        return other;
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
        Required.argument("forget: keys", keys);
        String readers = keys.get(0) + "/read";
        try {
            if (store.add(readers, 1) == keys.size()) {
                keys.forEach(store::delete);
                store.delete(readers);
            }
        } catch (RuntimeException e) {
            logger.debug("group '{}': the keys {} stay in the store", group, keys, e);
        }
    }
}

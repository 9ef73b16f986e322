// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

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
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.StoreTimeoutException;
import org.djlx.nativeops.host.Deadline;
import org.djlx.nativeops.host.Durations;
import org.djlx.nativeops.host.Required;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Exchanges values between the ranks of a group through a store, while the group is created.
 *
 * <p>Each value starts with an {@link Introduction}. It identifies the group: values of another
 * group, or of an earlier group of the same name, are detected. It also identifies the rank's
 * process: waiting ranks notice its death before the timeout. Thread-safe.
 */
public final class GroupExchange {

    private static final Logger logger = LoggerFactory.getLogger(GroupExchange.class);

    // The interval at which a waiting rank checks the values so far and the processes. It grows
    // with the number of ranks, because all of them query one server.
    private static final long MIN_SLICE_MILLIS = 200;
    private static final long SLICE_MILLIS_PER_RANK = 10;

    private final String group;
    private final int rank;
    private final int worldSize;
    private final Store store;
    private final long nonce = ThreadLocalRandom.current().nextLong();

    /** The combination of all ranks' nonces; 0 until known. */
    private volatile long generation;

    /** Why this rank cannot go on; null if it can. */
    private volatile String failure;

    /** By rank, its process; null until known. */
    private final RankProcess[] processes;

    private final Supplier<Optional<Throwable>> obstacle;
    private final IntFunction<String> names;

    /**
     * Creates the exchange of one rank.
     *
     * @param store the store; no other group uses its keys
     * @param known by rank, its process; null if unknown
     * @param obstacle returns a failure that makes waiting for other ranks hopeless, or empty
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

    /** Returns the combination of all ranks' nonces; 0 until known. */
    public long generation() {
        return generation;
    }

    /** Returns the processes of the ranks, in rank order; null if unknown. */
    public List<RankProcess> processes() {
        synchronized (processes) {
            return Arrays.asList(processes.clone());
        }
    }

    /**
     * All-gathers a value. It leaves no keys in the store if it succeeds on all ranks.
     *
     * @param key the name of the exchange; usable once per group
     * @param options the timeout, and when to log a warning
     * @return the values in rank order
     * @throws CollectiveMismatchException if the store contains a value of another group
     * @throws CollectiveException if the process of a rank has died, or there is an obstacle
     * @throws CollectiveTimeoutException if not all ranks call it within the timeout
     */
    public List<byte[]> exchange(String key, byte[] value, BackendOptions options) {
        List<String> keys =
                IntStream.range(0, worldSize).mapToObj(peer -> key + "/" + peer).toList();
        Introduction self = introduction(null);
        byte[] own = self.before(value);
        store.set(keys.get(rank), own);
        if (failure != null) {
            fail(failure, List.of(key)); // It may have come before this value.
        }
        byte[][] found = new byte[worldSize][];
        Introduction[] peers = new Introduction[worldSize];
        await(keys, options, found, peers);
        if (!Arrays.equals(own, found[rank])) {
            throw new CollectiveMismatchException(
                    ("creating group '%s': another process or thread already has rank %s; give each"
                                    + " a different rank")
                            .formatted(group, rank));
        }
        if (self.generation() == 0) {
            generation = Introduction.generation(List.of(peers));
        }
        forget(keys);
        return Arrays.stream(found).map(Introduction::valueIn).toList();
    }

    private Introduction introduction(String because) {
        return new Introduction(group, worldSize, nonce, generation, RankProcess.own(), because);
    }

    /**
     * Lets exchanges that this rank may not have ended fail on all ranks, because it cannot go on.
     */
    public void fail(String reason, List<String> keys) {
        failure = reason;
        byte[] message = introduction(reason).before(new byte[0]);
        keys.forEach(key -> store.set(key + "/" + rank, message));
    }

    /** Returns why another rank has let an exchange fail that has not ended; empty if none has. */
    public Optional<String> failureOf(String key) {
        for (int peer = 0; peer < worldSize; peer++) {
            String name = key + "/" + peer;
            if (peer != rank && store.check(List.of(name))) {
                Introduction other = Introduction.in(store.get(name));
                if (other != null && other.failure() != null) {
                    return Optional.of(names.apply(peer) + " failed: " + other.failure());
                }
            }
        }
        return Optional.empty();
    }

    /** Waits for the values of all ranks. Checks each value as it arrives. */
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
            // Check the processes before the store: a rank may finish the exchange and exit after
            // the last value has arrived.
            String end = missing.isEmpty() ? null : obstacle();
            if (end != null && !store.check(keysOf(missing, keys))) {
                throw new CollectiveException(
                        "creating group '" + group + "' failed on rank " + rank + ": " + end);
            }
            long waited = System.nanoTime() - start;
            if (!warned && !missing.isEmpty() && waited >= options.warnAfter().toNanos()) {
                warned = true;
                LongWaits.warn(
                        "creating group '" + group + "' on rank " + rank,
                        named(missing),
                        waited,
                        options.timeout());
            }
            List<Integer> arrived = new ArrayList<>(here);
            arrived.removeAll(missing);
            List<byte[]> values = store.multiGet(keysOf(arrived, keys), slice);
            for (int i = 0; i < arrived.size(); i++) {
                int peer = arrived.get(i);
                found[peer] = values.get(i);
                peers[peer] = introduced(peer, values.get(i));
                synchronized (processes) {
                    processes[peer] = peers[peer].process();
                }
            }
        }
    }

    /** Describes why a missing rank may never arrive; returns null if no reason is known. */
    private String obstacle() {
        String death = death();
        return death != null ? death : obstacle.get().map(Throwable::getMessage).orElse(null);
    }

    /** Describes the first rank whose process has ended; returns null if there is none. */
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
                "creating group '%s' timed out on rank %s after %s: %s of %s did not arrive"
                        .formatted(group, rank, Durations.text(timeout), named(missing), worldSize),
                missing,
                cause);
    }

    private Introduction introduced(int peer, byte[] message) {
        Introduction other = Introduction.in(message);
        String problem = null;
        if (other == null) {
            problem = "the store has a value that no rank has set; use an empty store";
        } else if (!other.group().equals(group)) {
            problem =
                    "the store has the value of a group '"
                            + other.group()
                            + "'; give one of the groups another name or another store";
        } else if (other.worldSize() != worldSize) {
            problem =
                    ("that rank has world size %s, this rank %s; pass the same world size on all"
                                    + " ranks")
                            .formatted(other.worldSize(), worldSize);
        } else if (other.generation() != 0 && generation != 0 && other.generation() != generation) {
            problem =
                    "some ranks have read values that an earlier group of the same name left in the"
                            + " store; give each group a name that is new in the store";
        }
        if (problem != null) {
            throw new CollectiveMismatchException(
                    "creating group '%s' failed on rank %s: value of rank %s: %s"
                            .formatted(group, rank, peer, problem));
        }
        if (other.failure() != null) {
            throw new CollectiveException(
                    "creating group '%s' failed on rank %s: %s failed: %s"
                            .formatted(group, rank, names.apply(peer), other.failure()));
        }
        return other;
    }

    /**
     * Deletes the keys of an exchange among some ranks: one for each, in the same order on all.
     * Each of these ranks has set its key, and calls this after it has read all keys. The last
     * caller deletes them. If a rank never calls it, or the store cannot delete, the keys stay;
     * that is not an error.
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
            logger.debug("group '{}': cannot delete the keys {} from the store", group, keys, e);
        }
    }
}

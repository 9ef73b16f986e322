/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.PrefixStore;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.TcpStore;

/**
 * Creates process groups; the counterpart of {@code torch.distributed.init_process_group}.
 *
 * <p>Ranks are processes ({@link #init(String)}) or threads of one JVM ({@link #local(int)}),
 * behind the same {@link ProcessGroup}.
 *
 * <pre>{@code
 * List<ProcessGroup> groups = ProcessGroups.local(4);
 * List<Float> sums =
 *         ProcessGroups.run(
 *                 groups,
 *                 group -> {
 *                     try (NDManager manager = NDManager.newBaseManager(group.device())) {
 *                         NDArray ranks = manager.create(new float[] {group.rank()});
 *                         group.allReduce(ranks, ReduceOp.SUM).await();
 *                         return ranks.getFloat();
 *                     }
 *                 });
 * groups.forEach(ProcessGroup::destroy);
 * }</pre>
 */
public final class ProcessGroups {

    private static final String DEFAULT_NAME = "default";
    private static final BackendOptions DEFAULTS =
            new BackendOptions(BackendOptions.DEFAULT_TIMEOUT);
    // How long rank 0 waits in destroy for ranks that do not do the same.
    private static final Duration STORE_PATIENCE = Duration.ofSeconds(5);
    // How long threads that are ranks go on after one has failed: those that wait for it in an
    // operation learn of it at once, and say more about it than those that are interrupted.
    private static final Duration GRACE = Duration.ofSeconds(10);
    // All ranks create their groups in the same order, so these are the same on all ranks and keep
    // one group apart from a later one: its keys in the same store, or its server on the same port.
    private static final AtomicInteger INITS = new AtomicInteger();
    private static final AtomicInteger LOCALS = new AtomicInteger();

    private ProcessGroups() {}

    /**
     * Creates this process's rank of a group from the environment that {@code torchrun} sets.
     *
     * @param backend the backend, such as {@code shm}
     * @return the group
     * @see #init(String, BackendOptions)
     */
    public static ProcessGroup init(String backend) {
        return init(backend, DEFAULTS);
    }

    /**
     * Creates this process's rank of a group from the environment that {@code torchrun} sets:
     * {@code RANK}, {@code WORLD_SIZE}, {@code MASTER_ADDR} and {@code MASTER_PORT}. Rank 0 serves
     * the store there, unless {@code TORCHELASTIC_USE_AGENT_STORE} is {@code True} and the launcher
     * does. The store lives as long as the group: on rank 0, {@code destroy} waits some seconds for
     * the other ranks to destroy theirs. Then all may call this again.
     *
     * @param backend the backend, such as {@code shm}
     * @param options the backend's options
     * @return the group
     * @throws IllegalArgumentException if the environment is incomplete or there is no such backend
     * @throws CollectiveException if the ranks do not come together
     */
    public static ProcessGroup init(String backend, BackendOptions options) {
        return init(backend, options, System.getenv(), INITS.getAndIncrement());
    }

    /**
     * Creates a rank of the group with a number, the same on all ranks, that is never used again.
     *
     * <p>The servers of groups that follow each other have one port, and the ranks are not equally
     * fast. None is caught between two servers:
     *
     * <ul>
     *   <li>A rank that is ahead of rank 0 finds the server of the group before. It knows by the
     *       number that this is not its own, leaves, and comes back until it is. The one it finds
     *       then does not go away under it: rank 0 stops it in {@code destroy}, or when it fails,
     *       and no rank has the group before all have come.
     *   <li>A rank that is behind rank 0 may still need the server when rank 0 destroys the group,
     *       which stops it when the others have closed their connections. Each has one from here to
     *       its {@code destroy}, or to its end if it dies; one that goes on without rank 0 is not
     *       waited for long. Ranks that look whether this is the next group's server hold it up no
     *       longer than that takes.
     * </ul>
     */
    static ProcessGroup init(
            String backend, BackendOptions options, Map<String, String> env, int number) {
        Backends.get(backend);
        checkOptions(options);
        int rank = integer(env, "RANK");
        int worldSize = integer(env, "WORLD_SIZE");
        String host = required(env, "MASTER_ADDR");
        int port = integer(env, "MASTER_PORT");
        GroupContext.checkRank(rank, worldSize);
        boolean agentStore = "True".equalsIgnoreCase(env.get("TORCHELASTIC_USE_AGENT_STORE"));
        String name = DEFAULT_NAME + number;
        TcpStore store =
                TcpStore.builder()
                        .setHost(host)
                        .setPort(port)
                        .optServer(rank == 0 && !agentStore)
                        .optBindAddress(host)
                        .optMark(agentStore ? null : name)
                        .optTimeout(options.timeout())
                        .build();
        Runnable leave = () -> store.closeAfterOthers(STORE_PATIENCE);
        try {
            PrefixStore own = new PrefixStore(agentStore ? attempt(env) + "/" + name : name, store);
            return create(
                    backend,
                    new GroupContext(DEFAULT_NAME, rank, worldSize, own, options, null),
                    leave);
        } catch (RuntimeException e) {
            // The others are to find out what went wrong, not that the store is gone.
            leave.run();
            throw e;
        }
    }

    /**
     * The launcher's store outlives the workers: when it starts them again, what they set before is
     * still there and must not be taken for theirs. PyTorch's workers use the same prefix.
     */
    private static String attempt(Map<String, String> env) {
        return "/worker/attempt_" + env.getOrDefault("TORCHELASTIC_RESTART_COUNT", "0");
    }

    /**
     * Creates this rank of a group whose ranks meet in a store.
     *
     * @param backend the backend, such as {@code shm}
     * @param store the store; it stays the caller's and must outlive the group. A name can be used
     *     once in a store
     * @param name the group's name
     * @param rank this rank
     * @param worldSize the number of ranks
     * @param options the backend's options
     * @return the group
     * @throws IllegalArgumentException if there is no such backend
     * @throws CollectiveException if the ranks do not come together
     */
    public static ProcessGroup init(
            String backend,
            Store store,
            String name,
            int rank,
            int worldSize,
            BackendOptions options) {
        if (name == null || store == null) {
            throw new IllegalArgumentException(
                    "init: the " + (name == null ? "name" : "store") + " of a group is null");
        }
        PrefixStore own = new PrefixStore(escaped(name), store);
        return create(
                backend, new GroupContext(name, rank, worldSize, own, options, null), () -> {});
    }

    private static void checkOptions(BackendOptions options) {
        if (options == null) {
            throw new IllegalArgumentException("the options of a group must not be null");
        }
    }

    /** A name in which no slash ends the group's own keys; the keys of sub-groups have one. */
    private static String escaped(String name) {
        return name.replace("%", "%25").replace("/", "%2F");
    }

    static ProcessGroup create(String backend, GroupContext context, Runnable onDestroy) {
        String job = JobId.agreeOn(context); // Before the backend: when all are there, it is gone.
        List<Integer> ranks = IntStream.range(0, context.worldSize()).boxed().toList();
        Backend made = Backends.get(backend).create(context);
        boolean done = false;
        try {
            ProcessGroup group = new ProcessGroup(context, made, job, ranks, onDestroy);
            done = true;
            return group;
        } finally {
            if (!done) {
                made.close(); // Memory has run out; nobody else knows of it.
            }
        }
    }

    /**
     * Creates a group whose ranks are threads of this JVM, with backend {@code shm}.
     *
     * @param worldSize the number of ranks
     * @return the ranks' handles, in rank order; each to be used by a thread of its own
     */
    public static List<ProcessGroup> local(int worldSize) {
        return local("shm", worldSize, DEFAULTS);
    }

    /**
     * Creates a group whose ranks are threads of this JVM.
     *
     * @param backend the backend, such as {@code shm}
     * @param worldSize the number of ranks
     * @param options the backend's options
     * @return the ranks' handles, in rank order; each to be used by a thread of its own
     */
    public static List<ProcessGroup> local(String backend, int worldSize, BackendOptions options) {
        GroupContext.checkRank(0, worldSize);
        Backends.get(backend);
        checkOptions(options);
        String name = "local" + LOCALS.getAndIncrement();
        // It holds nothing but heap memory, which goes with the last group that uses it.
        Store store = new HashStore();
        // Made before, so that no group is lost when memory runs out.
        ProcessGroup[] created = new ProcessGroup[worldSize];
        try {
            return RankThreads.run(
                    worldSize,
                    GRACE,
                    rank -> {
                        ProcessGroup group = init(backend, store, name, rank, worldSize, options);
                        created[rank] = group;
                        return group;
                    });
        } catch (RuntimeException | Error e) {
            for (ProcessGroup group : created) {
                destroyAfter(e, group);
            }
            throw e;
        }
    }

    private static void destroyAfter(Throwable failure, ProcessGroup group) {
        try {
            if (group != null) {
                group.destroy();
            }
        } catch (RuntimeException | Error e) {
            if (e != failure) { // When memory runs out, it may be the same object.
                failure.addSuppressed(e);
            }
        }
    }

    /**
     * Runs code on a thread for each rank of a local group and waits for all.
     *
     * @param <T> what the code returns
     * @param groups the handles of all ranks, as {@link #local(int)} returns them
     * @param body the code for one rank
     * @return what each rank returned, in rank order
     * @throws CollectiveException if it failed on any rank: it names the rank that failed first,
     *     with what it threw as the cause and the others suppressed. If that was a {@link
     *     CollectiveTimeoutException} or a {@link CollectiveMismatchException}, so is this. When a
     *     rank fails, its handle is destroyed, so that the others do not wait for it; those that
     *     wait for something else are interrupted after 10 seconds, and waited for
     * @throws IllegalArgumentException if there is no group, one is missing, or there is no code
     */
    public static <T> List<T> run(List<ProcessGroup> groups, RankBody<T> body) {
        return run(groups, body, GRACE);
    }

    static <T> List<T> run(List<ProcessGroup> groups, RankBody<T> body, Duration grace) {
        if (groups == null || groups.isEmpty() || groups.stream().anyMatch(Objects::isNull)) {
            throw new IllegalArgumentException(
                    "run: groups must hold the handles of all ranks, not " + groups);
        }
        if (body == null) {
            throw new IllegalArgumentException("run: body is null");
        }
        return RankThreads.run(
                groups.size(),
                grace,
                new RankThreads.Body<>() {
                    @Override
                    public T run(int rank) throws Exception {
                        return body.run(groups.get(rank));
                    }

                    @Override
                    public void failed(int rank) {
                        groups.get(rank).destroy();
                    }
                });
    }

    /**
     * What one rank does.
     *
     * @param <T> what it returns
     */
    @FunctionalInterface
    public interface RankBody<T> {

        /**
         * Runs on the rank's thread.
         *
         * @param group the rank's handle
         * @return the rank's result
         * @throws Exception if it fails
         */
        T run(ProcessGroup group) throws Exception;
    }

    private static String required(Map<String, String> env, String name) {
        String value = env.get(name);
        if (value == null || value.isBlank()) {
            throw new IllegalArgumentException(
                    "the environment variable "
                            + name
                            + " is not set; start the ranks with torchrun or samples/run.sh launch,"
                            + " which set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
        }
        return value.trim();
    }

    private static int integer(Map<String, String> env, String name) {
        String value = required(env, name);
        try {
            return Integer.parseInt(value);
        } catch (NumberFormatException e) {
            throw new IllegalArgumentException(
                    "the environment variable " + name + " is not a number: " + value, e);
        }
    }
}

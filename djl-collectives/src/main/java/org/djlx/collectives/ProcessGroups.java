// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.djlx.collectives.internal.group.CreatingThread;
import org.djlx.collectives.internal.group.JobId;
import org.djlx.collectives.internal.group.RankGroup;
import org.djlx.collectives.internal.group.RankThreads;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.launch.LaunchEnvironment;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.PrefixStore;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.TcpStore;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.host.Required;

/**
 * Creates process groups; the counterpart of {@code torch.distributed.init_process_group}.
 *
 * <ul>
 *   <li>{@link #init(String)}: each rank is a process, started by {@code torchrun}, {@code srun},
 *       {@code mpirun} or {@link org.djlx.collectives.launch.Launch}.
 *   <li>{@link #init(String, Store, String, int, int, BackendOptions)}: ranks meet in a {@link
 *       Store} of yours.
 *   <li>{@link #local(int)}: each rank is a thread of this JVM; {@link #run} starts the threads.
 * </ul>
 *
 * <p>All methods create handles of type {@link ProcessGroup}. {@link ProcessGroup#destroy()
 * Destroy} each handle when done.
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
    // How long destroy() on rank 0 waits for the other ranks to close their store connections.
    private static final Duration STORE_CLOSE_TIMEOUT = Duration.ofSeconds(5);
    // How long the other rank threads may run after one has failed. Ranks that wait for it in an
    // operation fail immediately with a more precise error than an interrupt would give.
    private static final Duration GRACE = Duration.ofSeconds(10);
    // Group numbers. All ranks create their groups in the same order, so a group has the same
    // number on all ranks. The number separates the keys of successive groups in one store, and
    // their servers on one port.
    private static final AtomicInteger INITS = new AtomicInteger();
    private static final AtomicInteger LOCALS = new AtomicInteger();

    private ProcessGroups() {}

    /**
     * Creates this process's handle on a group, from the environment variables of a launcher, with
     * default options.
     *
     * @param backend the backend: {@code shm}, {@code mpi}, {@code nccl}, {@code cuda_p2p} or a
     *     third-party backend
     */
    public static ProcessGroup init(String backend) {
        return init(backend, BackendOptions.DEFAULTS);
    }

    /**
     * Creates this process's handle on a group, from the environment variables of a launcher, as
     * {@link LaunchEnvironment} reads them: torchrun, Open MPI, PMI, Slurm, Kubernetes or Kubeflow.
     * Blocks until all ranks have called it.
     *
     * <p>Backend {@code mpi}, of the artifact {@code mpi-backend}, asks MPI for rank and world
     * size, and rank 0 chooses the store's address, unless {@code RANK}, {@code MASTER_ADDR} and
     * {@code MASTER_PORT} are set.
     *
     * <p>Rank 0 serves the store at that address. If {@code TORCHELASTIC_USE_AGENT_STORE} is {@code
     * True}, the launcher serves it instead. On rank 0, {@code destroy} stops the server; it first
     * waits up to 5 s for the other ranks to destroy the group. Then all ranks may call this method
     * again.
     *
     * @param options the backend's options, such as {@link ShmOptions}
     * @throws IllegalArgumentException if a variable is missing or invalid, or the backend is
     *     unknown
     * @throws CollectiveException if not all ranks call it within the timeout
     */
    public static ProcessGroup init(String backend, BackendOptions options) {
        return init(backend, LaunchEnvironment.current(), options);
    }

    /**
     * As {@link #init(String, BackendOptions)}, with options for the rank and the store's address:
     *
     * <pre>{@code
     * LaunchEnvironment environment =
     *         LaunchEnvironment.builder()
     *                 .optRank(rank, worldSize)
     *                 .optMasterAddress("node0", 29500)
     *                 .optBindAddress("0.0.0.0")
     *                 .build();
     * ProcessGroup group = ProcessGroups.init("nccl", environment, options);
     * }</pre>
     *
     * @throws IllegalArgumentException if a value is missing or invalid, or the backend is unknown
     * @throws CollectiveException if not all ranks call it within the timeout
     */
    public static ProcessGroup init(
            String backend, LaunchEnvironment environment, BackendOptions options) {
        Required.argument("init: the environment", environment);
        Map<String, String> all = Backends.get(backend).environment(environment.given());
        return init(backend, options, all, INITS.getAndIncrement());
    }

    /**
     * Creates this process's handle on the group with a given number. The number is the same on all
     * ranks and never reused.
     *
     * <p>Successive groups run their store servers on the same port, while ranks run at different
     * speeds. Two rules make every rank use the server of its own group:
     *
     * <ul>
     *   <li>A rank that is ahead of rank 0 may connect to the previous group's server. It sees
     *       another number, disconnects and retries until the number matches. A matching server
     *       stays up until rank 0 destroys the group or fails to create it, and no rank gets the
     *       group before all ranks have connected.
     *   <li>A rank slower than rank 0 may still need the server when rank 0 destroys the group.
     *       Rank 0 therefore stops the server only after the other ranks have closed their
     *       connections, at most {@link #STORE_CLOSE_TIMEOUT} later. A rank closes its connection
     *       when it destroys the group or dies. Ranks that only check the number do not delay this.
     * </ul>
     */
    static ProcessGroup init(
            String backend, BackendOptions options, Map<String, String> env, int number) {
        Backends.get(backend);
        checkOptions(options);
        LaunchEnvironment launch = LaunchEnvironment.of(env);
        int rank = launch.requireInt("RANK");
        int worldSize = launch.requireInt("WORLD_SIZE");
        String host = launch.require("MASTER_ADDR");
        int port = launch.requireInt("MASTER_PORT");
        GroupContext.checkRank(rank, worldSize);
        boolean agentStore = "True".equalsIgnoreCase(env.get("TORCHELASTIC_USE_AGENT_STORE"));
        String name = DEFAULT_NAME + number;
        TcpStore store =
                TcpStore.builder()
                        .setHost(host)
                        .setPort(port)
                        .optServer(rank == 0 && !agentStore)
                        .optBindAddress(launch.require("DJLX_BIND_ADDRESS"))
                        .optMark(agentStore ? null : name)
                        .optTimeout(options.timeout())
                        .build();
        Runnable leave = () -> store.closeAfterOthers(STORE_CLOSE_TIMEOUT);
        try {
            PrefixStore own = new PrefixStore(agentStore ? attempt(env) + "/" + name : name, store);
            return create(
                    backend,
                    new GroupContext(DEFAULT_NAME, rank, worldSize, own, options, null),
                    Optional.empty(),
                    leave);
        } catch (RuntimeException e) {
            // Keep the server up for the other ranks: they then report the cause, not a lost store
            // connection.
            leave.run();
            throw e;
        }
    }

    /**
     * Returns the key prefix of this start of the workers. The launcher's store outlives the
     * workers, so keys of an earlier start must not be read after a restart. PyTorch's workers use
     * the same prefix.
     */
    private static String attempt(Map<String, String> env) {
        return "/worker/attempt_" + env.getOrDefault("TORCHELASTIC_RESTART_COUNT", "0");
    }

    /**
     * Creates this rank's handle on a group whose ranks meet in a store. Blocks until all ranks
     * have called it.
     *
     * @param store the store; the caller owns it and must keep it open until the group is destroyed
     * @param name the group's name, the same on all ranks; usable once per store
     * @param rank this rank, from 0
     * @throws IllegalArgumentException if the rank is out of range or the backend is unknown
     * @throws CollectiveException if not all ranks call it within the timeout
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
                    "init: the group's " + (name == null ? "name" : "store") + " is null");
        }
        return init(backend, store, name, rank, worldSize, options, Optional.empty());
    }

    private static ProcessGroup init(
            String backend,
            Store store,
            String name,
            int rank,
            int worldSize,
            BackendOptions options,
            Optional<CreatingThread> creator) {
        PrefixStore own = new PrefixStore(escaped(name), store);
        return create(
                backend,
                new GroupContext(name, rank, worldSize, own, options, null),
                creator,
                () -> {});
    }

    private static void checkOptions(BackendOptions options) {
        if (options == null) {
            throw new IllegalArgumentException("the group's options are null");
        }
    }

    /** Escapes slashes, which separate the key prefixes of a group and its sub-groups. */
    private static String escaped(String name) {
        return name.replace("%", "%25").replace("/", "%2F");
    }

    static ProcessGroup create(
            String backend,
            GroupContext context,
            Optional<CreatingThread> creator,
            Runnable onDestroy) {
        String job =
                JobId.agreeOn(context); // Before the backend: the last rank deletes the keys of the
        // identifier.
        List<Integer> ranks = IntStream.range(0, context.worldSize()).boxed().toList();
        Backend made = Backends.get(backend).create(context);
        try {
            return new RankGroup(context, made, job, ranks, creator, onDestroy);
        } catch (Throwable e) {
            made.close(); // Out of memory: no handle exists that could close it.
            throw e;
        }
    }

    /**
     * Creates a group whose ranks are threads of this JVM, with backend {@code shm} and default
     * options.
     *
     * @return one handle per rank, in rank order; use each on its own thread
     */
    public static List<ProcessGroup> local(int worldSize) {
        return local("shm", worldSize, BackendOptions.DEFAULTS);
    }

    /**
     * Creates a group whose ranks are threads of this JVM.
     *
     * @return one handle per rank, in rank order; use each on its own thread
     * @throws IllegalArgumentException if the world size is out of range, the backend is unknown,
     *     or it does not accept the options
     * @throws CollectiveException if a rank cannot create its handle; the other handles are
     *     destroyed
     */
    public static List<ProcessGroup> local(String backend, int worldSize, BackendOptions options) {
        GroupContext.checkRank(0, worldSize);
        Backends.get(backend);
        checkOptions(options);
        String name = "local" + LOCALS.getAndIncrement();
        // Never closed: it holds only heap memory and is collected with the last group.
        Store store = new HashStore();
        Optional<CreatingThread> creator = Optional.of(new CreatingThread());
        // Allocated first: if memory runs out later, no handle is lost.
        ProcessGroup[] created = new ProcessGroup[worldSize];
        try {
            return RankThreads.run(
                    worldSize,
                    GRACE,
                    rank -> {
                        ProcessGroup group =
                                init(backend, store, name, rank, worldSize, options, creator);
                        created[rank] = group;
                        return group;
                    });
        } catch (RuntimeException | Error e) {
            for (ProcessGroup group : created) {
                destroyAfter(e, group);
            }
            if (e.getCause() instanceof IllegalArgumentException wrong) {
                throw new IllegalArgumentException(wrong.getMessage(), e);
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
            if (e != failure) { // An OutOfMemoryError can be the same preallocated object.
                failure.addSuppressed(e);
            }
        }
    }

    /**
     * Runs code on one thread per rank of a local group, and waits for all threads. A rank's GPU is
     * the current one of its thread.
     *
     * <p>If a rank throws, its handle is destroyed. The other ranks' operations then fail instead
     * of waiting for it. A rank that is blocked elsewhere is interrupted after 10 s. This method
     * waits for all threads in any case.
     *
     * @param groups the handles of all ranks, as {@link #local(int)} returns them
     * @return the results, in rank order
     * @throws CollectiveException if a rank threw: names the rank that failed first, with its
     *     exception as the cause and the exceptions of other ranks as suppressed. A {@link
     *     CollectiveTimeoutException} or a {@link CollectiveMismatchException} if the cause is one.
     *     If all ranks threw the same mismatch, which names the call of each rank, that exception
     * @throws IllegalArgumentException if {@code groups} is empty or contains null, or {@code body}
     *     is null
     */
    public static <T> List<T> run(List<ProcessGroup> groups, RankBody<T> body) {
        return run(groups, body, GRACE);
    }

    static <T> List<T> run(List<ProcessGroup> groups, RankBody<T> body, Duration grace) {
        if (groups == null || groups.isEmpty() || groups.stream().anyMatch(Objects::isNull)) {
            throw new IllegalArgumentException(
                    "run: groups must contain one handle per rank, without null, but is " + groups);
        }
        Required.argument("run: body", body);
        return RankThreads.run(
                groups.size(),
                grace,
                new RankThreads.Body<>() {
                    @Override
                    public T run(int rank) throws Exception {
                        CudaDevice.makeCurrent(groups.get(rank).device());
                        return body.run(groups.get(rank));
                    }

                    @Override
                    public void failed(int rank, Throwable failure) {
                        if (GroupErrors.isLocal(failure)) {
                            groups.get(rank).abort(failure); // Tells the other ranks the cause.
                        }
                        groups.get(rank).destroy();
                    }
                });
    }

    /** The code that {@link #run} runs on each rank. */
    @FunctionalInterface
    public interface RankBody<T> {

        /** Runs one rank; called on the rank's thread. */
        T run(ProcessGroup group) throws Exception;
    }
}

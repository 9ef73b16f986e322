/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.train;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;
import ai.djl.training.listener.LoggingTrainingListener;
import ai.djl.training.listener.MemoryTrainingListener;
import ai.djl.training.listener.TimeMeasureTrainingListener;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.optimizer.Optimizer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TorchThreads;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.collectives.internal.gpu.LongCalls;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.nativeops.torch.NoGradient;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A trainer whose parameters are on several ranks: those of this JVM, which share a batch, or one
 * of each of several processes. {@link P2pEngine} says what that means to the program.
 */
public final class DataParallelTrainer extends Trainer {

    private static final Logger LOG = LoggerFactory.getLogger(DataParallelTrainer.class);
    // The largest gradients that are reduced by kernels of many blocks.
    private static final long KERNEL_BYTES = 1 << 20;
    private static final Duration ABANDON_PATIENCE = Duration.ofSeconds(30);

    private final DataParallelConfig settings;
    private final Optimizer optimizer;
    private final boolean processes;
    private final List<Replica> replicas = new ArrayList<>();
    private final List<ProcessGroup> ownGroups = new ArrayList<>();
    private final List<SplitForward> passes = new ArrayList<>(); // not yet gone back
    private final RankWorkers workers;
    private boolean loaded;
    private boolean stepped;
    private volatile Throwable failure; // why ranks cannot go on together, or null
    private boolean closed;

    /** Creates a trainer, and the group of its ranks. */
    public static DataParallelTrainer create(Model model, TrainingConfig config) {
        DataParallelConfig settings =
                config instanceof DataParallelConfig own
                        ? own
                        : new DataParallelConfig(config.getLossFunction());
        DataParallelTrainer trainer = new DataParallelTrainer(model, config, settings);
        boolean done = false;
        try {
            trainer.join(config.getDevices());
            trainer.logSettings();
            done = true;
            return trainer;
        } finally {
            if (!done) {
                trainer.close();
            }
        }
    }

    private DataParallelTrainer(Model model, TrainingConfig config, DataParallelConfig settings) {
        super(model, isFirst(model, settings) ? config : quiet(config));
        this.settings = settings;
        optimizer = config.getOptimizer();
        processes = settings.group() != null || isOneOfSeveral();
        int ranks = processes ? 1 : ranks(config.getDevices());
        if (settings.group() == null && !config.getDevices()[0].isGpu()) {
            TorchThreads.choose(ranks);
        }
        workers = new RankWorkers(ranks, this::abandon);
    }

    private static boolean isOneOfSeveral() {
        String worldSize = System.getenv("WORLD_SIZE");
        return System.getenv("RANK") != null && worldSize != null && !"1".equals(worldSize.trim());
    }

    /** Tells whether this is the first rank of all, also of those that share the model. */
    private static boolean isFirst(Model model, DataParallelConfig settings) {
        ProcessGroup parts = DividedBlock.groupOf(model.getBlock());
        if (parts != null && parts.rank() > 0) {
            return false;
        }
        return settings.group() != null
                ? settings.group().rank() == 0
                : !isOneOfSeveral() || System.getenv("RANK").trim().equals("0");
    }

    /** Leaves out what writes logs, to files too, which the first rank does for all. */
    private static TrainingConfig quiet(TrainingConfig config) {
        DefaultTrainingConfig quiet =
                new DefaultTrainingConfig(config.getLossFunction())
                        .optDevices(config.getDevices())
                        .optOptimizer(config.getOptimizer());
        if (config.getExecutorService() != null) {
            quiet.optExecutorService(config.getExecutorService());
        }
        config.getEvaluators().forEach(quiet::addEvaluator);
        for (TrainingListener listener : config.getTrainingListeners()) {
            boolean logs =
                    listener instanceof LoggingTrainingListener
                            || listener instanceof TimeMeasureTrainingListener
                            || listener instanceof MemoryTrainingListener;
            if (!logs) {
                quiet.addTrainingListeners(listener);
            }
        }
        return quiet;
    }

    private int ranks(Device[] devices) {
        Integer wanted = settings.ranks();
        if (!devices[0].isGpu()) {
            return wanted == null ? 1 : wanted;
        }
        if (wanted != null && wanted != devices.length) {
            throw new IllegalArgumentException(
                    String.format(
                            "newTrainer: %d ranks are wanted, but there is one for each of the"
                                    + " devices %s",
                            wanted, Arrays.toString(devices)));
        }
        return devices.length;
    }

    private void join(Device[] devices) {
        if (processes) {
            if (settings.ranks() != null && settings.ranks() > 1) {
                throw new IllegalArgumentException(
                        String.format(
                                "newTrainer: %d ranks are wanted in this JVM, but it is itself one"
                                        + " rank of several",
                                settings.ranks()));
            }
            ProcessGroup group = settings.group();
            if (group == null) {
                group = ProcessGroups.init(settings.backend(devices[0].isGpu()));
                ownGroups.add(group);
            }
            replicas.add(replica(0, group.device(), group));
            return;
        }
        int ranks = ranks(devices);
        Device[] each = new Device[ranks];
        Arrays.setAll(each, rank -> devices[Math.min(rank, devices.length - 1)]);
        if (ranks > 1) {
            settings.checkRanksOfOneJvm(ranks);
            requireWhole(getModel().getBlock(), ranks);
            String backend = settings.backend(devices[0].isGpu());
            ownGroups.addAll(ProcessGroups.local(backend, ranks, options(backend, each)));
        }
        for (int rank = 0; rank < ranks; rank++) {
            ProcessGroup group = ranks > 1 ? ownGroups.get(rank) : null;
            replicas.add(replica(rank, each[rank], group));
        }
    }

    /**
     * Logs ranks, devices, backend and gradient reduction; on the first rank only. Warns if
     * gradients of processes are summed by default, because PyTorch's DDP averages them.
     */
    private void logSettings() {
        ProcessGroup group = replicas.get(0).group();
        if (group == null) {
            LOG.info("Training on 1 rank: device {}", replicas.get(0).device());
            return;
        }
        if (!isFirst(getModel(), settings)) {
            return;
        }
        int worldSize = group.worldSize();
        String reduction = settings.reduction().name();
        LOG.info(
                "Training on {} ranks {}: {} {}, backend {}, {}, gradient compression {}, buckets"
                        + " of {} bytes",
                worldSize,
                processes ? "with a trainer each" : "in this JVM",
                processes ? "this rank's device" : "devices",
                processes ? group.device() : replicas.stream().map(Replica::device).toList(),
                group.backendName(),
                processes
                        ? "gradient reduction " + reduction + " (one loss per rank)"
                        : "gradients summed (one loss for all ranks)",
                settings.compression(),
                settings.bucketBytes());
        if (processes && worldSize > 1 && !settings.isReductionSet()) {
            LOG.warn(
                    "The gradients of {} ranks are summed, which is the default here; PyTorch's"
                            + " DistributedDataParallel averages them. To average, set"
                            + " -D{}=MEAN or call optGradientReduction(MEAN); to keep the sum"
                            + " without this warning, set SUM",
                    worldSize,
                    DataParallelConfig.GRADIENT_REDUCTION);
        }
    }

    /** Two replicas of a block would call the group that divides its parameters at once. */
    private static void requireWhole(Block block, int ranks) {
        ProcessGroup parts = DividedBlock.groupOf(block);
        if (parts != null && parts.worldSize() > 1) {
            throw new IllegalArgumentException(
                    String.format(
                            "newTrainer: the block's parameters are divided among the %d ranks of"
                                + " group '%s', so that each of these has a trainer of one rank: %d"
                                + " ranks in this JVM cannot share it. Give optRanks(1), and the"
                                + " group of those that share batches by optProcessGroup",
                            parts.worldSize(), parts.name(), ranks));
        }
    }

    private Replica replica(int index, Device device, ProcessGroup group) {
        ReduceOp op = processes ? settings.reduction().op() : ReduceOp.SUM;
        return new Replica(index, device, group, getManager(), op, settings);
    }

    private static BackendOptions options(String backend, Device[] devices) {
        if (!devices[0].isGpu()) {
            return new BackendOptions(BackendOptions.DEFAULT_TIMEOUT);
        }
        NcclOptions.Builder nccl = NcclOptions.builder().optDevices(devices);
        if (!"cuda_p2p".equals(backend)) {
            return nccl.build();
        }
        CudaP2pOptions.Builder options =
                CudaP2pOptions.builder().optNcclOptions(nccl.optHighPriorityStream(true).build());
        CudaP2pOptions usual = options.build();
        if (!usual.isDirect(devices.length, false)) {
            return usual;
        }
        // Beside the backward pass: few blocks, which come before those of its kernels.
        return options.optOneShotBytes(Math.min(KERNEL_BYTES, usual.oneShotBytes(devices.length)))
                .optTwoShotBytes(KERNEL_BYTES)
                .build();
    }

    /** Returns the rank of this process among those that train the model. */
    public int process() {
        return processes ? replicas.get(0).group().rank() : 0;
    }

    /** Returns the group of the processes; null if this one is the only one. */
    public ProcessGroup group() {
        return processes ? replicas.get(0).group() : null;
    }

    /** Returns the ranks of this JVM. */
    public List<Replica> replicas() {
        return replicas;
    }

    public Optimizer optimizer() {
        return optimizer;
    }

    /** Gives up the gradients of passes before. */
    public void zeroGradients() {
        closePasses();
        replicas.forEach(Replica::zeroGradients);
    }

    /** Has each rank its parameters, for a call that reads or writes them. */
    public void prepare(String call) {
        requireUsable(call);
        if (!getModel().getBlock().isInitialized()) {
            throw new IllegalStateException(
                    call + ": the model is not initialised; call trainer.initialize(shape) before");
        }
        load();
    }

    /** Ends the operations of ranks that wait for one that failed. */
    private void abandon(Throwable cause) {
        failure = failure == null ? cause : failure;
        // At once: a rank's end waits for its operations, which on GPUs wait for other ranks' ends.
        List<Thread> ends =
                ownGroups.stream()
                        .map(group -> LongCalls.start("trainer-abandon", group::destroy))
                        .toList();
        LongCalls.join(ends, ABANDON_PATIENCE);
    }

    private void requireUsable(String call) {
        if (closed) {
            throw new IllegalStateException(call + ": the trainer is closed");
        }
        if (failure != null) {
            throw new IllegalStateException(
                    call
                            + ": the ranks of this trainer cannot go on together, as one has"
                            + " failed; its parameters may differ between ranks; make a new trainer"
                            + " of the model: "
                            + failure,
                    failure);
        }
    }

    @Override
    public void initialize(Shape... shapes) {
        getModel()
                .getBlock()
                .initialize(getModel().getNDManager(), getModel().getDataType(), shapes);
        load();
    }

    /** Gives each rank its parameters; they are the same on all. */
    private void load() {
        if (loaded) {
            return;
        }
        Block block = getModel().getBlock();
        replicas.forEach(replica -> replica.load(block));
        alignOptimizer();
        loaded = true;
        if (replicas.get(0).group() != null) {
            eachRank(
                    replica -> {
                        if (processes) {
                            replica.receive();
                        }
                        replica.verify("before training", false);
                    });
        }
    }

    /** Gives each rank its parameters as they are now, until the first step changes them. */
    private void follow() {
        load();
        if (!stepped) {
            replicas.forEach(Replica::takeWritten);
        }
    }

    /**
     * Has an optimizer that another trainer used before keep for all ranks what it keeps for the
     * first: there may have been fewer ranks, or one failed in the middle of a step.
     */
    private void alignOptimizer() {
        if (replicas.size() == 1) {
            return;
        }
        OptimizerState state;
        try {
            state = new OptimizerState(optimizer);
        } catch (IllegalStateException e) {
            return; // What one that is not DJL's keeps, and by which ids, is its own.
        }
        Replica first = replicas.get(0);
        for (Replica replica : replicas.subList(1, replicas.size())) {
            for (int i = 0; i < first.parameters().size(); i++) {
                Replica.Own from = first.parameters().get(i);
                Map<String, NDArray> copies = new HashMap<>();
                state.arrays(from.id(), first.device())
                        .forEach((slot, array) -> copies.put(slot, replica.copy(array)));
                copies.values().forEach(NDArray::detach); // As the optimizer's own.
                String id = replica.parameters().get(i).id();
                state.set(id, replica.device(), state.count(from.id()), copies);
            }
        }
    }

    private interface OfReplica {
        void run(Replica replica);
    }

    private void eachRank(OfReplica body) {
        try {
            workers.run(
                    replicas.size(),
                    rank -> {
                        body.run(replicas.get(rank));
                        return null;
                    });
        } catch (CollectiveMismatchException e) {
            failure = e;
            throw new CollectiveException(
                    "the ranks have not done the same: one may have closed its trainer while others"
                            + " go on, as with fewer batches, or train another model: "
                            + e.getMessage(),
                    e);
        } catch (RuntimeException | Error e) {
            failure = failure == null ? e : failure;
            throw e;
        }
    }

    /** Returns the device on which batches and predictions are: the first rank's. */
    @Override
    public Device[] getDevices() {
        // DJL asks while it constructs the trainer.
        return replicas == null || replicas.isEmpty()
                ? super.getDevices()
                : new Device[] {replicas.get(0).device()};
    }

    @Override
    public GradientCollector newGradientCollector() {
        requireUsable("newGradientCollector");
        closePasses();
        return GradientScope.open(() -> replicas.forEach(Replica::zeroGradients));
    }

    @Override
    public NDList forward(NDList input) {
        return forward(input, null);
    }

    @Override
    public NDList forward(NDList data, NDList labels) {
        requireUsable("forward");
        long begin = System.nanoTime();
        follow();
        replicas.forEach(Replica::followFreezing);
        Block block = getModel().getBlock();
        try {
            return forward(
                    data,
                    labels,
                    GradientScope.current().orElse(null),
                    (rank, part, partLabels) ->
                            StagedForward.run(block, replicas.get(rank), part, partLabels));
        } finally {
            addMetric("forward", begin);
        }
    }

    @Override
    public NDList evaluate(NDList input) {
        requireUsable("evaluate");
        follow();
        Block block = getModel().getBlock();
        return forward(
                input,
                null,
                null,
                (rank, part, labels) ->
                        block.forward(replicas.get(rank).store(), part, false, null));
    }

    private NDList forward(
            NDList data, NDList labels, GradientScope scope, SplitForward.Body body) {
        if (replicas.size() == 1) {
            return body.forward(0, data, labels);
        }
        for (NDArray array : data) {
            if (scope != null && NoGradient.isRecorded(array)) {
                throw new IllegalArgumentException(
                        "forward: the data requires a gradient, which would be lost: it does not"
                                + " come from the ranks to what they share; pass"
                                + " data.stopGradient(), or train on one rank");
            }
        }
        if (scope != null) {
            replicas.get(0).requireNotedGradients("forward", replicas.size());
        }
        List<Device> devices = replicas.stream().map(Replica::device).toList();
        boolean done = false;
        try {
            NDList predictions =
                    SplitForward.run(
                            workers,
                            devices,
                            data,
                            labels,
                            scope,
                            body,
                            rank -> replicas.get(rank).beginIncompletePass(),
                            replicas.get(0)::noteGradients,
                            passes::add);
            done = true;
            return predictions;
        } finally {
            if (!done && scope != null) {
                replicas.forEach(Replica::reduceLate); // Some ranks have begun a pass.
            }
        }
    }

    private void closePasses() {
        passes.forEach(SplitForward::close);
        passes.clear();
        replicas.forEach(Replica::forgetPasses);
    }

    @Override
    public void step() {
        requireUsable("step");
        long begin = System.nanoTime();
        closePasses();
        load();
        replicas.get(0).requireNotedGradients("step", replicas.size());
        boolean check = !stepped;
        AtomicBoolean different = new AtomicBoolean();
        CountDownLatch updated = new CountDownLatch(1);
        eachRank(
                replica -> {
                    if (replica.step(optimizer, check, updated)) {
                        different.set(true);
                    }
                });
        if (!different.get()) {
            throw new IllegalStateException(
                    "step: all gradients are zero; call collector.backward() on the loss, within"
                            + " trainer.newGradientCollector(), before trainer.step()");
        }
        stepped = true;
        addMetric("step", begin);
    }

    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        // A thread that was interrupted before would fail to wait for the ranks.
        boolean interrupted = Thread.interrupted();
        closePasses();
        try {
            if (loaded && failure == null) {
                if (replicas.get(0).group() != null) {
                    eachRank(replica -> replica.verify("after training", true));
                }
                replicas.get(0).writeBack();
            }
        } finally {
            ownGroups.forEach(ProcessGroup::destroy);
            replicas.forEach(Replica::close);
            workers.close();
            super.close();
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}

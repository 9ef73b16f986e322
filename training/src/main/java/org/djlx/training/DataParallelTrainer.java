// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;
import ai.djl.training.optimizer.Optimizer;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import java.util.function.ToDoubleFunction;
import org.djlx.collectives.Agreement;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.engine.DividedBlock;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.collectives.launch.TorchThreads;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.nativeops.host.LongCalls;
import org.djlx.nativeops.host.ProcessExit;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.SplitCheck.Layout;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Data-parallel trainer of the engine {@code PyTorch-P2P}. Either several ranks in this JVM split
 * each batch, or this JVM is one rank of several processes with a batch each. The engine's javadoc
 * describes the rules for programs.
 */
public final class DataParallelTrainer extends Trainer {

    private static final Logger LOG = LoggerFactory.getLogger(DataParallelTrainer.class);
    private static final long SMALL_BYTES = 2 << 20;
    private static final Duration ABANDON_PATIENCE = Duration.ofSeconds(30);

    private final DataParallelConfig settings;
    private final Optimizer optimizer;
    private final boolean processes;
    private final List<Replica> replicas = new ArrayList<>();
    private final List<ProcessGroup> ownGroups = new ArrayList<>();
    private final List<SplitForward> passes = new ArrayList<>(); // backward not finished
    private final RankWorkers workers;
    private final Map<PassKind, Layout> layouts = new HashMap<>(); // of the first batch of each
    private final GradScaler scaler; // null for none
    private Boolean finite; // whether the divided gradients are; null before unscale()
    private final UnevenBatches unevenBatches = new UnevenBatches(this);
    private boolean loaded;
    private boolean stepped;
    private boolean reduced; // whether the last backward pass has reduced its gradients
    private GradientScope recording; // of the last collector; null before
    private GradientScope followed; // a collector that is not this trainer's; null if none
    private int followedPasses; // within it, whose backward pass has not ended
    private volatile Throwable failure; // the failure that broke the ranks' group, or null
    private boolean closed;

    /**
     * Creates a trainer and the process group of its ranks.
     *
     * @param model the model
     * @param config the configuration; a {@link DataParallelConfig} has more settings
     * @return the trainer, to be closed
     */
    public static DataParallelTrainer create(Model model, TrainingConfig config) {
        DataParallelConfig settings =
                config instanceof DataParallelConfig own
                        ? own
                        : new DataParallelConfig(config.getLossFunction());
        settings.check();
        DataParallelTrainer trainer = new DataParallelTrainer(model, config, settings);
        try {
            trainer.enter(config.getDevices());
            trainer.logSettings();
            return trainer;
        } catch (Throwable e) {
            trainer.close();
            throw e;
        }
    }

    private DataParallelTrainer(Model model, TrainingConfig config, DataParallelConfig settings) {
        super(
                model,
                TrainerSetup.isFirst(model, settings) && !TrainerSetup.isProcess(settings)
                        ? config
                        : TrainerSetup.ofRank(config, TrainerSetup.isFirst(model, settings)));
        this.settings = settings;
        optimizer = config.getOptimizer();
        scaler = settings.gradScaler();
        processes = TrainerSetup.isProcess(settings);
        int ranks = processes ? 1 : TrainerSetup.ranks(settings, config.getDevices());
        if (settings.group() == null && !config.getDevices()[0].isGpu()) {
            TorchThreads.choose(ranks);
        }
        workers = new RankWorkers(ranks, this::abandon);
        ProcessExit.beginUse();
    }

    private void enter(Device[] devices) {
        if (settings.mixedPrecision() != MixedPrecisionPolicy.NONE) {
            replaceBlock(Autocast.convert(getModel().getBlock(), settings.mixedPrecision()));
        }
        if (processes) {
            if (settings.ranks() != null && settings.ranks() > 1) {
                throw new IllegalArgumentException(
                        String.format(
                                "newTrainer: %d ranks in this JVM are not possible, because this"
                                        + " JVM is one rank of several processes; set optRanks(1)",
                                settings.ranks()));
            }
            ProcessGroup group = settings.group();
            if (group == null) {
                String backend = settings.backend(devices[0].isGpu());
                group = ProcessGroups.init(backend, new BackendOptions(settings.timeout()));
                ownGroups.add(group);
            }
            if (group.worldSize() > 1) {
                synchronizeStatistics();
            }
            replicas.add(replica(0, group.device(), group));
            return;
        }
        int ranks = TrainerSetup.ranks(settings, devices);
        Device[] each = new Device[ranks];
        Arrays.setAll(each, rank -> devices[Math.min(rank, devices.length - 1)]);
        if (ranks > 1) {
            settings.checkRanksOfOneJvm(ranks);
            TrainerSetup.requireOneRate(optimizer, ranks);
            TrainerSetup.requireWhole(getModel().getBlock(), ranks);
            String backend = settings.backend(devices[0].isGpu());
            BackendOptions options = TrainerSetup.options(settings, backend, each);
            ownGroups.addAll(ProcessGroups.local(backend, ranks, options));
        }
        if (ranks > 1) {
            synchronizeStatistics();
        }
        for (int rank = 0; rank < ranks; rank++) {
            ProcessGroup group = ranks > 1 ? ownGroups.get(rank) : null;
            replicas.add(replica(rank, each[rank], group));
        }
    }

    /** Replaces the block's batch normalisation by one over all ranks, unless an option forbids. */
    private void synchronizeStatistics() {
        if (settings.syncBatchNorm()) {
            replaceBlock(SyncBatchNorm.convert(getModel().getBlock(), !processes));
        }
    }

    private void replaceBlock(Block block) {
        if (block != getModel().getBlock()) {
            getModel().setBlock(block);
        }
    }

    /** Logs ranks, devices, backend and gradient reduction; on the first rank only. */
    private void logSettings() {
        ProcessGroup group = replicas.get(0).group();
        if (group == null) {
            LOG.info("Training on 1 rank: device {}", replicas.get(0).device());
            return;
        }
        if (!TrainerSetup.isFirst(getModel(), settings)) {
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
    }

    private Replica replica(int index, Device device, ProcessGroup group) {
        ReduceOp op = processes ? settings.reduction().op() : ReduceOp.SUM;
        return new Replica(index, device, group, getManager(), op, settings);
    }

    /** {@return this process's rank in the data-parallel group; 0 if there is only one process} */
    public int process() {
        return processes ? replicas.get(0).group().rank() : 0;
    }

    /**
     * {@return this rank's handle on the group of the processes; null if there is only one process}
     */
    public ProcessGroup group() {
        return processes ? replicas.get(0).group() : null;
    }

    /** {@return the replicas of this JVM's ranks, in rank order} */
    public List<Replica> replicas() {
        return replicas;
    }

    /** {@return the optimizer, which all ranks of this JVM share} */
    public Optimizer optimizer() {
        return optimizer;
    }

    /** {@return the scaler of gradients; null for none} */
    public GradScaler gradScaler() {
        return scaler;
    }

    /** Discards all gradients. */
    public void zeroGradients() {
        closePasses();
        dropGradients();
    }

    private void dropGradients() {
        finite = null;
        replicas.forEach(Replica::zeroGradients);
    }

    /**
     * Makes sure that each rank has its parameters.
     *
     * @param call the caller's name, for errors
     * @throws IllegalStateException if the model is not initialised, or the trainer is closed or
     *     broken
     */
    public void prepare(String call) {
        requireUsable(call);
        if (!getModel().getBlock().isInitialized()) {
            throw new IllegalStateException(
                    call + ": the model is not initialised; call trainer.initialize(shape) first");
        }
        load();
    }

    /** Aborts the group, so that no rank waits for the failed rank. */
    private void abandon(Throwable cause) {
        failure = failure == null ? cause : failure;
        // In parallel: destroy() waits for the rank's operations, and on GPUs these wait for peers.
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
                    ("%s: a rank of this trainer has failed, so parameters may differ between"
                                    + " ranks; create a new trainer for the model. The failure: %s")
                            .formatted(call, failure),
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

    /** Creates each rank's parameters and checks that they are equal on all ranks. */
    private void load() {
        if (loaded) {
            return;
        }
        Block block = getModel().getBlock();
        BlockReplacement.copyBack(block);
        TrainerSetup.requireMasters(settings, block);
        requireSameOptions();
        if (isSharded()) {
            OptimizerState state = new OptimizerState(optimizer); // Throws if it cannot be divided.
            if (isFullySharded()) {
                TrainerSetup.requireDivisible(block, state);
            }
        }
        boolean oneMemory = isSmall(block);
        replicas.forEach(replica -> replica.load(block, processes, oneMemory));
        if (isFullySharded()) {
            replicas.get(0).shards().closeOriginals();
        }
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

    /**
     * Returns whether ranks share the block's parameters: for a small block on CPUs, one thread
     * adds gradients faster than the ranks all-reduce them. False in any of these cases:
     *
     * <ul>
     *   <li>a rank on a GPU, or only one rank
     *   <li>a sharding strategy or gradient compression
     *   <li>a parameter that is not float32
     *   <li>a block larger than 2 MiB or than a gradient bucket
     *   <li>a parameter without gradient that is not a statistic: each rank's pass may write to it
     * </ul>
     */
    private boolean isSmall(Block block) {
        if (replicas.size() == 1
                || replicas.get(0).device().isGpu()
                || settings.shardingStrategy() != ShardingStrategy.NO_SHARD
                || settings.compression() != GradientCompression.NONE) {
            return false;
        }
        long bytes = 0;
        for (Parameter parameter : block.getParameters().values()) {
            NDArray array = parameter.getArray();
            bytes +=
                    array.getDataType() == DataType.FLOAT32 ? 4 * array.size() : Long.MAX_VALUE / 4;
            boolean trained = parameter.requiresGradient() || FullyShard.isStatistic(parameter);
            if (!trained
                    || array.getDevice().isGpu()
                    || bytes > Math.min(SMALL_BYTES, settings.bucketBytes())) {
                return false;
            }
        }
        return true;
    }

    /** {@return whether the ranks divide parameters or the optimizer's state among each other} */
    public boolean isSharded() {
        return settings.shardingStrategy() != ShardingStrategy.NO_SHARD
                && replicas.get(0).group() != null;
    }

    private boolean isFullySharded() {
        return settings.shardingStrategy() == ShardingStrategy.FULL_SHARD
                && replicas.get(0).group() != null;
    }

    /** Refuses options that differ between processes, as these would train wrongly. */
    private void requireSameOptions() {
        ProcessGroup group = processes ? replicas.get(0).group() : null;
        String options =
                settings.common()
                        + (", " + (scaler == null ? "no GradScaler" : scaler))
                        + (isUneven() ? ", JoinListeners " + unevenBatches.names() : "");
        try {
            List<String> all = Agreement.exchange(group, "initialize", () -> options);
            if (all.stream().distinct().count() > 1) {
                throw new IllegalArgumentException(
                        "initialize: the ranks have different options; set the same"
                                + " DataParallelConfig on all. In rank order: "
                                + all);
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Ends {@link #summonFullParameters} when it is closed. */
    public interface FullParameters extends AutoCloseable {

        @Override
        void close();
    }

    /**
     * Gathers the parameters of a trainer with {@link ShardingStrategy#FULL_SHARD} into the block's
     * own arrays, for example to save the model. All processes call it. The arrays are copies:
     * changes are lost. Otherwise does nothing.
     *
     * @return an object to be closed, which frees the arrays
     * @throws IllegalStateException if the trainer is closed or broken
     */
    public FullParameters summonFullParameters() {
        prepare("summonFullParameters");
        if (!isFullySharded()) {
            return () -> {};
        }
        restore();
        return replicas.get(0).shards()::closeOriginals;
    }

    private void restore() {
        FullyShard first = replicas.get(0).shards();
        eachRank(replica -> replica.shards().acquireAll());
        first.restore(getModel().getNDManager());
        eachRank(replica -> replica.shards().releaseAll());
    }

    /** Copies parameters that the program has written to since the last step to all ranks. */
    private void follow() {
        load();
        if (replicas.get(0).sharesMemory()) {
            List<Replica> others = replicas.subList(1, replicas.size());
            others.forEach(other -> other.followMemory(replicas.get(0)));
        }
        if (!stepped) {
            replicas.forEach(Replica::takeWritten);
            return;
        }
        for (int i : isOfOneMemory() ? List.<Integer>of() : replicas.get(0).written()) {
            NDArray written = replicas.get(0).parameters().get(i).array();
            for (Replica other : replicas.subList(1, replicas.size())) {
                NDArray array = other.parameters().get(i).array();
                NoGradient.run(() -> Torch.copy(array, written));
            }
        }
    }

    /** Returns whether all ranks of this JVM share one set of parameters. True for one rank. */
    private boolean isOfOneMemory() {
        return replicas.size() == 1 || replicas.get(0).sharesMemory();
    }

    /**
     * Copies the first rank's optimizer state to all other ranks. An earlier trainer with the same
     * optimizer may have had fewer ranks, or may have failed in the middle of a step.
     */
    private void alignOptimizer() {
        if (isOfOneMemory()) {
            return;
        }
        OptimizerState state;
        try {
            state = new OptimizerState(optimizer);
        } catch (IllegalStateException e) {
            return; // Not one of DJL's optimizers: where it keeps its state is unknown.
        }
        Replica first = replicas.get(0);
        for (Replica replica : replicas.subList(1, replicas.size())) {
            for (int i = 0; i < first.parameters().size(); i++) {
                Replica.Own from = first.parameters().get(i);
                Map<String, NDArray> copies = new HashMap<>();
                state.arrays(from.id(), first.device())
                        .forEach((slot, array) -> copies.put(slot, replica.copy(array)));
                copies.values().forEach(NDArray::detach); // The optimizer owns its state.
                String id = replica.parameters().get(i).id();
                state.set(id, replica.device(), state.count(from.id()), copies);
            }
        }
    }

    private void eachRank(Consumer<Replica> body) {
        run(replicas.size(), body);
    }

    /** Runs code on each rank that has gradients after they are reduced. */
    private void eachReduced(Consumer<Replica> body) {
        run(isOfOneMemory() ? 1 : replicas.size(), body);
    }

    private void run(int ranks, Consumer<Replica> body) {
        try {
            workers.run(ranks, rank -> body.accept(replicas.get(rank)));
        } catch (CollectiveMismatchException e) {
            failure = e;
            throw new CollectiveException(
                    "the ranks called different operations: a rank may have closed its trainer"
                        + " while other ranks train on (after fewer batches?), or may train another"
                        + " model. For uneven numbers of batches see optJoin: "
                            + e.getMessage(),
                    e);
        } catch (RuntimeException | Error e) {
            failure = failure == null ? e : failure;
            throw e;
        }
    }

    /** Returns the device of batches and predictions: the first rank's. */
    @Override
    public Device[] getDevices() {
        // DJL calls this in the constructor of Trainer.
        return replicas == null || replicas.isEmpty()
                ? super.getDevices()
                : new Device[] {replicas.get(0).device()};
    }

    @Override
    public GradientCollector newGradientCollector() {
        requireUsable("newGradientCollector");
        closePasses();
        recording = GradientScope.open();
        return new Collector(recording);
    }

    /** Reduces gradients in {@code backward}, unless {@link #noSync} is open. */
    final class Collector implements GradientCollector {

        private final GradientScope scope;

        Collector(GradientScope scope) {
            this.scope = scope;
        }

        @Override
        public void backward(NDArray target) {
            if (finite != null) {
                throw new IllegalStateException(
                        "backward: clipGradNorm or clipGradValue has divided the gradients by the"
                                + " scale of the GradScaler, so no more can be added; call step"
                                + " or zeroGradients first");
            }
            tell(UnevenBatches.Call.BACKWARD);
            backward(() -> scope.backward(target, scaler == null ? 1 : scaler.scale()));
        }

        GradientScope scope() {
            return scope;
        }

        void backward(Runnable pass) {
            beginBackward();
            pass.run();
            finishBackward();
        }

        @Override
        public void zeroGradients() {
            dropGradients();
        }

        @Override
        public void close() {
            scope.close();
        }
    }

    private void beginBackward() {
        if (loaded) {
            sendChangedGradients();
            replicas.forEach(Replica::beginBackward);
        }
        reduced = false;
    }

    /** Reduces the gradients over all ranks, unless {@link #noSync} is open. */
    private void finishBackward() {
        if (!loaded || reduced || !replicas.get(0).synchronizes()) {
            return;
        }
        if (replicas.get(0).sharesMemory()) {
            addGradients();
        } else if (replicas.get(0).group() != null) {
            eachRank(Replica::reduce);
            noteGradients();
        }
    }

    /**
     * Joins a collector that another trainer or the caller has opened. The backward pass reduces
     * this trainer's gradients once all its passes within the collector have run backward.
     */
    private void followCollector(GradientScope other, NDManager manager) {
        if (scaler != null) {
            throw new IllegalStateException(
                    "forward: the open collector is not this trainer's, so it does not multiply the"
                            + " loss by the scale of this trainer's GradScaler; open"
                            + " trainer.newGradientCollector()");
        }
        if (replicas.get(0).group() == null) {
            return;
        }
        if (isUneven() && (isFullySharded() || meets(getModel().getBlock()))) {
            throw new IllegalStateException(
                    "forward: the open collector is not this trainer's, so ranks in join would not"
                            + " be told of its backward pass, in which this model's ranks meet"
                            + " (FULL_SHARD, synchronised batch normalisation); open"
                            + " trainer.newGradientCollector()");
        }
        if (other != followed) {
            followed = other;
            followedPasses = 0;
        }
        if (followedPasses++ == 0) {
            beginBackward();
            replicas.forEach(Replica::reduceLate);
        }
        other.record( // before the pass, so it goes back after it
                "the end of a trainer's pass",
                List.of(),
                List.of(),
                List.of(manager.zeros(new Shape())),
                (inputs, kept, gradients) -> {
                    if (other != followed) {
                        throw new IllegalStateException(
                                "backward: between forward and backward pass, the trainer's step,"
                                        + " newGradientCollector, zeroGradients or a clipping has"
                                        + " discarded this pass; call backward before");
                    }
                    if (--followedPasses == 0) {
                        tell(UnevenBatches.Call.BACKWARD);
                        finishBackward();
                    }
                    return List.of();
                });
    }

    /**
     * Reduces a rank's gradients at the end of its backward pass, if no other pass adds to them.
     * Otherwise the collector reduces them later, which takes another rendezvous of the ranks. If
     * the caller's graph then adds to the first rank's gradients, as a penalty does, {@link
     * #sendChangedGradients} copies the sums to the other ranks.
     */
    private void endBackward(int rank) {
        Replica replica = replicas.get(rank);
        if (passes.size() == 1
                && replica.synchronizes()
                && !replica.isLate()
                && !replica.sharesMemory()) {
            replica.reduce();
            if (rank == 0) {
                noteGradients();
                reduced = true;
            }
        }
    }

    /** Adds the gradients of ranks that share the first rank's parameters to its gradients. */
    private void addGradients() {
        List<Replica> others = replicas.subList(1, replicas.size());
        NoGradient.run(() -> others.forEach(replicas.get(0)::takeGradients));
        reduced = true;
    }

    private void noteGradients() {
        if (!isOfOneMemory()) {
            replicas.get(0).noteGradients();
        }
    }

    /** Copies the first rank's gradients that the program has changed to the other ranks. */
    private void sendChangedGradients() {
        replicas.subList(1, replicas.size()).forEach(replicas.get(0)::sendChanged);
    }

    @Override
    public NDList forward(NDList input) {
        return forward(input, null);
    }

    @Override
    public NDList forward(NDList data, NDList labels) {
        requireUsable("forward");
        tell(UnevenBatches.Call.FORWARD);
        return pass(data, labels);
    }

    NDList pass(NDList data, NDList labels) {
        if (isUneven()) {
            unevenBatches.keepFirst(data, labels);
        }
        long begin = System.nanoTime();
        follow();
        replicas.forEach(Replica::followFreezing);
        Block block = getModel().getBlock();
        GradientScope scope = GradientScope.current().orElse(null);
        boolean scoped = replicas.size() > 1 || isFullySharded() || scaler != null;
        if (scope == null && scoped && JniUtils.isGradMode()) {
            throw new IllegalStateException(
                    "forward: gradients are on, but no collector of this trainer is open on this"
                            + " thread, so "
                            + (scaler != null
                                    ? "the loss would not be multiplied by the GradScaler's scale"
                                    : "gradients of " + replicas.size() + " ranks would be lost")
                            + "; open trainer.newGradientCollector(), not"
                            + " manager.getEngine().newGradientCollector(), or call"
                            + " trainer.evaluate for predictions without gradients");
        }
        if (scope != null && scope != recording) {
            followCollector(scope, data.head().getManager());
        }
        try {
            return forward(
                    data,
                    labels,
                    true,
                    scope,
                    (rank, part, partLabels) ->
                            StagedForward.run(block, replicas.get(rank), part, partLabels));
        } finally {
            addMetric("forward", begin);
        }
    }

    @Override
    public NDList evaluate(NDList input) {
        requireUsable("evaluate");
        if (isFullySharded()) {
            join(); // All processes gather: those with more batches train on first.
        }
        follow();
        Block block = getModel().getBlock();
        return forward(
                input,
                null,
                false,
                null,
                (rank, part, labels) ->
                        isFullySharded()
                                ? replicas.get(rank).shards().forward(part, null, false, null)
                                : StagedForward.evaluate(block, replicas.get(rank).store(), part));
    }

    /** Returns whether ranks run collectives in a block's forward pass. */
    private static boolean meets(Block block) {
        return block instanceof SyncBatchNorm
                || block instanceof ActivationCheckpoint // in its first pass
                || block.getChildren().values().stream().anyMatch(DataParallelTrainer::meets);
    }

    private NDList forward(
            NDList data,
            NDList labels,
            boolean training,
            GradientScope scope,
            SplitForward.Body body) {
        if (replicas.size() == 1) {
            NDList predictions = body.forward(0, data, labels);
            if (training) {
                sendBuffers();
            }
            return predictions;
        }
        PassKind kind = new PassKind(training, data.size(), labels == null ? 0 : labels.size());
        Layout known = layouts.get(kind);
        Layout arrays = known != null && hasRows(data) ? known : newLayout(kind, data, labels);
        SplitCheck check = arrays == known ? null : check(kind, data, labels);
        List<Device> devices = replicas.stream().map(Replica::device).toList();
        boolean done = false;
        SplitForward.Result result = null;
        try {
            result =
                    SplitForward.run(
                            workers,
                            !isFullySharded() && !(training && meets(getModel().getBlock())),
                            devices,
                            data,
                            labels,
                            arrays,
                            check == null ? null : check.shapes(),
                            scope,
                            training || isFullySharded(), // All ranks gather.
                            body,
                            (rank, idle) -> replicas.get(rank).setIdle(idle),
                            passes::add,
                            this::endBackward);
            NDList predictions = result.predictions();
            if (training) {
                sendBuffers();
            }
            if (check != null) {
                check.compare(predictions, devices.size(), () -> evaluate(data).close());
                if (isFullySharded()) {
                    eachRank(replica -> replica.shards().releaseAll());
                }
            }
            if (arrays != known && data.head().getShape().get(0) > 1) {
                layouts.put(kind, result.layout()); // A single row does not tell it.
            }
            done = true;
            return predictions;
        } catch (RuntimeException e) {
            if (check != null && result == null) {
                e.addSuppressed(
                        new IllegalArgumentException(
                                String.format(
                                        "forward: the block computes the whole batch, but fails on"
                                                + " a rank's part of it; the first dimension of the"
                                                + " data, of shape %s, must be the batch",
                                        data.head().getShape())));
            }
            throw e;
        } finally {
            if (!done && scope != null) {
                replicas.forEach(
                        Replica::reduceLate); // Some ranks have begun the pass, others not.
            }
        }
    }

    /** Passes whose batches have one layout: of a mode, with these numbers of arrays. */
    private record PassKind(boolean training, int data, int labels) {}

    private static boolean hasRows(NDList data) {
        Shape first = data.head().getShape();
        return first.dimension() > 0 && first.get(0) > 0;
    }

    /** Returns the layout of the first batch of its kind; data are as those of other kinds. */
    private Layout newLayout(PassKind kind, NDList data, NDList labels) {
        return layouts.entrySet().stream()
                .filter(other -> other.getKey().data() == kind.data() && hasRows(data))
                .findFirst()
                .map(other -> Layout.of(data, labels, other.getValue()))
                .orElseGet(() -> Layout.of(data, labels, null));
    }

    /** Returns a check of the first batch of its kind; null for none. */
    private SplitCheck check(PassKind kind, NDList data, NDList labels) {
        // One rank computes an evaluation of one row.
        if (!settings.checkForward() || !kind.training() && data.head().getShape().get(0) == 1) {
            return null;
        }
        Block block = getModel().getBlock();
        if (isFullySharded()) {
            eachRank(replica -> replica.shards().acquireAll());
        }
        Replica first = replicas.get(0);
        NDManager manager = data.head().getManager();
        boolean half = settings.mixedPrecision() != MixedPrecisionPolicy.NONE;
        return kind.training()
                ? SplitCheck.ofTraining(
                        block,
                        manager,
                        half,
                        first.hasBuffers(),
                        () -> first.whole(block, data, labels, true))
                : SplitCheck.ofEvaluation(half, () -> first.whole(block, data, null, false));
    }

    /**
     * Makes buffers, such as the statistics of batch normalisation that is not synchronised, those
     * of the first rank that has rows. DDP does so before a pass; after it, they are equal in
     * evaluation and in checkpoints, too.
     */
    private void sendBuffers() {
        if (replicas.get(0).hasBuffers()) {
            int source = isUneven() ? unevenBatches.firstBusy() : 0;
            eachRank(replica -> replica.receiveBuffers(source));
        }
    }

    private void closePasses() {
        passes.forEach(SplitForward::close);
        passes.clear();
        followed = null;
        replicas.forEach(Replica::forgetPasses);
    }

    /**
     * Reduces the gradients of all ranks, and scales them so that their norm is at most a limit, as
     * PyTorch's {@code clip_grad_norm_}. Call it between backward pass and {@link #step}; all
     * processes call it.
     *
     * @param maxNorm the greatest norm, positive
     * @return the 2-norm of all reduced gradients together before they were scaled, the same on all
     *     ranks; parameters that are {@linkplain DividedBlock divided} among ranks count as a
     *     whole. If it is NaN, all gradients are NaN after the call. If it is infinite, finite
     *     gradients are 0 and infinite ones NaN
     * @throws IllegalArgumentException if {@code maxNorm} is not positive
     * @throws IllegalStateException if the trainer is closed or broken, or with {@link
     *     DataParallelConfig#optJoin}
     */
    public double clipGradNorm(double maxNorm) {
        requirePositive("clipGradNorm: maxNorm", maxNorm);
        prepareClipping("clipGradNorm");
        unscale();
        double norm = ofEachRank(replica -> replica.clipNorm(getModel().getBlock(), maxNorm));
        noteGradients();
        return norm;
    }

    /** Returns the value of the first rank. */
    private double ofEachRank(ToDoubleFunction<Replica> body) {
        double[] values = new double[replicas.size()];
        eachReduced(replica -> values[replica.index()] = body.applyAsDouble(replica));
        return values[0];
    }

    /**
     * Divides the reduced gradients by the scale, once before a step.
     *
     * @return whether all gradients are finite, the same on all ranks
     */
    private boolean unscale() {
        if (scaler != null && finite == null) {
            eachReduced(replica -> replica.scale(1 / scaler.scale()));
            finite = Double.isFinite(ofEachRank(each -> each.norm(getModel().getBlock())));
            noteGradients();
        }
        return scaler == null || finite;
    }

    /**
     * Reduces the gradients of all ranks, and limits each element to [-clipValue, clipValue], as
     * PyTorch's {@code clip_grad_value_}. Call it between backward pass and {@link #step}; all
     * processes call it.
     *
     * @param clipValue the greatest absolute value, positive
     * @throws IllegalArgumentException if {@code clipValue} is not positive
     * @throws IllegalStateException as {@link #clipGradNorm}
     */
    public void clipGradValue(double clipValue) {
        requirePositive("clipGradValue: clipValue", clipValue);
        prepareClipping("clipGradValue");
        unscale();
        eachReduced(replica -> replica.clipValue(clipValue));
        noteGradients();
    }

    private static void requirePositive(String name, double value) {
        if (!(value > 0)) {
            throw new IllegalArgumentException(name + " must be positive, not " + value);
        }
    }

    private void prepareClipping(String call) {
        requireUsable(call);
        refuseJoin(call);
        finishGradients();
    }

    /** Reduces the gradients that backward passes have not reduced yet. */
    private void finishGradients() {
        closePasses();
        follow();
        if (replicas.get(0).sharesMemory() && !reduced) {
            addGradients();
        }
        sendChangedGradients();
    }

    private void refuseJoin(String call) {
        if (isUneven()) {
            throw new IllegalStateException(
                    call
                            + " is not possible with optJoin: ranks that have no batch left would"
                            + " not take part; clip with the optimizer (optClipGrad), or leave out"
                            + " optJoin");
        }
    }

    /** Ends {@link #noSync} when it is closed. */
    public interface NoSync extends AutoCloseable {

        @Override
        void close();
    }

    /**
     * Has backward passes add to each rank's gradients without reducing them, as DDP's {@code
     * no_sync}, to accumulate gradients of several batches with the communication of one:
     *
     * <pre>{@code
     * try (DataParallelTrainer.NoSync accumulating = trainer.noSync()) {
     *     for (NDList batch : firstBatches) {
     *         backward(trainer, batch); // each with a collector of its own
     *     }
     * }
     * backward(trainer, lastBatch); // reduces the gradients of all batches
     * trainer.step();
     * }</pre>
     *
     * <p>All ranks open and close it around the same passes. {@link #step}, {@link #clipGradNorm}
     * and {@link #clipGradValue} reduce what is left, also while it is open. Losses add up: divide
     * them by the number of batches for a mean. Until they are reduced, a gradient that the program
     * reads is that of the first rank's rows.
     *
     * @return an object to be closed before the last batch; passes then reduce as before the call
     * @throws IllegalStateException if the trainer is closed or broken, or with {@link
     *     DataParallelConfig#optJoin}
     */
    public NoSync noSync() {
        requireUsable("noSync");
        refuseJoin("noSync");
        boolean before = replicas.get(0).synchronizes();
        replicas.forEach(replica -> replica.setSynchronizes(false));
        return () -> replicas.forEach(replica -> replica.setSynchronizes(before));
    }

    /**
     * Reduces the gradients and updates the parameters. With a {@link GradScaler}, skips the update
     * on all ranks if a gradient of any rank is infinite or NaN.
     */
    @Override
    public void step() {
        requireUsable("step");
        tell(UnevenBatches.Call.STEP);
        update();
    }

    /**
     * Reduces the gradients and updates the parameters, without announcing it to processes in join.
     */
    void update() {
        long begin = System.nanoTime();
        finishGradients();
        boolean skipped = !unscale();
        if (scaler != null) {
            finite = null;
            scaler.update(skipped);
        }
        if (skipped) {
            dropGradients();
            addMetric("step", begin);
            return;
        }
        boolean check = !stepped;
        AtomicBoolean different = new AtomicBoolean();
        CountDownLatch updated = new CountDownLatch(1);
        eachReduced(
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
        if (!isOfOneMemory()) {
            replicas.get(0).written(); // by the step
        }
        addMetric("step", begin);
    }

    /**
     * Takes part in the steps of other processes that have more batches, until all processes have
     * called join. Call it after this process's last batch; at the end of an epoch of {@code
     * EasyTrain} the trainer calls it, and so does {@link #evaluate} with {@link
     * ShardingStrategy#FULL_SHARD}. As with PyTorch's {@code Join}, this process adds nothing to
     * gradients and to synchronised batch normalisation, and averages still divide by the number of
     * all processes. Returns at once if {@link DataParallelConfig#optJoin} is off, or if there is
     * one process.
     *
     * @throws IllegalStateException if other processes train, and this one had no batch yet
     */
    public void join() {
        requireUsable("join");
        if (isUneven()) {
            unevenBatches.join();
        }
    }

    private boolean isUneven() {
        return settings.join() && group() != null;
    }

    /** Announces a call to processes in {@link #join}. */
    private void tell(UnevenBatches.Call call) {
        if (isUneven()) {
            unevenBatches.tell(call);
        }
    }

    /**
     * Makes processes in {@link #join} call {@link JoinListener#onJoinedBatch} of this listener, so
     * that they take part in its collectives. Does nothing without {@link
     * DataParallelConfig#optJoin}.
     *
     * <ul>
     *   <li>All processes that train call it, in {@code onTrainingBatch} of the same listener.
     *   <li>All processes have the same JoinListeners, in the same order.
     * </ul>
     *
     * @param listener the listener that calls
     * @throws IllegalArgumentException if the trainer's configuration does not have the listener
     * @throws IllegalStateException if the trainer is closed or broken
     */
    public void callInJoin(JoinListener listener) {
        requireUsable("callInJoin");
        if (isUneven()) {
            unevenBatches.tell(listener);
        }
    }

    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        // With the interrupt flag set, waiting for the ranks would fail immediately.
        boolean interrupted = Thread.interrupted();
        try {
            passes.forEach(SplitForward::close);
            if (loaded && failure == null) {
                replicas.forEach(Replica::forgetPasses); // Throws if a gather has failed.
                if (stepped || replicas.get(0).sharesMemory()) {
                    follow();
                }
                if (replicas.get(0).group() != null) {
                    eachRank(replica -> replica.verify("after training", true));
                }
                replicas.get(0).writeBack();
                if (isFullySharded()) {
                    restore();
                }
                replicas.forEach(replica -> replica.forgetState(optimizer));
            }
        } finally {
            ownGroups.forEach(ProcessGroup::destroy);
            replicas.forEach(Replica::close);
            workers.close();
            ProcessExit.endUse();
            super.close();
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}

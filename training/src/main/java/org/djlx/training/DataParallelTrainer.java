// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;
import ai.djl.training.optimizer.Optimizer;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.engine.DividedBlock;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.host.ProcessExit;
import org.djlx.training.data.JoinListener;
import org.djlx.training.internal.BlockReplacement;
import org.djlx.training.internal.DataTypes;
import org.djlx.training.internal.Ranks;
import org.djlx.training.internal.Replica;
import org.djlx.training.precision.Autocast;
import org.djlx.training.precision.GradScaler;
import org.djlx.training.precision.MixedPrecisionPolicy;
import org.djlx.training.strategy.ParameterShard;
import org.djlx.training.strategy.ParameterStrategy;
import org.djlx.training.strategy.ReductionTime;
import org.djlx.training.strategy.ShardingStrategy;

/**
 * Data-parallel trainer of the engine {@code PyTorch-P2P}. Either several ranks in this JVM split
 * each batch, or this JVM is one rank of several processes with a batch each. Rules for programs:
 * docs/training.md.
 */
public final class DataParallelTrainer extends Trainer {

    private final DataParallelConfig settings;
    private final Ranks ranks; // null while Trainer's constructor runs
    private final BackwardPasses backward;
    private final BatchPasses batches;
    private final UnevenBatches uneven;
    private final ItemCount items;
    private final OptimizerStep step;
    private ParameterStrategy strategy; // null until the block is initialised
    private boolean closed;

    /** Creates a trainer and the process group of its ranks; the caller closes the trainer. */
    public static DataParallelTrainer create(Model model, TrainingConfig config) {
        DataParallelConfig settings =
                config instanceof DataParallelConfig own
                        ? own
                        : new DataParallelConfig(config.getLossFunction());
        settings.check();
        DataParallelTrainer trainer = new DataParallelTrainer(model, config, settings);
        try {
            trainer.open(config.getDevices());
            TrainerSetup.log(model, settings, trainer.ranks);
            return trainer;
        } catch (Throwable e) {
            trainer.close();
            throw e;
        }
    }

    private DataParallelTrainer(Model model, TrainingConfig config, DataParallelConfig settings) {
        super(model, TrainerSetup.ofRank(model, config, settings));
        this.settings = settings;
        ranks = TrainerSetup.ranks(settings, config.getDevices());
        uneven = new UnevenBatches(this, settings.join());
        items = ItemCount.of(ranks, settings);
        step = new OptimizerStep(this, config.getOptimizer(), settings.gradScaler(), items);
        backward = new BackwardPasses(this, ranks, uneven, step);
        batches = new BatchPasses(ranks, backward, uneven, settings);
        ProcessExit.beginUse();
    }

    private void open(Device[] devices) {
        if (settings.mixedPrecision() != MixedPrecisionPolicy.NONE) {
            replaceBlock(Autocast.convert(block(), settings.mixedPrecision()));
        }
        ranks.open(getManager(), block(), optimizer(), devices);
        if (ranks.worldSize() > 1 && settings.syncBatchNorm()) {
            replaceBlock(ranks.synchronizeStatistics(block()));
        }
    }

    private Block block() {
        return getModel().getBlock();
    }

    private void replaceBlock(Block block) {
        if (block != block()) {
            getModel().setBlock(block);
        }
    }

    /** {@return this process's rank in the data-parallel group; 0 if there is only one process} */
    public int process() {
        return group() == null ? 0 : group().rank();
    }

    /**
     * {@return this rank's handle on the group of the processes; null if there is only one process}
     */
    public ProcessGroup group() {
        return ranks.processes();
    }

    /** {@return the number of ranks in this JVM} */
    public int ranks() {
        return replicas().size();
    }

    /** Returns the replicas of this JVM's ranks, in rank order. */
    List<Replica> replicas() {
        return ranks.replicas();
    }

    /** {@return the optimizer, which all ranks of this JVM share} */
    public Optimizer optimizer() {
        return step.optimizer();
    }

    /** {@return the gradient scaler; null if the configuration has none} */
    public GradScaler gradScaler() {
        return step.scaler();
    }

    /** {@return whether the ranks divide parameters or the optimizer's state among each other} */
    public boolean isSharded() {
        return strategy.sharding() != ShardingStrategy.NO_SHARD;
    }

    /** {@return the parts of the parameters that the ranks of this JVM hold, in rank order} */
    public List<ParameterShard> shards() {
        return replicas().stream().flatMap(each -> strategy.shards(each).stream()).toList();
    }

    /** {@return the type and shape of each whole parameter, by its name} */
    public Map<String, TensorSpec> specs() {
        return strategy.specs();
    }

    ParameterStrategy strategy() {
        return strategy;
    }

    void ifLoaded(Consumer<ParameterStrategy> body) {
        if (strategy != null) {
            body.accept(strategy);
        }
    }

    public void zeroGradients() {
        backward.discard();
        uneven.announce(UnevenBatches.Call.ZERO_GRADIENTS);
        dropGradients();
    }

    /** Drops this process's gradients, without an announcement and without passes. */
    void dropGradients() {
        step.reset();
        ifLoaded(ParameterStrategy::zeroGradients);
    }

    OptimizerStep optimizerStep() {
        return step;
    }

    /**
     * Creates each rank's parameters, unless they exist. Throws an {@link IllegalStateException}
     * that names {@code call} if the model is not initialised, or the trainer is closed or broken.
     */
    public void prepare(String call) {
        requireUsable(call);
        if (!block().isInitialized()) {
            throw new IllegalStateException(
                    call + ": the model is not initialised; call trainer.initialize(shape) first");
        }
        load();
    }

    private void requireUsable(String call) {
        if (closed) {
            throw new IllegalStateException(call + ": the trainer is closed");
        }
        ranks.requireWorking(call);
    }

    @Override
    public void initialize(Shape... shapes) {
        if (!block().isInitialized()) {
            DataTypes.requireCreatable("initialize", getModel().getDataType());
        }
        block().initialize(getModel().getNDManager(), getModel().getDataType(), shapes);
        load();
    }

    /** Creates each rank's parameters and checks that they are equal on all ranks. */
    private void load() {
        if (strategy != null) {
            return;
        }
        BlockReplacement.copyBack(block());
        TrainerSetup.requireMasters(settings, block());
        TrainerSetup.requireSameOptions(settings, group(), step.scaler(), uneven);
        strategy =
                ParameterStrategy.load(
                        ranks, block(), optimizer(), settings.strategyOptions(), backward::time);
        if (ranks.group() != null) {
            ranks.each(replica -> replica.verify("before training", false));
        }
    }

    /** The arrays of {@link #summonFullParameters}; {@link #close} frees them. */
    public interface FullParameters extends AutoCloseable {

        @Override
        void close();
    }

    /**
     * Gathers the parameters of a trainer with {@link ShardingStrategy#FULL_SHARD} into the block's
     * own arrays, for example to save the model. All processes call it. The arrays are copies:
     * changes to them are lost. A no-op with other sharding strategies.
     */
    public FullParameters summonFullParameters() {
        prepare("summonFullParameters");
        return strategy.summon(getModel().getNDManager())::run;
    }

    /** Returns the strategy, after it has copied the program's writes to all ranks. */
    private ParameterStrategy synced() {
        load();
        strategy.syncParameters(step.hasUpdated());
        return strategy;
    }

    /** Returns the device of batches and predictions: the first rank's. */
    @Override
    public Device[] getDevices() {
        // DJL calls this in the constructor of Trainer.
        return ranks == null || replicas().isEmpty()
                ? super.getDevices()
                : new Device[] {ranks.first().device()};
    }

    @Override
    public GradientCollector newGradientCollector() {
        requireUsable("newGradientCollector");
        items.discard();
        return backward.newCollector();
    }

    @Override
    public NDList forward(NDList input) {
        return forward(input, null);
    }

    @Override
    public NDList forward(NDList data, NDList labels) {
        requireUsable("forward");
        if (GradientScope.current().isPresent()) {
            items.add(data, labels);
        }
        uneven.announce(UnevenBatches.Call.FORWARD);
        return pass(data, labels);
    }

    /** As {@link #forward}, without announcing it to processes in join. */
    NDList pass(NDList data, NDList labels) {
        uneven.keepFirst(data, labels);
        long begin = System.nanoTime();
        synced();
        replicas().forEach(Replica::updateRequiresGradient);
        GradientScope scope = backward.scopeOfPass(block(), data.head().getManager());
        try {
            return batches.train(strategy, block(), data, labels, scope);
        } finally {
            addMetric("forward", begin);
        }
    }

    @Override
    public NDList evaluate(NDList input) {
        requireUsable("evaluate");
        load();
        if (strategy.runsCollectives()) {
            join(); // All processes evaluate together, after the last batch of each.
        }
        return batches.evaluate(synced(), block(), input);
    }

    /**
     * Reduces the gradients, and scales them to a norm of at most {@code maxNorm}, a positive
     * number, as PyTorch's {@code clip_grad_norm_}. Call it between backward pass and {@link
     * #step}; all processes call it.
     *
     * @return the 2-norm of all reduced gradients together before they were scaled, the same on all
     *     ranks; parameters that are {@linkplain DividedBlock divided} among ranks count as a
     *     whole. If it is NaN, all gradients are NaN after the call. If it is infinite, finite
     *     gradients are 0 and infinite ones NaN
     * @throws IllegalStateException if the trainer is closed or broken
     */
    public double clipGradNorm(double maxNorm) {
        requireUsable("clipGradNorm");
        OptimizerStep.requirePositive("clipGradNorm: maxNorm", maxNorm);
        return step.clipNorm(uneven.announce(UnevenBatches.Call.CLIP_NORM, maxNorm));
    }

    /**
     * Reduces the gradients, and limits each element to [-clipValue, clipValue], as PyTorch's
     * {@code clip_grad_value_}. Call it between backward pass and {@link #step}; all processes call
     * it.
     *
     * @throws IllegalStateException as {@link #clipGradNorm}
     */
    public void clipGradValue(double clipValue) {
        requireUsable("clipGradValue");
        OptimizerStep.requirePositive("clipGradValue: clipValue", clipValue);
        step.clipValue(uneven.announce(UnevenBatches.Call.CLIP_VALUE, clipValue));
    }

    /** Reduces the gradients of all backward passes; returns the strategy that has them. */
    ParameterStrategy reduceGradients() {
        backward.discard();
        synced();
        backward.reduce();
        return strategy;
    }

    /** Backward passes without reduction, see {@link #noSync}; {@link #close} ends them. */
    public interface NoSync extends AutoCloseable {

        @Override
        void close();
    }

    /**
     * Accumulates gradients of several batches on each rank, and reduces them once, as DDP's {@code
     * no_sync}:
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
     * and {@link #clipGradValue} reduce the accumulated gradients, also while it is open. Gradients
     * of the batches are summed: divide each loss by the number of batches for a mean. Before the
     * reduction, the program reads gradients of the first rank's rows only.
     *
     * @throws IllegalStateException if the trainer is closed or broken
     */
    public NoSync noSync() {
        requireUsable("noSync");
        boolean before = backward.setSynchronizes(false);
        return () -> backward.setSynchronizes(before);
    }

    /**
     * Reduces the gradients and updates the parameters. With a {@link GradScaler}, skips the update
     * on all ranks if a gradient of any rank is infinite or NaN.
     */
    @Override
    public void step() {
        requireUsable("step");
        uneven.announce(UnevenBatches.Call.STEP);
        update();
    }

    /** As {@link #step}, without announcing it to processes in join. */
    void update() {
        long begin = System.nanoTime();
        step.run();
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
     * @throws IllegalStateException if other processes train, and this one had no batch yet, or
     *     within {@link #noSync}
     */
    public void join() {
        requireUsable("join");
        if (uneven.areAllowed() && backward.time() == ReductionTime.LATER) {
            throw new IllegalStateException(
                    "join: noSync is open, but other processes may reduce gradients; close it"
                            + " first");
        }
        uneven.join();
    }

    /**
     * Makes processes in {@link #join} call {@link JoinListener#onJoinedBatch} of this listener.
     * All processes that train call it, in {@code onTrainingBatch} of the same listener, and have
     * the same JoinListeners in the same order. Does nothing without {@link
     * DataParallelConfig#optJoin}.
     *
     * @throws IllegalArgumentException if the trainer's configuration does not have the listener
     * @throws IllegalStateException if the trainer is closed or broken
     */
    public void callInJoin(JoinListener listener) {
        requireUsable("callInJoin");
        uneven.announce(listener);
    }

    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        // With the interrupt flag set, a wait for the ranks would fail immediately.
        boolean interrupted = Thread.interrupted();
        try {
            backward.closeAll();
            if (strategy != null && !ranks.hasFailed()) {
                backward.discard(); // Throws if a gather has failed.
                synced();
                if (ranks.group() != null) {
                    ranks.each(replica -> replica.verify("after training", true));
                }
                strategy.restore(getModel().getNDManager());
            }
        } finally {
            ranks.close();
            ProcessExit.endUse();
            super.close();
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}

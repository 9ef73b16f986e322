// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;
import ai.djl.training.optimizer.Optimizer;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import org.djlx.collectives.Agreement;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.engine.DividedBlock;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.host.ProcessExit;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Data-parallel trainer of the engine {@code PyTorch-P2P}. Either several ranks in this JVM split
 * each batch, or this JVM is one rank of several processes with a batch each. Rules for programs:
 * docs/training.md.
 */
public final class DataParallelTrainer extends Trainer {

    private static final Logger LOG = LoggerFactory.getLogger(DataParallelTrainer.class);
    private static final double NORM_EPSILON = 1e-6; // as PyTorch's clip_grad_norm_

    private final DataParallelConfig settings;
    private final Optimizer optimizer;
    private final GradScaler scaler; // null for none
    private final Ranks ranks; // null while Trainer's constructor runs
    private final BackwardPasses backward;
    private final BatchPasses batches;
    private final UnevenBatches uneven;
    private ParameterStrategy strategy; // null until the block is initialised
    private Overflow overflow = Overflow.UNCHECKED;
    private boolean stepped;
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
            trainer.logSettings();
            return trainer;
        } catch (Throwable e) {
            trainer.close();
            throw e;
        }
    }

    private DataParallelTrainer(Model model, TrainingConfig config, DataParallelConfig settings) {
        super(model, TrainerSetup.ofRank(model, config, settings));
        this.settings = settings;
        optimizer = config.getOptimizer();
        scaler = settings.gradScaler();
        ranks = TrainerSetup.ranks(settings, config.getDevices());
        backward = new BackwardPasses(this, ranks);
        uneven = new UnevenBatches(this, settings.join());
        batches = new BatchPasses(ranks, backward, uneven, settings);
        ProcessExit.beginUse();
    }

    private void open(Device[] devices) {
        if (settings.mixedPrecision() != MixedPrecisionPolicy.NONE) {
            replaceBlock(Autocast.convert(block(), settings.mixedPrecision()));
        }
        ranks.open(this, devices);
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

    /** Logs ranks, devices, backend and gradient reduction; on the first rank only. */
    private void logSettings() {
        if (ranks.group() == null) {
            LOG.info("Training on 1 rank: device {}", ranks.first().device());
        } else if (TrainerSetup.isFirst(getModel(), settings)) {
            LOG.info(
                    "Training on {} ranks {}, gradient compression {}, buckets of {} bytes",
                    ranks.worldSize(),
                    ranks.description(),
                    settings.compression(),
                    settings.bucketBytes());
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

    /** {@return the replicas of this JVM's ranks, in rank order} */
    public List<Replica> replicas() {
        return ranks.replicas();
    }

    /** {@return the optimizer, which all ranks of this JVM share} */
    public Optimizer optimizer() {
        return optimizer;
    }

    /** {@return the gradient scaler; null if the configuration has none} */
    public GradScaler gradScaler() {
        return scaler;
    }

    /** {@return whether the ranks divide parameters or the optimizer's state among each other} */
    public boolean isSharded() {
        return strategy.isSharded();
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
        dropGradients();
    }

    void dropGradients() {
        overflow = Overflow.UNCHECKED;
        ifLoaded(ParameterStrategy::zeroGradients);
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
        requireSameOptions();
        strategy = ParameterStrategy.load(ranks, block(), optimizer, settings, backward::time);
        if (ranks.group() != null) {
            ranks.each(replica -> replica.verify("before training", false));
        }
    }

    private void requireSameOptions() {
        String options =
                settings.common()
                        + (", " + (scaler == null ? "no GradScaler" : scaler))
                        + (uneven.areAllowed() ? ", JoinListeners " + uneven.names() : "");
        try {
            List<String> all = Agreement.exchange(group(), "initialize", () -> options);
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
        return strategy.summon(getModel().getNDManager());
    }

    private void follow() {
        load();
        strategy.follow(stepped);
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
        return backward.newCollector();
    }

    /** Checks a backward pass of this trainer's collector, and announces it to ranks in join. */
    void beginBackward() {
        if (overflow != Overflow.UNCHECKED) {
            throw new IllegalStateException(
                    "backward: clipGradNorm or clipGradValue has divided the gradients by the scale"
                            + " of the GradScaler, so no more can be added; call step or"
                            + " zeroGradients first");
        }
        tell(UnevenBatches.Call.BACKWARD);
    }

    /** Returns the factor of the loss in a backward pass: the scale of the GradScaler, or 1. */
    double lossScale() {
        return scaler == null ? 1 : scaler.scale();
    }

    /**
     * Refuses a pass within a collector that is not this trainer's, if that collector would not
     * scale the loss, or not announce a backward pass with collectives to ranks in join.
     */
    void requireFollowing() {
        if (scaler != null) {
            throw new IllegalStateException(
                    "forward: the open collector is not this trainer's, so it does not multiply the"
                            + " loss by the scale of this trainer's GradScaler; open"
                            + " trainer.newGradientCollector()");
        }
        boolean collectives = strategy.meetsInEachPass() || BatchPasses.runsCollectives(block());
        if (uneven.areAllowed() && collectives) {
            throw new IllegalStateException(
                    "forward: the open collector is not this trainer's, so ranks in join would not"
                            + " be told of its backward pass, in which this model's ranks meet"
                            + " (FULL_SHARD, synchronised batch normalisation); open"
                            + " trainer.newGradientCollector()");
        }
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

    /** As {@link #forward}, without announcing it to processes in join. */
    NDList pass(NDList data, NDList labels) {
        uneven.keepFirst(data, labels);
        long begin = System.nanoTime();
        follow();
        replicas().forEach(Replica::followFreezing);
        GradientScope scope = GradientScope.current().orElse(null);
        boolean needsScope = replicas().size() > 1 || strategy.meetsInEachPass() || scaler != null;
        if (scope == null && needsScope && JniUtils.isGradMode()) {
            throw new IllegalStateException(
                    "forward: gradients are on, but no collector of this trainer is open on this"
                            + " thread, so "
                            + (scaler != null
                                    ? "the loss would not be multiplied by the GradScaler's scale"
                                    : "gradients of " + replicas().size() + " ranks would be lost")
                            + "; open trainer.newGradientCollector(), not"
                            + " manager.getEngine().newGradientCollector(), or call"
                            + " trainer.evaluate for predictions without gradients");
        }
        backward.follow(scope, data.head().getManager());
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
        if (strategy.meetsInEachPass()) {
            join(); // All processes evaluate together, after the last batch of each.
        }
        follow();
        return batches.evaluate(strategy, block(), input);
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
     * @throws IllegalStateException if the trainer is closed or broken, or with {@link
     *     DataParallelConfig#optJoin}
     */
    public double clipGradNorm(double maxNorm) {
        requirePositive("clipGradNorm: maxNorm", maxNorm);
        prepareClipping("clipGradNorm");
        double norm =
                ranks.valueOf(
                        strategy.updatingRanks(),
                        replica -> {
                            double own = strategy.norm(replica);
                            if (!(own <= maxNorm)) {
                                scale(replica, maxNorm / (own + NORM_EPSILON));
                            }
                            return own;
                        });
        strategy.noteGradients();
        return norm;
    }

    private void scale(Replica replica, double factor) {
        NoGradient.run(
                () ->
                        strategy.gradients(replica)
                                .forEach(gradient -> TorchInPlace.mul(gradient, factor)));
    }

    /** Divides the reduced gradients by the scale, once before a step. */
    private void unscale() {
        if (scaler != null && overflow == Overflow.UNCHECKED) {
            int count = strategy.updatingRanks();
            ranks.run(count, replica -> scale(replica, 1 / scaler.scale()));
            double norm = ranks.valueOf(count, strategy::norm);
            overflow = Double.isFinite(norm) ? Overflow.NONE : Overflow.FOUND;
            strategy.noteGradients();
        }
    }

    /**
     * Reduces the gradients, and limits each element to [-clipValue, clipValue], as PyTorch's
     * {@code clip_grad_value_}. Call it between backward pass and {@link #step}; all processes call
     * it.
     *
     * @throws IllegalStateException as {@link #clipGradNorm}
     */
    public void clipGradValue(double clipValue) {
        requirePositive("clipGradValue: clipValue", clipValue);
        prepareClipping("clipGradValue");
        eachReduced(
                replica ->
                        NoGradient.run(
                                () ->
                                        strategy.gradients(replica)
                                                .forEach(each -> clip(each, clipValue))));
        strategy.noteGradients();
    }

    private static void clip(NDArray gradient, double limit) {
        try (NDArray clipped = gradient.clip(-limit, limit)) {
            Torch.copy(gradient, clipped);
        }
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
        unscale();
    }

    private void finishGradients() {
        backward.discard();
        follow();
        backward.reduce();
        strategy.sendChangedGradients();
    }

    private void refuseJoin(String call) {
        if (uneven.areAllowed()) {
            throw new IllegalStateException(
                    call
                            + " is not possible with optJoin: ranks that have no batch left would"
                            + " not take part; clip with the optimizer (optClipGrad), or leave out"
                            + " optJoin");
        }
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
     * @throws IllegalStateException if the trainer is closed or broken, or with {@link
     *     DataParallelConfig#optJoin}
     */
    public NoSync noSync() {
        requireUsable("noSync");
        refuseJoin("noSync");
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
        tell(UnevenBatches.Call.STEP);
        update();
    }

    /** As {@link #step}, without announcing it to processes in join. */
    void update() {
        long begin = System.nanoTime();
        finishGradients();
        unscale();
        boolean skipped = overflow == Overflow.FOUND;
        if (scaler != null) {
            scaler.update(skipped);
        }
        overflow = Overflow.UNCHECKED;
        if (skipped) {
            dropGradients();
            addMetric("step", begin);
            return;
        }
        AtomicBoolean updated = new AtomicBoolean();
        CountDownLatch first = new CountDownLatch(1);
        eachReduced(
                replica -> {
                    if (update(replica, first)) {
                        updated.set(true);
                    }
                });
        if (!updated.get()) {
            throw new IllegalStateException(
                    "step: all gradients are zero; call collector.backward() on the loss, within"
                            + " trainer.newGradientCollector(), before trainer.step()");
        }
        stepped = true;
        strategy.endStep();
        addMetric("step", begin);
    }

    /**
     * Updates a rank's parameters. Returns false, without an update, before the first step if all
     * gradients are zero. The first rank of this JVM opens {@code first} after its first update,
     * and the other ranks wait for it: they share learning-rate trackers, and the first update of a
     * step may change a tracker, such as DJL's {@code MultiFactorTracker}.
     */
    private boolean update(Replica replica, CountDownLatch first) {
        ParameterStrategy.Update update =
                (id, array, gradient) -> {
                    if (replica.index() > 0) {
                        await(first);
                    }
                    replica.update(optimizer, id, array, gradient);
                    first.countDown();
                };
        try {
            if (!stepped && NoGradient.get(() -> strategy.isZero(replica))) {
                return false;
            }
            NoGradient.run(() -> strategy.update(replica, update));
        } finally {
            first.countDown(); // Also after a failure.
        }
        strategy.share(replica);
        return true;
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("step: interrupted between gradients and update", e);
        }
    }

    private void eachReduced(Consumer<Replica> body) {
        ranks.run(strategy.updatingRanks(), body);
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
        uneven.join();
    }

    void tell(UnevenBatches.Call call) {
        uneven.tell(call);
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
        uneven.tell(listener);
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
                follow();
                if (ranks.group() != null) {
                    ranks.each(replica -> replica.verify("after training", true));
                }
                ranks.first().writeBack();
                strategy.summon(getModel().getNDManager());
                strategy.forgetState(optimizer);
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

// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.training.loss.Loss;
import java.time.Duration;
import java.util.Arrays;
import java.util.Locale;
import java.util.Optional;
import java.util.function.Function;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.Backends;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.training.precision.GradScaler;
import org.djlx.training.precision.MixedPrecisionPolicy;
import org.djlx.training.strategy.GradientCompression;
import org.djlx.training.strategy.GradientHook;
import org.djlx.training.strategy.ParameterStrategy;
import org.djlx.training.strategy.PowerSgd;
import org.djlx.training.strategy.ShardingStrategy;

/**
 * Training configuration of the engine {@code PyTorch-P2P}. Options that are not set here come from
 * system properties {@code org.djlx.NAME}, and so do all options if the program passes another
 * {@code TrainingConfig}; docs/training.md has a table.
 */
public final class DataParallelConfig extends DefaultTrainingConfig {

    private static final String PREFIX = "org.djlx.";

    private Integer ranks = property("ranks", Integer::valueOf, null);
    private final GradientReduction usualReduction =
            property("gradientReduction", GradientReduction.class, GradientReduction.MEAN);
    private GradientReduction reduction; // null if it is not set here
    private GradientHook hook =
            property("gradientCompression", GradientCompression.class, GradientCompression.NONE);
    private long bucketBytes =
            property("bucketBytes", Long::valueOf, ParameterStrategy.Options.BUCKET_BYTES);
    private String backend = System.getProperty(PREFIX + "backend");
    private Duration timeout =
            Duration.ofSeconds(
                    positive(
                            "timeoutSeconds",
                            property(
                                    "timeoutSeconds",
                                    Long::valueOf,
                                    BackendOptions.DEFAULT_TIMEOUT.toSeconds())));
    private boolean syncBatchNorm = flag("syncBatchNorm", Flag.TRUE);
    private boolean checkForward = flag("checkForward", Flag.TRUE);
    private boolean join = flag("join", Flag.FALSE);
    private ShardingStrategy sharding =
            property("shardingStrategy", ShardingStrategy.class, ShardingStrategy.NO_SHARD);
    private MixedPrecisionPolicy precision =
            property("mixedPrecision", MixedPrecisionPolicy.class, MixedPrecisionPolicy.NONE);
    private GradScaler scaler; // null if it is not set here
    private Optional<LossWeight> weight = Optional.empty();
    private ProcessGroup group;

    /** Throws an {@link IllegalArgumentException} if a system property has an illegal value. */
    public DataParallelConfig(Loss loss) {
        super(loss);
        addTrainingListeners(new EngineCheck());
    }

    /** Refuses trainers of other engines, which would ignore the options. */
    private final class EngineCheck extends TrainingListenerAdapter {

        @Override
        public void onTrainingBegin(Trainer trainer) {
            boolean ignored =
                    ranks() != null && ranks() > 1
                            || group != null
                            || join
                            || weight.isPresent()
                            || sharding != ShardingStrategy.NO_SHARD
                            || precision != MixedPrecisionPolicy.NONE;
            if (ignored && !(trainer instanceof DataParallelTrainer)) {
                throw new IllegalStateException(
                        String.format(
                                "newTrainer: the model's engine is %s, which would train on one"
                                    + " rank and ignore ranks %s, sharding %s, mixed precision %s,"
                                    + " join %s, the loss weight and the process group; create it"
                                    + " by Model.newInstance(name, \"PyTorch-P2P\")",
                                trainer.getManager().getEngine().getEngineName(),
                                ranks,
                                sharding,
                                precision,
                                join));
            }
        }
    }

    private static boolean flag(String name, Flag otherwise) {
        return property(name, Flag.class, otherwise) == Flag.TRUE;
    }

    private enum Flag {
        TRUE,
        FALSE
    }

    private static <N> N property(String name, Function<String, N> parser, N otherwise) {
        String value = System.getProperty(PREFIX + name);
        try {
            return value == null ? otherwise : parser.apply(value.trim());
        } catch (NumberFormatException e) {
            throw new IllegalArgumentException(
                    String.format(
                            "the system property %s%s is not a number: %s", PREFIX, name, value),
                    e);
        }
    }

    private static long positive(String name, long value) {
        if (value < 1) {
            throw new IllegalArgumentException(
                    String.format(
                            "the system property %s%s must be 1 or more, not %d",
                            PREFIX, name, value));
        }
        return value;
    }

    private static <E extends Enum<E>> E property(String name, Class<E> type, E otherwise) {
        String value = System.getProperty(PREFIX + name, otherwise.name());
        try {
            return Enum.valueOf(type, value.trim().toUpperCase(Locale.ROOT));
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(
                    String.format(
                            "the system property %s%s must be one of %s, not %s",
                            PREFIX, name, Arrays.toString(type.getEnumConstants()), value),
                    e);
        }
    }

    /**
     * Sets the number of CPU ranks in this JVM, 1 or more. On GPUs there is one rank per device.
     */
    public DataParallelConfig optRanks(int ranks) {
        this.ranks = ranks;
        return this;
    }

    /**
     * Sets how gradients are reduced across processes, or across trainers that share a group;
     * default {@link GradientReduction#MEAN}, which {@code newTrainer} refuses for several ranks in
     * one JVM. The same in all of them.
     */
    public DataParallelConfig optGradientReduction(GradientReduction reduction) {
        this.reduction = Required.argument("optGradientReduction: reduction", reduction);
        return this;
    }

    /**
     * Weights losses, so that batches of different sizes, in accumulation and in processes, train
     * as one batch on one device; as {@code num_items_in_batch} of Hugging Face's trainer. The
     * gradient of a step is that of the mean over the items of all its batches. A loss must be the
     * mean over the items of its batch; with {@link GradientReduction#SUM}, their sum.
     *
     * <p>A batch without items counts nothing, but a mean over none is NaN: use sums there. Each
     * forward pass has a backward pass of its own. Until {@link DataParallelTrainer#clipGradNorm}
     * or the step divides them, gradients are those of the sum over all items. The same on all
     * ranks.
     */
    public DataParallelConfig optLossWeight(LossWeight weight) {
        this.weight = Optional.of(Required.argument("optLossWeight: weight", weight));
        return this;
    }

    /**
     * Sets how buckets of gradients are reduced: {@link GradientCompression#NONE}, the default,
     * {@link GradientCompression#BFLOAT16}, {@link PowerSgd} or a hook of your own. The same on all
     * ranks. Not with {@link ShardingStrategy#FULL_SHARD}.
     */
    public DataParallelConfig optGradientHook(GradientHook hook) {
        this.hook = Required.argument("optGradientHook: hook", hook);
        return this;
    }

    /**
     * Sets the bytes of a gradient bucket; default 25 MiB. A larger gradient gets its own bucket.
     * The same on all ranks. CPU ranks of one JVM share parameters and need no buckets, unless this
     * is less than the default and less than the model.
     */
    public DataParallelConfig optBucketBytes(long bytes) {
        bucketBytes = bytes;
        return this;
    }

    /**
     * Sets the backend of the trainer's own group; default {@code shm} on CPUs, {@code cuda_p2p} on
     * GPUs.
     */
    public DataParallelConfig optBackend(String backend) {
        this.backend = backend;
        return this;
    }

    /**
     * Sets how long an operation of the trainer's own group waits for other ranks; default 30
     * minutes.
     */
    public DataParallelConfig optTimeout(Duration timeout) {
        if (timeout == null || timeout.isNegative() || timeout.isZero()) {
            throw new IllegalArgumentException(
                    "optTimeout: the timeout must be positive, not " + timeout);
        }
        this.timeout = timeout;
        return this;
    }

    /**
     * Sets whether batch normalisation is computed over the rows of all ranks, as by PyTorch's
     * SyncBatchNorm; default true. {@code newTrainer} then replaces each {@link
     * ai.djl.nn.norm.BatchNorm} in the block's fields and children; with several ranks in one JVM
     * also each {@link ai.djl.nn.norm.GhostBatchNorm}. With false, running statistics are rank 0's
     * after each pass, as with DDP. The same on all ranks.
     */
    public DataParallelConfig optSyncBatchNorm(boolean synchronize) {
        syncBatchNorm = synchronize;
        return this;
    }

    /**
     * Sets whether the first forward pass of several ranks in one JVM is checked against one rank
     * with the whole batch; default true. The first device computes it two or three times.
     */
    public DataParallelConfig optCheckForward(boolean check) {
        checkForward = check;
        return this;
    }

    /**
     * Sets whether processes may train on different numbers of batches, as with PyTorch's {@code
     * Join}; default false. {@code EasyTrain} then joins at the end of each epoch; a training loop
     * of your own calls {@link DataParallelTrainer#join}. Costs a small all-reduce for each pass,
     * clipping, step and {@link org.djlx.training.data.JoinListener}. Checkpoints are saved by a
     * training listener, or after join. The same on all ranks.
     */
    public DataParallelConfig optJoin(boolean join) {
        this.join = join;
        return this;
    }

    /**
     * Sets what the ranks divide among each other; default {@link ShardingStrategy#NO_SHARD}. The
     * same on all ranks. The optimizer's state ends with the trainer. With {@link
     * ShardingStrategy#FULL_SHARD} the block's own arrays are closed while the trainer is open,
     * except within {@link DataParallelTrainer#summonFullParameters}.
     */
    public DataParallelConfig optShardingStrategy(ShardingStrategy strategy) {
        sharding = Required.argument("optShardingStrategy: strategy", strategy);
        return this;
    }

    /**
     * Sets the type in which DJL's {@link ai.djl.nn.core.Linear} and convolution layers compute,
     * but not their subclasses; default {@link MixedPrecisionPolicy#NONE}. The same on all ranks.
     */
    public DataParallelConfig optMixedPrecision(MixedPrecisionPolicy policy) {
        precision = Required.argument("optMixedPrecision: policy", policy);
        return this;
    }

    /**
     * Sets the scaler of gradients; the default has PyTorch's options with {@link
     * MixedPrecisionPolicy#FLOAT16}, and is none otherwise.
     */
    public DataParallelConfig optGradScaler(GradScaler scaler) {
        this.scaler = scaler;
        return this;
    }

    /**
     * Sets the process group of trainers that have one rank each, in processes or threads: this
     * rank's handle, on the trainer's device, owned by the caller. Unless set, the trainer creates
     * a group if {@code RANK} and {@code WORLD_SIZE} are in the environment.
     */
    public DataParallelConfig optProcessGroup(ProcessGroup group) {
        this.group = group;
        return this;
    }

    /** Returns the number of ranks in this JVM; null if it is not set. */
    Integer ranks() {
        if (ranks != null && ranks < 1) {
            throw new IllegalArgumentException(
                    String.format(
                            "optRanks (or the system property %sranks): %d is out of range: a"
                                    + " trainer has 1 rank or more",
                            PREFIX, ranks));
        }
        return ranks;
    }

    GradientReduction reduction() {
        return reduction == null ? usualReduction : reduction;
    }

    void check() {
        bucketBytes();
        if (backend != null) {
            Backends.get(backend);
        }
        if (hook != GradientCompression.NONE && sharding == ShardingStrategy.FULL_SHARD) {
            throw new IllegalArgumentException(
                    String.format(
                            "newTrainer: the gradient hook '%s' is not possible with FULL_SHARD,"
                                + " which reduce-scatters gradients; leave out optGradientHook (or"
                                + " the system property %sgradientCompression), or use"
                                + " SHARD_OPTIMIZER",
                            hook.name(), PREFIX));
        }
        if (hook instanceof PowerSgd && gradScaler() != null) {
            throw new IllegalArgumentException(
                    "newTrainer: PowerSgd keeps a part of each gradient for the next step, but a"
                            + " GradScaler changes the scale of gradients between steps; use"
                            + " MixedPrecisionPolicy.BFLOAT16, which needs no GradScaler");
        }
    }

    /** Refuses options that several ranks in one JVM do not support. */
    void checkRanksOfOneJvm(int ranks) {
        if (reduction == GradientReduction.MEAN) {
            throw new IllegalArgumentException(
                    String.format(
                            "newTrainer: optGradientReduction(MEAN) is for processes, which compute"
                                + " one loss each; the %d ranks of this JVM compute one loss over"
                                + " the whole batch. Leave the option out, or set it for processes"
                                + " only with -D%sgradientReduction=MEAN",
                            ranks, PREFIX));
        }
    }

    Optional<LossWeight> lossWeight() {
        return weight;
    }

    GradientHook hook() {
        return hook;
    }

    long bucketBytes() {
        if (bucketBytes < 1) {
            throw new IllegalArgumentException(
                    String.format(
                            "optBucketBytes (or the system property %sbucketBytes): %d is out of"
                                    + " range: a bucket has 1 byte or more",
                            PREFIX, bucketBytes));
        }
        return bucketBytes;
    }

    ParameterStrategy.Options strategyOptions() {
        return new ParameterStrategy.Options(sharding, hook, bucketBytes());
    }

    /** Returns the type in which matrix products are computed; null for that of their input. */
    ScalarType computeType() {
        return precision == MixedPrecisionPolicy.NONE ? null : precision.type();
    }

    String backend(boolean gpu) {
        return backend != null ? backend : gpu ? "cuda_p2p" : "shm";
    }

    String common() {
        return String.format(
                "mixed precision %s, gradient reduction %s, losses weighted %s, gradient hook %s,"
                        + " buckets of %d bytes, synchronised batch normalisation %s, join %s,"
                        + " sharding %s",
                precision,
                reduction(),
                weight.isPresent(),
                hook.name(),
                bucketBytes(),
                syncBatchNorm,
                join,
                sharding);
    }

    MixedPrecisionPolicy mixedPrecision() {
        return precision;
    }

    /** Returns the scaler of gradients; null for none. */
    GradScaler gradScaler() {
        return scaler == null && precision == MixedPrecisionPolicy.FLOAT16
                ? new GradScaler()
                : scaler;
    }

    boolean checkForward() {
        return checkForward;
    }

    boolean syncBatchNorm() {
        return syncBatchNorm;
    }

    boolean join() {
        return join;
    }

    Duration timeout() {
        return timeout;
    }

    ProcessGroup group() {
        return group;
    }
}

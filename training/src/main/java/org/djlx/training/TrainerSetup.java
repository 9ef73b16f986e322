// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.TrainingConfig;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.ParameterTracker;
import ai.djl.training.tracker.Tracker;
import ai.djl.util.Pair;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import org.djlx.collectives.Agreement;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.engine.DividedBlock;
import org.djlx.collectives.launch.LaunchEnvironment;
import org.djlx.collectives.launch.TorchThreads;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.internal.PrivateFields;
import org.djlx.training.internal.Ranks;
import org.djlx.training.internal.Replica;
import org.djlx.training.precision.GradScaler;
import org.djlx.training.precision.MixedPrecisionPolicy;
import org.djlx.training.strategy.FullyShard;
import org.djlx.training.strategy.ShardingStrategy;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Derives a trainer's setup from its configuration: whether this process is one of several, its
 * number of ranks, its listeners, and the options of its process group. Rejects blocks and
 * optimizers that would train wrongly.
 */
final class TrainerSetup {

    // The trainer's name, under which log4j2.xml and docs/training.md know its start line.
    private static final Logger LOG = LoggerFactory.getLogger(DataParallelTrainer.class);
    // Larger gradient buckets go through NCCL: a direct all-reduce would take too many SMs.
    private static final long KERNEL_BYTES = 1 << 20;

    private TrainerSetup() {}

    private static boolean isOneOfSeveral() {
        return LaunchEnvironment.current().isDistributed();
    }

    /**
     * Returns whether this process has rank 0 in the data-parallel and the tensor-parallel group.
     */
    static boolean isFirst(Model model, DataParallelConfig settings) {
        ProcessGroup parts = DividedBlock.groupOf(model.getBlock());
        if (parts != null && parts.rank() > 0) {
            return false;
        }
        return settings.group() != null
                ? settings.group().rank() == 0
                : !isOneOfSeveral() || LaunchEnvironment.current().get("RANK").equals("0");
    }

    /** Logs ranks, devices, backend and gradient reduction; on the first rank only. */
    static void log(Model model, DataParallelConfig settings, Ranks ranks) {
        if (ranks.group() == null) {
            LOG.info("Training on 1 rank: device {}", ranks.first().device());
        } else if (isFirst(model, settings)) {
            LOG.info(
                    "Training on {} ranks {}, gradient hook {}, buckets of {} bytes",
                    ranks.worldSize(),
                    ranks.description(),
                    settings.hook().name(),
                    settings.bucketBytes());
            ShardingStrategy sharding = settings.strategyOptions().sharding();
            if (model.getBlock() instanceof FullyShard && sharding != ShardingStrategy.FULL_SHARD) {
                LOG.warn(
                        "The block has FullyShard blocks, but with {} each rank has all parameters;"
                                + " to divide them, call optShardingStrategy(FULL_SHARD)",
                        sharding);
            }
        }
    }

    /** Throws on all processes of a group if their options differ. */
    static void requireSameOptions(
            DataParallelConfig settings,
            ProcessGroup group,
            GradScaler scaler,
            UnevenBatches uneven) {
        String options =
                settings.common()
                        + (", " + (scaler == null ? "no GradScaler" : scaler))
                        + (uneven.areAllowed() ? ", JoinListeners " + uneven.names() : "");
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

    private static boolean isProcess(DataParallelConfig settings) {
        return settings.group() != null || isOneOfSeveral();
    }

    /** Returns a configuration with {@link JobListeners}, unless the job is in this process. */
    static TrainingConfig ofRank(Model model, TrainingConfig config, DataParallelConfig settings) {
        boolean first = isFirst(model, settings);
        if (first && !isProcess(settings)) {
            return config;
        }
        JobListeners listeners = new JobListeners(config.getTrainingListeners(), first);
        DefaultTrainingConfig own =
                new DefaultTrainingConfig(config.getLossFunction()) {
                    @Override
                    public List<TrainingListener> getTrainingListeners() {
                        return listeners;
                    }
                };
        own.optDevices(config.getDevices()).optOptimizer(config.getOptimizer());
        if (config.getExecutorService() != null) {
            own.optExecutorService(config.getExecutorService());
        }
        config.getEvaluators().forEach(own::addEvaluator);
        return own;
    }

    /** Returns the ranks that a trainer has in this JVM, before they are opened. */
    static Ranks ranks(DataParallelConfig settings, Device[] devices) {
        boolean gpu = devices[0].isGpu();
        Integer wanted = settings.ranks();
        boolean process = isProcess(settings);
        int count = process ? 1 : gpu ? devices.length : wanted == null ? 1 : wanted;
        if (!process && wanted != null && wanted != count) {
            throw new IllegalArgumentException(
                    String.format(
                            "newTrainer: %d ranks do not fit the devices %s: on GPUs there is one"
                                    + " rank per device; leave optRanks out",
                            wanted, Arrays.toString(devices)));
        }
        if (settings.group() == null && !gpu) {
            TorchThreads.choose(count);
        }
        return process ? new RankOfProcess(settings) : new RanksOfJvm(settings, count);
    }

    /**
     * Rejects tensor-parallel blocks with several ranks in this JVM: the JVM has one handle of the
     * tensor-parallel group, and ranks cannot share a handle.
     */
    static void requireWhole(Block block, int ranks) {
        ProcessGroup parts = DividedBlock.groupOf(block);
        if (parts != null && parts.worldSize() > 1) {
            throw new IllegalArgumentException(
                    String.format(
                            "newTrainer: the block's parameters are divided among the %d ranks of"
                                + " group '%s', so each of these needs a trainer with one rank, not"
                                + " %d. Set optRanks(1), and pass the data-parallel group to"
                                + " optProcessGroup",
                            parts.worldSize(), parts.name(), ranks));
        }
    }

    /** Learning rates by the ids of parameters, for ids of all ranks of this JVM. */
    private record RatesOfRanks(ParameterTracker rates) implements ParameterTracker {

        @Override
        public float getNewValue(String id, int updates) {
            return rates.getNewValue(Replica.parameterId(id), updates);
        }
    }

    /**
     * Makes learning rates per parameter id those of all ranks of this JVM, whose ids differ.
     * Rejects an optimizer that keeps them in a field in which they cannot be replaced.
     */
    static void shareRates(Optimizer optimizer) {
        for (Field field : PrivateFields.of(optimizer)) {
            if (!ParameterTracker.class.isAssignableFrom(field.getType())) {
                continue;
            }
            Object value = PrivateFields.get(field, optimizer);
            if (value == null || value instanceof RatesOfRanks) {
                continue;
            }
            if (field.getType() == ParameterTracker.class
                    && !Modifier.isFinal(field.getModifiers())) {
                PrivateFields.set(field, optimizer, new RatesOfRanks((ParameterTracker) value));
            } else if (!(value instanceof Tracker)) {
                throw new IllegalArgumentException(
                        String.format(
                                "newTrainer: the optimizer has a learning rate per parameter id in"
                                    + " '%s', and the ids of the ranks in this JVM differ. Declare"
                                    + " the field as a ParameterTracker that is not final, as DJL's"
                                    + " optimizers do, or use one rank per process",
                                field));
            }
        }
    }

    /** Returns the options of the group of ranks in this JVM. */
    static BackendOptions options(DataParallelConfig settings, String backend, Device[] devices) {
        Duration timeout = settings.timeout();
        if (!devices[0].isGpu()) {
            return new BackendOptions(timeout);
        }
        NcclOptions.Builder nccl = NcclOptions.builder().optDevices(devices).optTimeout(timeout);
        if (!"cuda_p2p".equals(backend)) {
            return nccl.build();
        }
        CudaP2pOptions.Builder options =
                CudaP2pOptions.builder()
                        .optTimeout(timeout)
                        .optNcclOptions(nccl.optHighPriorityStream(true).build());
        CudaP2pOptions usual = options.build();
        boolean divides = settings.strategyOptions().sharding() == ShardingStrategy.FULL_SHARD;
        if (divides || !usual.isDirect(devices.length, false)) {
            return usual; // Smaller limits make the slots of gathers and reductions smaller, too.
        }
        // All-reduces overlap the backward pass: few thread blocks, at high priority.
        return options.optOneShotBytes(Math.min(KERNEL_BYTES, usual.oneShotBytes(devices.length)))
                .optTwoShotBytes(KERNEL_BYTES)
                .build();
    }

    /** Rejects mixed precision for floating-point parameters other than float32. */
    static void requireMasters(DataParallelConfig settings, Block block) {
        for (Pair<String, Parameter> named : block.getParameters()) {
            ScalarType type = Torch.scalarType(named.getValue().getArray());
            if (settings.mixedPrecision() != MixedPrecisionPolicy.NONE
                    && type.isFloatingPoint()
                    && type != ScalarType.FLOAT32) {
                throw new IllegalArgumentException(
                        String.format(
                                "initialize: mixed precision %s needs float32 parameters, but '%s'"
                                        + " is %s; set the model's data type to float32, or use"
                                        + " MixedPrecisionPolicy.NONE",
                                settings.mixedPrecision(), named.getKey(), type));
            }
        }
    }
}

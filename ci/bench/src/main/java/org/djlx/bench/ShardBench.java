// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.GradientCollector;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.stream.DoubleStream;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.collectives.train.DataParallelConfig;
import org.djlx.collectives.train.DataParallelTrainer;
import org.djlx.collectives.train.Replica;
import org.djlx.collectives.train.ShardingStrategy;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.Torch;

/**
 * Two ranks that share a GPU train the model of {@link TrainBench} with Adam in float32, fully
 * sharded. First each trains alone: cuBLAS may not load kernels while a peer waits, see {@link
 * CudaP2pOptions.Builder#optSharedGpus}.
 */
final class ShardBench {

    private static final Device GPU = Device.gpu(0);
    private static final int RANKS = 2;
    private static final int TURN = 5; // steps of a kind, one after the other

    /**
     * The medians of a run.
     *
     * @param rows the rows of each rank in a batch
     * @param gatheredMilliseconds of a step whose parameters are gathered before the time begins
     * @param exposed the part of the step that gathers take and computation does not hide
     */
    record Result(int rows, double milliseconds, double gatheredMilliseconds, double exposed) {}

    private final TrainBench.Size size;
    private final int steps; // of each kind
    private final CyclicBarrier hosts = new CyclicBarrier(RANKS);

    ShardBench(TrainBench.Size size, int steps) {
        this.size = size;
        this.steps = steps;
    }

    Result run() {
        NcclOptions.Builder nccl =
                NcclOptions.builder().optDevices(new Device[] {GPU}).optHighPriorityStream(true);
        CudaP2pOptions.Builder options =
                CudaP2pOptions.builder()
                        .optNcclOptions(nccl.build())
                        .optTimeout(Duration.ofSeconds(20))
                        .optSharedGpus(true);
        List<ProcessGroup> groups = ProcessGroups.local("cuda_p2p", RANKS, options.build());
        try {
            return ProcessGroups.run(groups, this::runOnStream).get(0);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private Result runOnStream(ProcessGroup group) throws Exception {
        try (CudaDevice gpu = CudaDevice.open(GPU);
                CudaStream stream = CudaStream.create(gpu)) {
            CudaStreamGuard guard = Torch.cudaStreamGuard(GPU, stream.handle());
            try {
                return measure(group);
            } finally {
                guard.close();
                stream.synchronize();
            }
        }
    }

    private Result measure(ProcessGroup group) throws Exception {
        try (Rank alone = new Rank(size, config())) {
            alone.step(false);
            alone.step(false);
        }
        DoubleStream.Builder own = DoubleStream.builder();
        DoubleStream.Builder gathered = DoubleStream.builder();
        meet();
        DataParallelConfig sharded =
                config().optProcessGroup(group).optShardingStrategy(ShardingStrategy.FULL_SHARD);
        try (Rank rank = new Rank(size, sharded)) {
            for (int step = -4 * TURN; step < 2 * steps; step++) {
                boolean before = Math.floorMod(step / TURN, 2) == 1;
                meet();
                double millis = rank.step(before);
                if (step >= 0) {
                    (before ? gathered : own).add(millis);
                }
            }
        }
        double step = Stats.median(own.build().toArray());
        double without = Stats.median(gathered.build().toArray());
        double exposed = (step - without) / step;
        return new Result(size.rows(), step, without, exposed);
    }

    private void meet() throws Exception {
        hosts.await(60, TimeUnit.SECONDS);
    }

    private static DataParallelConfig config() {
        DataParallelConfig config = new DataParallelConfig(new TrainBench.Squares());
        config.optDevices(new Device[] {GPU});
        Tracker rate = Tracker.fixed(1e-4f);
        config.optOptimizer(Optimizer.adam().optLearningRateTracker(rate).build());
        return config;
    }

    /** The model and trainer of a rank. */
    private static final class Rank implements AutoCloseable {

        private final Model model;
        private final DataParallelTrainer trainer;
        private final Shape batch;

        Rank(TrainBench.Size size, DataParallelConfig config) {
            batch = new Shape(size.rows(), size.width());
            model = Model.newInstance("shard-bench", GPU, P2pEngine.NAME);
            SequentialBlock block = new SequentialBlock();
            for (int i = 0; i < size.layers(); i++) {
                block.add(Linear.builder().setUnits(size.hidden()).build())
                        .add(Activation.reluBlock())
                        .add(Linear.builder().setUnits(size.width()).build());
            }
            model.setBlock(block);
            trainer = (DataParallelTrainer) model.newTrainer(config);
            trainer.initialize(new Shape(1, size.width()));
        }

        /** Trains; returns the milliseconds. {@code gathered}: gathers before the time begins. */
        double step(boolean gathered) throws ReflectiveOperationException {
            try (NDManager manager = trainer.getManager().newSubManager();
                    GradientCollector collector = trainer.newGradientCollector()) {
                NDArray x = manager.randomNormal(batch);
                if (gathered) {
                    gather();
                }
                CurrentStreams.await(GPU);
                long begin = System.nanoTime();
                NDArray y = trainer.forward(new NDList(x)).head();
                collector.backward(y.sub(x).square().mean());
                trainer.step();
                CurrentStreams.await(GPU);
                return (System.nanoTime() - begin) / 1e6;
            }
        }

        /** Programs cannot gather for a step: the update would not reach what is gathered. */
        private void gather() throws ReflectiveOperationException {
            Method shards = Replica.class.getDeclaredMethod("shards");
            shards.setAccessible(true);
            Object sharded = shards.invoke(trainer.replicas().get(0));
            Method acquireAll = sharded.getClass().getDeclaredMethod("acquireAll");
            acquireAll.setAccessible(true);
            acquireAll.invoke(sharded);
        }

        @Override
        public void close() {
            trainer.close();
            model.close();
        }
    }
}

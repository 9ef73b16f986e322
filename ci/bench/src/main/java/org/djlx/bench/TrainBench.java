// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.Batch;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.translate.StackBatchifier;
import ai.djl.translate.TranslateException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.training.DataParallelConfig;
import org.djlx.training.strategy.ShardingStrategy;

/**
 * Times training steps in float32: forward and backward pass, gradient synchronization, update. The
 * model is {@code layers} times (Linear width → hidden, ReLU, Linear hidden → width).
 */
final class TrainBench implements AutoCloseable {

    /** The engines and devices that train. */
    enum Contender {
        /** DJL's engine on one device, without synchronization. */
        DJL_ALONE("PyTorch", true),
        /** DJL's engine on all devices, which synchronizes through the first one. */
        DJL("PyTorch", false),
        /** The engine PyTorch-P2P on one device. */
        P2P_ALONE("PyTorch-P2P", true),
        /** The engine PyTorch-P2P on all devices. */
        P2P("PyTorch-P2P", false),
        /** The engine PyTorch-P2P on all devices, fully sharded; a single rank gathers, too. */
        P2P_SHARDED("PyTorch-P2P", false);

        private final String engine;
        private final boolean alone;

        Contender(String engine, boolean alone) {
            this.engine = engine;
            this.alone = alone;
        }
    }

    /** The mean squared error. Not DJL's L2 loss: autograd may lose the memory of its factor. */
    static final class Squares extends Loss {

        Squares() {
            super("squares");
        }

        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            return predictions.head().sub(labels.head()).square().mean();
        }
    }

    /**
     * The sizes of the model; {@code rows} are those of each rank in a batch. {@code divided}: one
     * device has as many rows as all ranks.
     */
    record Size(int layers, int width, int hidden, int rows, boolean divided) {}

    private final Size size;
    private final long rows; // of all ranks
    private final Model model;
    private final Trainer trainer;
    private final List<CudaDevice> gpus = new ArrayList<>();
    private ProcessGroup single; // of P2P_SHARDED with one rank; otherwise null

    /** On the CPU there is one device for all ranks. */
    TrainBench(Contender contender, Size size, Optimizer optimizer, Device[] devices, int ranks) {
        this.size = size;
        rows = (long) size.rows * (contender.alone && !size.divided ? 1 : ranks);
        Device[] own = contender.alone ? Arrays.copyOf(devices, 1) : devices;
        model = Model.newInstance("train-bench", devices[0], contender.engine);
        Trainer started = null;
        try {
            SequentialBlock block = new SequentialBlock();
            for (int i = 0; i < size.layers; i++) {
                block.add(Linear.builder().setUnits(size.hidden).build())
                        .add(Activation.reluBlock())
                        .add(Linear.builder().setUnits(size.width).build());
            }
            model.setBlock(block);
            DataParallelConfig config = new DataParallelConfig(new Squares());
            if (!devices[0].isGpu()) {
                config.optRanks(contender.alone || contender == Contender.DJL ? 1 : ranks);
            }
            if (contender == Contender.P2P_SHARDED) {
                config.optShardingStrategy(ShardingStrategy.FULL_SHARD);
                if (ranks == 1) {
                    single = groupOfOne(devices[0]);
                    config.optProcessGroup(single);
                }
            }
            config.optDevices(own);
            config.optOptimizer(optimizer);
            started = model.newTrainer(config);
            started.initialize(new Shape(1, size.width));
            for (Device device : own) {
                if (device.isGpu()) {
                    gpus.add(CudaDevice.open(device));
                }
            }
            trainer = started;
            started = null;
        } catch (RuntimeException | Error e) {
            if (started != null) {
                started.close();
            }
            model.close();
            destroyGroup();
            throw e;
        }
    }

    private static ProcessGroup groupOfOne(Device device) {
        return device.isGpu()
                ? ProcessGroups.local(
                                "nccl",
                                1,
                                NcclOptions.builder().optDevices(new Device[] {device}).build())
                        .get(0)
                : ProcessGroups.local(1).get(0);
    }

    private void destroyGroup() {
        if (single != null) {
            single.destroy();
        }
    }

    /**
     * Measures the milliseconds of each step, from a batch on the first device until all devices
     * have finished, after {@code warmUp} untimed ones.
     */
    double[] milliseconds(int warmUp, int steps) throws TranslateException {
        double[] times = new double[warmUp + steps];
        for (int i = 0; i < times.length; i++) {
            times[i] = step();
        }
        return Arrays.copyOfRange(times, warmUp, times.length);
    }

    /** Trains on a batch; returns the milliseconds. */
    private double step() throws TranslateException {
        try (NDManager manager = trainer.getManager().newSubManager(trainer.getDevices()[0])) {
            NDArray x = manager.randomNormal(new Shape(rows, size.width));
            NDManager own = manager.newSubManager();
            StackBatchifier stack = new StackBatchifier();
            NDList data = new NDList(x);
            NDList labels = new NDList(x.duplicate());
            synchronize();
            long begin = System.nanoTime();
            Batch batch = new Batch(own, data, labels, (int) rows, stack, stack, 0, 0);
            try (GradientCollector collector = trainer.newGradientCollector()) {
                for (Batch part : batch.split(trainer.getDevices(), false)) {
                    NDList predictions = trainer.forward(part.getData(), part.getLabels());
                    collector.backward(trainer.getLoss().evaluate(part.getLabels(), predictions));
                }
            }
            trainer.step();
            synchronize();
            return (System.nanoTime() - begin) / 1e6;
        }
    }

    private void synchronize() {
        gpus.forEach(CudaDevice::synchronize);
    }

    /**
     * Returns the relative error of float32 matmuls, about 1e-7, or 1e-4 with TF32: DJL cannot
     * query whether libtorch uses it.
     */
    static double matmulError(Device device) {
        try (NDManager manager = NDManager.newBaseManager(device, "PyTorch")) {
            NDArray a = manager.randomNormal(new Shape(512, 512));
            NDArray b = manager.randomNormal(new Shape(512, 512));
            NDArray exact = a.toType(DataType.FLOAT64, true).dot(b.toType(DataType.FLOAT64, true));
            NDArray error = a.dot(b).toType(DataType.FLOAT64, true).sub(exact);
            return Math.sqrt(error.square().sum().getDouble() / exact.square().sum().getDouble());
        }
    }

    @Override
    public void close() {
        trainer.close();
        model.close();
        destroyGroup();
        gpus.forEach(CudaDevice::close);
    }
}

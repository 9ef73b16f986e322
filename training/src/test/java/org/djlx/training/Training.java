// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.dataset.RandomAccessDataset;
import ai.djl.training.dataset.Sampler;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SoftmaxCrossEntropyLoss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.djlx.nativeops.torch.NoGradient;

/** A DJL program that knows nothing of ranks: a classifier trained by {@code EasyTrain.fit}. */
public final class Training {

    public static final int FEATURES = 6;
    public static final int CLASSES = 3;

    /** The losses of all batches, and the parameters at the end. */
    public record Outcome(List<Float> losses, List<float[]> parameters) {}

    /** What is run besides, when the trainer is initialised. */
    public interface OnTrainer {
        void run(Trainer trainer) throws Exception;
    }

    /** Says how many epochs there are to train, when the trainer is initialised. */
    public interface Start {
        int epochs(Trainer trainer) throws Exception;
    }

    private Training() {}

    public static Optimizer optimizer(String name) {
        Tracker rate = Tracker.fixed(0.05f);
        return switch (name) {
            case "sgd" -> Optimizer.sgd().setLearningRateTracker(rate).build();
            case "momentum" ->
                    Optimizer.sgd().setLearningRateTracker(rate).optMomentum(0.9f).build();
            case "adamW" -> Optimizer.adamW().optLearningRateTracker(rate).build();
            case "adam" -> Optimizer.adam().optLearningRateTracker(rate).build();
            default -> throw new IllegalArgumentException(name);
        };
    }

    public static SequentialBlock block() {
        return new SequentialBlock()
                .add(Linear.builder().setUnits(8).build())
                .add(Activation::tanh)
                .add(Linear.builder().setUnits(CLASSES).build());
    }

    public static RandomAccessDataset dataset(NDManager manager, int items, Sampler sampler)
            throws Exception {
        Random random = new Random(11);
        float[] x = new float[items * FEATURES];
        float[] y = new float[items];
        for (int i = 0; i < items; i++) {
            float sum = 0;
            for (int k = 0; k < FEATURES; k++) {
                x[i * FEATURES + k] = random.nextFloat() * 2 - 1;
                sum += x[i * FEATURES + k];
            }
            y[i] = sum < -0.5f ? 0 : sum < 0.5f ? 1 : 2;
        }
        return new ArrayDataset.Builder()
                .setData(manager.create(x, new Shape(items, FEATURES)))
                .optLabels(manager.create(y, new Shape(items)))
                .setSampling(sampler)
                .build();
    }

    public static Loss loss() {
        return new SoftmaxCrossEntropyLoss();
    }

    public static Outcome fit(
            String engine,
            TrainingConfig config,
            SequentialBlock block,
            int items,
            Sampler sampler,
            int epochs,
            int seed,
            OnTrainer before)
            throws Exception {
        Start start =
                trainer -> {
                    before.run(trainer);
                    return epochs;
                };
        return fit(engine, config, block, items, sampler, seed, start);
    }

    public static Outcome fit(
            String engine,
            TrainingConfig config,
            SequentialBlock block,
            int items,
            Sampler sampler,
            int seed,
            Start start)
            throws Exception {
        List<Float> losses = new ArrayList<>();
        try (Model model = Model.newInstance("classifier", engine)) {
            block.setInitializer(weights(seed), Parameter.Type.WEIGHT);
            model.setBlock(block);
            config.getTrainingListeners().add(record(losses));
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, FEATURES));
                int epochs = start.epochs(trainer);
                RandomAccessDataset data = dataset(trainer.getManager(), items, sampler);
                EasyTrain.fit(trainer, epochs, data, null);
            }
            List<float[]> parameters = new ArrayList<>();
            for (Parameter parameter : block.getParameters().values()) {
                parameters.add(NoGradient.get(() -> parameter.getArray().toFloatArray()));
            }
            return new Outcome(losses, parameters);
        }
    }

    /** Makes weights that depend on the seed and the shape alone. */
    static Initializer weights(int seed) {
        return (manager, shape, type) -> {
            Random random = new Random(seed * 1000L + shape.size());
            float[] values = new float[(int) shape.size()];
            for (int i = 0; i < values.length; i++) {
                values[i] = 0.3f * (float) random.nextGaussian();
            }
            return manager.create(values, shape);
        };
    }

    /** Computes the loss of each batch anew, from what the program predicted. */
    private static TrainingListener record(List<Float> losses) {
        return new TrainingListenerAdapter() {
            @Override
            public void onTrainingBatch(Trainer trainer, BatchData data) {
                data.getPredictions()
                        .forEach(
                                (device, predictions) -> {
                                    NDArray loss =
                                            trainer.getLoss()
                                                    .evaluate(
                                                            data.getLabels().get(device),
                                                            predictions);
                                    losses.add(loss.getFloat());
                                    loss.close();
                                });
            }
        };
    }
}

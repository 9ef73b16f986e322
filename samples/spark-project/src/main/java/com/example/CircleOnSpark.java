// SPDX-License-Identifier: Apache-2.0
package com.example;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.listener.EvaluatorTrainingListener;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.translate.NoopTranslator;

import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.training.DataParallelConfig;
import org.djlx.training.GradientReduction;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.Serializable;
import java.util.Iterator;
import java.util.List;

/**
 * Trains a network on the rows of a DataFrame: points inside or outside a circle. Two Spark tasks
 * are the ranks; the driver gets the trained model and predicts with it. A training in one process
 * shows that the losses are equal.
 */
public final class CircleOnSpark {

    private static final int RANKS = 2;
    private static final int EPOCHS = 10;
    private static final int BATCH_SIZE = 64; // of all ranks together

    private CircleOnSpark() {}

    /** What rank 0 sends to the driver: the parameters, and the loss of each epoch. */
    private record Trained(byte[] parameters, float[] losses) implements Serializable {}

    public static void main(String[] args) throws Exception {
        try (SparkSession spark = SparkSession.builder().appName("circle").getOrCreate()) {
            Dataset<Row> points =
                    spark.range(0, 2001, 1, 3) // 2001 points in 3 partitions
                            .selectExpr("2 * rand(1) - 1 as x", "2 * rand(2) - 1 as y")
                            .selectExpr("x", "y", "int(x * x + y * y < 0.6) as inside");
            byte[] initial = initialParameters();
            Trained trained =
                    SparkRanks.run(points, RANKS, (group, rows) -> train(group, rows, initial));

            List<Row> rows = points.collectAsList();
            List<ProcessGroup> one = ProcessGroups.local(1);
            Trained alone =
                    ProcessGroups.run(one, group -> train(group, rows.iterator(), initial)).get(0);
            one.forEach(ProcessGroup::destroy);

            float difference = 0;
            System.out.printf("epoch  loss, %d ranks  loss, one process%n", RANKS);
            for (int i = 0; i < EPOCHS; i++) {
                float loss = trained.losses[i];
                System.out.printf("%5d  %13.6f  %17.6f%n", i + 1, loss, alone.losses[i]);
                difference = Math.max(difference, Math.abs(loss - alone.losses[i]));
            }
            float accuracy = accuracy(trained.parameters, rows);
            System.out.printf("largest difference %.1e, accuracy %.3f%n", difference, accuracy);
            if (!(difference < 1e-5f && accuracy > 0.95f)) {
                throw new IllegalStateException("the losses differ, or the accuracy is too low");
            }
        }
    }

    private static Trained train(ProcessGroup group, Iterator<Row> rows, byte[] initial)
            throws Exception {
        DataParallelConfig config =
                new DataParallelConfig(Loss.softmaxCrossEntropyLoss())
                        .optProcessGroup(group)
                        .optGradientReduction(GradientReduction.MEAN);
        Tracker rate = Tracker.fixed(0.01f);
        config.optOptimizer(Optimizer.adam().optLearningRateTracker(rate).build())
                .optDevices(new Device[] {group.device()})
                .addTrainingListeners(new EvaluatorTrainingListener());
        try (Model model = model(P2pEngine.NAME, group.device(), initial);
                Trainer trainer = model.newTrainer(config)) {
            trainer.initialize(new Shape(1, 2));
            NDManager manager = trainer.getManager();
            int share = BATCH_SIZE / group.worldSize();
            ArrayDataset data = SparkRanks.dataset(group, manager, rows, share, "inside", "x", "y");
            float[] losses = new float[EPOCHS];
            for (int i = 0; i < EPOCHS; i++) {
                EasyTrain.fit(trainer, 1, data, null);
                String name = trainer.getLoss().getName();
                NDArray loss = manager.create(trainer.getTrainingResult().getTrainEvaluation(name));
                group.allReduce(loss, ReduceOp.AVG).await();
                losses[i] = loss.getFloat();
            }
            return new Trained(parameters(model), losses);
        }
    }

    /** Loads the trained model; returns the part of the points that it predicts right. */
    private static float accuracy(byte[] parameters, List<Row> points) throws Exception {
        try (Model model = model("PyTorch", Device.cpu(), parameters);
                Predictor<NDList, NDList> predictor = model.newPredictor(new NoopTranslator())) {
            int right = 0;
            for (Row point : points) {
                float[] xy = {(float) point.getDouble(0), (float) point.getDouble(1)};
                NDArray input = model.getNDManager().create(xy, new Shape(1, 2));
                long inside = predictor.predict(new NDList(input)).head().argMax().getLong();
                right += inside == point.getInt(2) ? 1 : 0;
            }
            return (float) right / points.size();
        }
    }

    private static Model model(String engine, Device device, byte[] parameters) throws Exception {
        Model model = Model.newInstance("circle", device, engine);
        model.setBlock(block());
        DataInputStream input = new DataInputStream(new ByteArrayInputStream(parameters));
        model.getBlock().loadParameters(model.getNDManager(), input);
        return model;
    }

    private static byte[] initialParameters() throws Exception {
        try (Model model = Model.newInstance("circle", Device.cpu(), "PyTorch")) {
            model.getNDManager().getEngine().setRandomSeed(1);
            model.setBlock(block());
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, new Shape(1, 2));
            return parameters(model);
        }
    }

    private static byte[] parameters(Model model) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        model.getBlock().saveParameters(new DataOutputStream(bytes));
        return bytes.toByteArray();
    }

    private static SequentialBlock block() {
        return new SequentialBlock()
                .add(Linear.builder().setUnits(32).build())
                .add(Activation::relu)
                .add(Linear.builder().setUnits(2).build());
    }
}

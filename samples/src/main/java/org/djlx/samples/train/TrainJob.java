/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.train;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.engine.CheckpointManager;
import org.djlx.collectives.engine.DataParallelConfig;
import org.djlx.collectives.engine.GradientReduction;
import org.djlx.collectives.engine.TrainingProgress;

/**
 * Trains an MLP that tells the next byte of a text from the 16 before it (Bengio et al., 2003).
 * What it draws depends on the seed alone, so losses are the same for any number of ranks, up to
 * rounding.
 */
final class TrainJob {

    private static final int CONTEXT = 16;
    private static final int HIDDEN = 256;
    private static final int POINTS = 200; // of the curve
    private static final int SAMPLE = 240;

    /**
     * What to do.
     *
     * @param ranks the number of ranks in this JVM
     * @param group this process's rank among several; null if it is the only one
     * @param devices where the ranks are; one CPU for all of them
     * @param checkpoints where they are; null for none
     * @param checkpointEvery how many steps there are from one to the next
     */
    record Settings(
            int ranks,
            ProcessGroup group,
            Device[] devices,
            int steps,
            int batch,
            long seed,
            Path checkpoints,
            int checkpointEvery) {

        boolean isFirst() {
            return group == null || group.rank() == 0;
        }
    }

    /**
     * What came of it.
     *
     * @param curve the losses
     * @param text what the model wrote; empty on all processes but the first
     */
    record Result(LossCurve curve, String text) {}

    /** Who hears of the progress. */
    interface Listener {

        /** The job goes on from a checkpoint. */
        void restored(long step);

        /** The loss of a batch, of all ranks; 200 in all, and a few more. */
        void trained(int step, float loss, double tokensPerSecond);
    }

    private final byte[] text;
    private final Settings settings;
    private final Listener listener;
    private final LossCurve curve = new LossCurve();
    private final int[] tokens;
    private final byte[] vocabulary;

    TrainJob(byte[] text, Settings settings, Listener listener) {
        this.text = text;
        this.settings = settings;
        this.listener = listener;
        int[] number = new int[256];
        Arrays.fill(number, -1);
        byte[] found = new byte[256];
        int count = 0;
        tokens = new int[text.length];
        for (int i = 0; i < text.length; i++) {
            int value = Byte.toUnsignedInt(text[i]);
            if (number[value] < 0) {
                found[count] = text[i];
                number[value] = count++;
            }
            tokens[i] = number[value];
        }
        vocabulary = Arrays.copyOf(found, count);
    }

    /** The shortest text from which there is something to learn. */
    static int shortest() {
        return 4 * CONTEXT;
    }

    private Block block() {
        int size = vocabulary.length;
        return new SequentialBlock()
                .addSingleton(ids -> ids.oneHot(size).reshape(-1, (long) CONTEXT * size))
                .add(Linear.builder().setUnits(HIDDEN).build())
                .add(Activation::tanh)
                .add(Linear.builder().setUnits(size).build());
    }

    Result run() throws IOException {
        // Any engine would do; this one knows of ranks.
        try (Model model = Model.newInstance("train", settings.devices[0], "PyTorch-P2P")) {
            Engine.getEngine("PyTorch-P2P").setRandomSeed((int) settings.seed);
            model.setBlock(block());
            DataParallelConfig config =
                    new DataParallelConfig(Loss.softmaxCrossEntropyLoss())
                            .optGradientReduction(GradientReduction.MEAN);
            if (settings.group != null) {
                config.optProcessGroup(settings.group);
            } else if (!settings.devices[0].isGpu()) {
                config.optRanks(settings.ranks);
            }
            config.optDevices(settings.devices);
            Tracker rate = Tracker.fixed(0.002f);
            config.optOptimizer(Optimizer.adam().optLearningRateTracker(rate).build());
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, CONTEXT));
                train(trainer);
                return new Result(curve, settings.isFirst() ? write(trainer) : "");
            }
        }
    }

    private void train(Trainer trainer) throws IOException {
        CheckpointManager checkpoints = null;
        long done = 0;
        if (settings.checkpoints != null) {
            checkpoints = CheckpointManager.builder().setDirectory(settings.checkpoints).build();
            done = checkpoints.restore(trainer).step();
            if (done > settings.steps) {
                throw new IOException(
                        String.format(
                                "%s has a checkpoint of step %d, and %d steps are to be trained",
                                settings.checkpoints, done, settings.steps));
            }
            if (done > 0) {
                listener.restored(done);
                curve.load(curveFile(), done);
            }
        }
        int every = Math.max(1, settings.steps / POINTS);
        long begin = System.nanoTime();
        for (int step = (int) done + 1; step <= settings.steps; step++) {
            boolean last = step == settings.steps;
            boolean reported = step == 1 || step % every == 0 || last;
            float loss = step(trainer, step, reported);
            if (reported) {
                curve.add(step, loss);
                double seconds = (System.nanoTime() - begin) / 1e9;
                listener.trained(step, loss, (step - done) * settings.batch / seconds);
            }
            if (checkpoints != null && (step % settings.checkpointEvery == 0 || last)) {
                if (settings.isFirst()) {
                    curve.save(curveFile());
                }
                checkpoints.save(trainer, new TrainingProgress(step, 0, step));
            }
        }
    }

    private Path curveFile() {
        return settings.checkpoints.toAbsolutePath().resolve("losses.csv");
    }

    /** Trains on a batch, and returns its loss if it is asked for: that of all processes. */
    private float step(Trainer trainer, int step, boolean wanted) {
        ProcessGroup group = settings.group;
        int processes = group == null ? 1 : group.worldSize();
        int own = settings.batch / processes;
        int first = group == null ? 0 : group.rank() * own;
        Random random = new Random(settings.seed * 1_000_003 + step);
        long[] contexts = new long[own * CONTEXT];
        float[] next = new float[own];
        for (int row = 0; row < settings.batch; row++) {
            int begin = random.nextInt(tokens.length - CONTEXT);
            if (row >= first && row < first + own) {
                for (int i = 0; i < CONTEXT; i++) {
                    contexts[(row - first) * CONTEXT + i] = tokens[begin + i];
                }
                next[row - first] = tokens[begin + CONTEXT];
            }
        }
        try (NDManager manager = trainer.getManager().newSubManager(trainer.getDevices()[0])) {
            NDList data = new NDList(manager.create(contexts, new Shape(own, CONTEXT)));
            NDList labels = new NDList(manager.create(next, new Shape(own)));
            NDArray loss;
            try (GradientCollector collector = trainer.newGradientCollector()) {
                loss = trainer.getLoss().evaluate(labels, trainer.forward(data, labels));
                collector.backward(loss);
            }
            trainer.step();
            if (!wanted) {
                return Float.NaN;
            }
            NDArray mean = loss.stopGradient();
            if (group != null) {
                group.allReduce(mean, ReduceOp.AVG).await();
            }
            return mean.getFloat();
        }
    }

    /** Has the model go on from the beginning of the text. */
    private String write(Trainer trainer) {
        Random random = new Random(settings.seed);
        int[] written = Arrays.copyOf(tokens, CONTEXT + SAMPLE);
        byte[] bytes = Arrays.copyOf(text, CONTEXT + SAMPLE);
        for (int i = CONTEXT; i < written.length; i++) {
            long[] context = new long[CONTEXT];
            for (int k = 0; k < CONTEXT; k++) {
                context[k] = written[i - CONTEXT + k];
            }
            try (NDManager manager = trainer.getManager().newSubManager(trainer.getDevices()[0])) {
                NDArray ids = manager.create(context, new Shape(1, CONTEXT));
                NDArray scores = trainer.evaluate(new NDList(ids)).head();
                float[] probabilities = scores.softmax(1).toFloatArray();
                written[i] = draw(probabilities, random);
                bytes[i] = vocabulary[written[i]];
            }
        }
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static int draw(float[] probabilities, Random random) {
        float left = random.nextFloat();
        for (int i = 0; i < probabilities.length; i++) {
            left -= probabilities[i];
            if (left < 0) {
                return i;
            }
        }
        return probabilities.length - 1;
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.llm.tune.TrainableModel;
import org.djlx.nativeops.torch.ScalarType;

/**
 * A small Llama that has learnt a random language, and a text of it. Each word has four successors;
 * no model can have a smaller loss than the {@link #ENTROPY} of their choice.
 *
 * @param tokens the text
 */
public record TrainedLlama(int[] tokens) {

    /** The least mean loss in nats. */
    public static final double ENTROPY = 1.2080;

    private static final double[] PROBABILITIES = {0.5, 0.25, 0.15, 0.1};
    private static final int WORDS = 203;
    private static final int STEPS = 250;
    private static final int BATCH = 16;
    private static final int LENGTH = 32;
    private static final int TEXT = 200;

    /** Trains on the CPU, and writes the model. */
    public static TrainedLlama write(Path directory) throws Exception {
        Path random = directory.resolve("random");
        LlamaFiles.write(random, LlamaFiles.decodable(ScalarType.FLOAT32, false, 16), 1);
        List<ProcessGroup> groups = ProcessGroups.local(1);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        train(group, random, directory);
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
        return new TrainedLlama(text(new Random(2), TEXT));
    }

    private static void train(ProcessGroup group, Path from, Path to) throws IOException {
        TrainableModel tuned = TrainableModel.builder().setGroup(group).setDirectory(from).build();
        try (NDManager manager = NDManager.newBaseManager(group.device());
                Model model = Model.newInstance("tuned", group.device(), "PyTorch-P2P")) {
            tuned.load(manager);
            model.setBlock(tuned.block());
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(tuned.loss())
                            .optDevices(new Device[] {group.device()})
                            .optOptimizer(
                                    Optimizer.adam()
                                            .optLearningRateTracker(Tracker.fixed(0.01f))
                                            .build());
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(BATCH, LENGTH));
                Random random = new Random(1);
                for (int i = 0; i < STEPS; i++) {
                    step(tuned, trainer, random);
                }
            }
            tuned.save(to);
        }
    }

    private static void step(TrainableModel tuned, Trainer trainer, Random random) {
        long[] inputs = new long[BATCH * LENGTH];
        long[] labels = new long[inputs.length];
        for (int row = 0; row < BATCH; row++) {
            int[] text = text(random, LENGTH + 1);
            for (int i = 0; i < LENGTH; i++) {
                inputs[row * LENGTH + i] = text[i];
                labels[row * LENGTH + i] = text[i + 1];
            }
        }
        Shape shape = new Shape(BATCH, LENGTH);
        try (NDManager manager = trainer.getManager().newSubManager()) {
            NDList input = new NDList(manager.create(inputs, shape));
            NDList label = new NDList(manager.create(labels, shape));
            try (GradientCollector collector = trainer.newGradientCollector()) {
                NDArray loss = tuned.loss().evaluate(label, trainer.forward(input));
                collector.backward(loss);
            }
            trainer.step();
        }
    }

    /** Returns a text of the language, which is the same for all. */
    private static int[] text(Random random, int length) {
        int[] text = new int[length];
        text[0] = random.nextInt(WORDS);
        for (int i = 1; i < length; i++) {
            double draw = random.nextDouble();
            int choice = 0;
            while (choice < PROBABILITIES.length - 1 && draw >= PROBABILITIES[choice]) {
                draw -= PROBABILITIES[choice++];
            }
            text[i] = (text[i - 1] * 37 + choice * 53 + 11) % WORDS;
        }
        return text;
    }

    /** Returns chunks of one token. */
    public int[] chunks() {
        int[] chunks = new int[tokens.length];
        Arrays.fill(chunks, 1);
        return chunks;
    }

    /** Returns the mean loss in nats, given the logits after each token. */
    public double loss(float[][] logits) {
        double sum = 0;
        for (int i = 0; i + 1 < tokens.length; i++) {
            double all = 0;
            for (float logit : logits[i]) {
                all += Math.exp(logit);
            }
            sum += Math.log(all) - logits[i][tokens[i + 1]];
        }
        return sum / (tokens.length - 1);
    }
}

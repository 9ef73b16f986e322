// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.finetune;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.Batch;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.translate.TranslateException;
import java.io.IOException;
import java.nio.file.Path;
import java.util.function.Consumer;
import org.djlx.collectives.ProcessGroup;
import org.djlx.llm.tune.ChatDataset;
import org.djlx.llm.tune.TrainableModel;
import org.djlx.training.data.DistributedSampler;
import org.djlx.training.nn.Lora;

/** One rank of a fine-tuning. The ranks divide the model; their trainers get the same batches. */
record FinetuneJob(
        Path directory,
        Path data,
        Lora lora, // null to train all weights
        int steps,
        int batch,
        float learningRate,
        long seed,
        Path out,
        Consumer<String> report) { // receives lines on the first rank's progress

    private static final String ENGINE = "PyTorch-P2P";
    private static final int REPORTS = 10;

    void run(ProcessGroup group) throws IOException, TranslateException {
        Engine.getEngine(ENGINE).setRandomSeed((int) seed);
        try (Model model = Model.newInstance("finetune", group.device(), ENGINE)) {
            TrainableModel tuned =
                    TrainableModel.builder()
                            .setGroup(group)
                            .setDirectory(directory)
                            .optLora(lora)
                            .build();
            model.setBlock(tuned.block());
            tuned.load(model.getNDManager());
            ChatDataset chats =
                    ChatDataset.builder()
                            .setFile(data)
                            .setDirectory(directory)
                            .setSampling(
                                    DistributedSampler.builder()
                                            .setBatchSize(batch)
                                            .optSeed(seed)
                                            .optPad(true)
                                            .build())
                            .build();
            if (group.rank() == 0) {
                report(tuned, chats);
            }
            Optimizer adam =
                    Optimizer.adamW().optLearningRateTracker(Tracker.fixed(learningRate)).build();
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(tuned.loss())
                            .optDevices(new Device[] {group.device()})
                            .optOptimizer(adam);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(batch, 1));
                train(trainer, chats, group.rank() == 0);
            }
            if (lora != null) {
                tuned.saveAdapter(out.resolve("adapter"));
            }
            tuned.save(out);
        }
    }

    private void train(Trainer trainer, ChatDataset chats, boolean reports)
            throws IOException, TranslateException {
        long begin = System.nanoTime();
        int step = 0;
        while (step < steps) {
            for (Batch each : trainer.iterateDataset(chats)) {
                try (each) {
                    if (step == steps) {
                        continue; // Closes the batches that were prepared ahead.
                    }
                    float loss = step(trainer, each);
                    step++;
                    boolean tenth = step % Math.max(1, steps / REPORTS) == 0;
                    if (reports && (step == 1 || step == steps || tenth)) {
                        double seconds = (System.nanoTime() - begin) / 1e9;
                        report.accept(
                                String.format(
                                        "step %5d   loss %.3f   %.0f s", step, loss, seconds));
                    }
                }
            }
        }
    }

    private void report(TrainableModel tuned, ChatDataset chats) {
        long all = 0;
        long trained = 0;
        for (var parameter : tuned.block().getParameters().values()) {
            long size = parameter.getArray().size();
            all += size;
            trained += parameter.requiresGradient() ? size : 0;
        }
        report.accept(
                String.format(
                        "Each rank trains %,d of its %,d parameters on %,d rows of chats, with %,d"
                                + " tokens of answers",
                        trained, all, chats.size(), chats.answerTokens()));
    }

    private static float step(Trainer trainer, Batch batch) {
        NDArray loss;
        try (GradientCollector collector = trainer.newGradientCollector()) {
            loss = trainer.getLoss().evaluate(batch.getLabels(), trainer.forward(batch.getData()));
            collector.backward(loss);
        }
        trainer.step();
        return loss.stopGradient().getFloat();
    }
}

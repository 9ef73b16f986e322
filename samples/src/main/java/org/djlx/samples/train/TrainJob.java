/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.train;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.engine.CheckpointManager;
import org.djlx.collectives.engine.DataParallelConfig;
import org.djlx.collectives.engine.GradientReduction;
import org.djlx.collectives.engine.TrainingProgress;
import org.djlx.collectives.gradient.DifferentiableCollectives;
import org.djlx.fusedops.llama.LlamaConfig;
import org.djlx.fusedops.nn.ColumnParallelLinear;
import org.djlx.fusedops.nn.ParallelEmbedding;
import org.djlx.fusedops.nn.ParallelTransformerBlock;
import org.djlx.fusedops.nn.RmsNorm;
import org.djlx.fusedops.nn.RotaryEmbedding;
import org.djlx.fusedops.nn.ShardedBlock;
import org.djlx.fusedops.nn.VocabularyParallelCrossEntropy;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;
import org.djlx.samples.llama.TrainedLlama;

/**
 * Trains a small Llama that tells the next byte of a text from those before it, on one rank of
 * several: some share a model, some share batches. What is drawn depends on the seed alone, so
 * losses are the same for any number of ranks, up to rounding.
 */
final class TrainJob {

    private static final int SIZE = 128;
    private static final int LAYERS = 3;
    private static final int HEADS = 8;
    private static final int KEY_VALUE_HEADS = 4;
    private static final int HIDDEN = 256;
    private static final int POINTS = 200; // of the curve
    private static final int PROMPT = 16;
    private static final int UNTRAINED = 80; // with the prompt
    private static final int REPORTS = 10;
    private static final double EPSILON = 1e-5; // of the norms
    private static final double THETA = 10_000; // of the rotations

    /**
     * What to do.
     *
     * @param group this rank's handle on all ranks
     * @param tensorParallel how many neighbouring ranks share a model
     * @param bfloat16 whether activations are of bfloat16; otherwise of float32, as parameters
     * @param context the number of tokens of a piece of text: the bytes before the one to be told,
     *     behind a token that begins every text
     * @param batch the number of pieces of text in a batch, of all ranks
     * @param checkpoints where they are; null for none
     * @param checkpointEvery how many steps there are from one to the next
     * @param llama where the trained model is written to; null for nowhere
     * @param sample how many bytes the trained model writes
     */
    record Settings(
            ProcessGroup group,
            int tensorParallel,
            boolean bfloat16,
            int steps,
            int context,
            int batch,
            long seed,
            Path checkpoints,
            int checkpointEvery,
            Path llama,
            int sample) {

        boolean isFirst() {
            return group.rank() == 0;
        }
    }

    /**
     * What came of it.
     *
     * @param curve the losses
     * @param text what the model wrote; empty on ranks that do not share the first one's model
     */
    record Result(LossCurve curve, String text) {}

    /** Who hears of the progress. */
    interface Listener {

        /** The job goes on from a checkpoint, which may be of a later step than the last one. */
        void restored(long step);

        /** What the model writes before it is trained; on ranks that share the first one. */
        default void untrained(String text) {}

        /** The loss of a batch, of all ranks; 200 in all, and a few more. */
        void trained(int step, float loss, double tokensPerSecond);

        /** This rank has done a step; its loss is not known. */
        default void stepped(int step, double tokensPerSecond) {}
    }

    private final byte[] text;
    private final Settings settings;
    private final Listener listener;
    private final LossCurve curve = new LossCurve();

    TrainJob(byte[] text, Settings settings, Listener listener) {
        this.text = text;
        this.settings = settings;
        this.listener = listener;
    }

    /** The shortest text from which there is something to learn, in bytes. */
    static int shortest(int context) {
        return Math.max(4 * context, PROMPT);
    }

    /** How many steps there are from one report to the next. */
    static int tenth(int steps) {
        return Math.max(1, steps / REPORTS);
    }

    /** The model's number of heads, which the ranks that share it divide. */
    static int heads() {
        return HEADS;
    }

    private SequentialBlock block(ProcessGroup tensor) {
        boolean divided = tensor.worldSize() > 1;
        ParallelEmbedding embedding =
                ParallelEmbedding.builder()
                        .setGroup(tensor)
                        .optSequenceParallel(divided)
                        .setVocabulary(TrainedLlama.VOCABULARY)
                        .setSize(SIZE)
                        .optComputeType(
                                settings.bfloat16 ? ScalarType.BFLOAT16 : ScalarType.FLOAT32)
                        .build();
        SequentialBlock model = new SequentialBlock().add(embedding);
        RotaryEmbedding rotary =
                RotaryEmbedding.builder().setHeadSize(SIZE / HEADS).optBase(THETA).build();
        for (int i = 0; i < LAYERS; i++) {
            model.add(
                    ParallelTransformerBlock.builder()
                            .setGroup(tensor)
                            .optSequenceParallel(divided)
                            .setHeads(HEADS)
                            .optKeyValueHeads(KEY_VALUE_HEADS)
                            .setHeadSize(SIZE / HEADS)
                            .setHidden(HIDDEN)
                            .optRotary(rotary)
                            .optEpsilon((float) EPSILON)
                            .optSequenceLength(settings.context)
                            .build());
        }
        return model.add(
                        RmsNorm.builder()
                                .setGroup(tensor)
                                .optSequenceParallel(divided)
                                .optEpsilon((float) EPSILON)
                                .build())
                .add(
                        ColumnParallelLinear.builder()
                                .setGroup(tensor)
                                .optSequenceParallel(divided)
                                .optTied(embedding)
                                .optBias(false)
                                .build());
    }

    /** Draws the same full weights on all ranks, also if they are threads that draw at once. */
    private Initializer weights() {
        Random random = new Random(settings.seed);
        return (manager, shape, type) -> {
            float[] values = new float[(int) shape.size()];
            for (int i = 0; i < values.length; i++) {
                values[i] = (float) (random.nextGaussian() / Math.sqrt(shape.get(1)));
            }
            return manager.create(values, shape);
        };
    }

    Result run() throws IOException {
        ProcessGroup all = settings.group;
        int rank = all.rank();
        try (ProcessGroup tensor = all.split(rank / settings.tensorParallel, rank);
                ProcessGroup data = all.split(rank % settings.tensorParallel, rank);
                Model model = Model.newInstance("train", all.device(), "PyTorch-P2P")) {
            SequentialBlock block = block(tensor);
            block.setInitializer(weights(), Parameter.Type.WEIGHT);
            model.setBlock(block);
            Loss loss =
                    VocabularyParallelCrossEntropy.builder()
                            .setGroup(tensor)
                            .setVocabulary(TrainedLlama.VOCABULARY)
                            .build();
            DataParallelConfig config =
                    new DataParallelConfig(loss)
                            .optGradientReduction(GradientReduction.MEAN)
                            .optProcessGroup(data);
            config.optDevices(new Device[] {all.device()});
            Tracker rate = Tracker.fixed(0.002f);
            config.optOptimizer(Optimizer.adam().optLearningRateTracker(rate).build());
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(settings.context));
                train(trainer, data, tensor);
                if (settings.llama != null && data.rank() == 0) {
                    saveLlama(block, tensor, trainer.getManager());
                }
                String written =
                        data.rank() == 0 ? write(trainer, tensor, PROMPT + settings.sample) : "";
                return new Result(curve, written);
            }
        }
    }

    private void train(Trainer trainer, ProcessGroup data, ProcessGroup tensor) throws IOException {
        CheckpointManager checkpoints = null;
        long done = 0;
        if (settings.checkpoints != null) {
            checkpoints =
                    CheckpointManager.builder()
                            .setDirectory(checkpoints(tensor.rank()))
                            .optGroup(settings.group)
                            .build();
            done = checkpoints.restore(trainer).step();
            if (done > 0) {
                listener.restored(done);
                curve.load(curveFile(), done);
            }
        }
        if (done == 0 && data.rank() == 0) {
            listener.untrained(write(trainer, tensor, UNTRAINED));
        }
        int every = Math.max(1, settings.steps / POINTS);
        int tenth = tenth(settings.steps);
        long begin = System.nanoTime();
        for (int step = (int) done + 1; step <= settings.steps; step++) {
            boolean last = step == settings.steps;
            boolean reported = step == 1 || step % every == 0 || step % tenth == 0 || last;
            float loss = step(trainer, data, step, reported);
            double seconds = (System.nanoTime() - begin) / 1e9;
            double speed = (double) (step - done) * settings.batch * settings.context / seconds;
            if (reported) {
                curve.add(step, loss);
                listener.trained(step, loss, speed);
            }
            listener.stepped(step, speed);
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

    /** Returns where the checkpoints of a part of the model are. */
    private Path checkpoints(int part) {
        boolean divided = settings.tensorParallel > 1;
        return divided ? settings.checkpoints.resolve("part-" + part) : settings.checkpoints;
    }

    /** Trains on a batch, and returns its loss if it is asked for: that of all ranks. */
    private float step(Trainer trainer, ProcessGroup data, int step, boolean wanted) {
        int own = settings.batch / data.worldSize();
        int context = settings.context;
        Random random = new Random(settings.seed * 1_000_003 + step);
        long[] batch = new long[own * context];
        long[] next = new long[own * context];
        for (int row = 0; row < settings.batch; row++) {
            int begin = random.nextInt(text.length - context + 1);
            int place = (row - own * data.rank()) * context;
            if (place >= 0 && place < batch.length) {
                for (int i = 0; i < context; i++) {
                    batch[place + i] = i == 0 ? TrainedLlama.BEGIN : token(begin + i - 1);
                    next[place + i] = token(begin + i);
                }
            }
        }
        try (NDManager manager = trainer.getManager().newSubManager(trainer.getDevices()[0])) {
            NDList input = new NDList(manager.create(batch));
            NDList labels = new NDList(manager.create(next));
            NDArray loss;
            try (GradientCollector collector = trainer.newGradientCollector()) {
                loss = trainer.getLoss().evaluate(labels, trainer.forward(input, labels));
                collector.backward(loss);
            }
            trainer.step();
            if (!wanted) {
                return Float.NaN;
            }
            NDArray mean = loss.stopGradient();
            data.allReduce(mean, ReduceOp.AVG).await();
            return mean.getFloat();
        }
    }

    private int token(int place) {
        return Byte.toUnsignedInt(text[place]);
    }

    /** Collects the weights on all ranks that share the model; the first one writes them. */
    private void saveLlama(SequentialBlock block, ProcessGroup tensor, NDManager parent)
            throws IOException {
        LlamaConfig config =
                new LlamaConfig(
                        TrainedLlama.VOCABULARY,
                        SIZE,
                        HIDDEN,
                        LAYERS,
                        HEADS,
                        KEY_VALUE_HEADS,
                        SIZE / HEADS,
                        settings.context,
                        EPSILON,
                        new LlamaConfig.Rope(THETA, 1, 0, 0, 0),
                        true,
                        List.of(),
                        ScalarType.FLOAT32);
        try (NDManager manager = parent.newSubManager()) {
            Map<String, NDArray> weights = new HashMap<>();
            List<Block> blocks = block.getChildren().values();
            weights.put("model.embed_tokens", full(blocks.get(0), "weight", manager));
            for (int i = 0; i < LAYERS; i++) {
                String in = "model.layers." + i + '.';
                List<Block> parts = blocks.get(1 + i).getChildren().values();
                Block attention = parts.get(1);
                Block mlp = parts.get(3);
                weights.put(in + "input_layernorm", full(parts.get(0), "weight", manager));
                weights.put(in + "self_attn.q_proj", full(attention, "query", manager));
                weights.put(in + "self_attn.k_proj", full(attention, "key", manager));
                weights.put(in + "self_attn.v_proj", full(attention, "value", manager));
                weights.put(in + "self_attn.o_proj", full(attention, "output", manager));
                weights.put(in + "post_attention_layernorm", full(parts.get(2), "weight", manager));
                weights.put(in + "mlp.gate_proj", full(mlp, "gate", manager));
                weights.put(in + "mlp.up_proj", full(mlp, "up", manager));
                weights.put(in + "mlp.down_proj", full(mlp, "down", manager));
            }
            weights.put("model.norm", full(blocks.get(1 + LAYERS), "weight", manager));
            if (tensor.rank() == 0) {
                TrainedLlama.write(settings.llama, config, weights);
            }
        }
    }

    private static NDArray full(Block block, String parameter, NDManager manager) {
        return ((ShardedBlock) block).full(parameter, manager);
    }

    /**
     * Has the model go on from the beginning of the text; on all ranks that share it.
     *
     * @param length the number of bytes, with the beginning
     */
    private String write(Trainer trainer, ProcessGroup tensor, int length) {
        Random random = new Random(settings.seed);
        byte[] written = Arrays.copyOf(text, length);
        for (int i = PROMPT; i < written.length; i++) {
            // What follows the last token does not matter to it.
            long[] context = new long[settings.context];
            context[0] = TrainedLlama.BEGIN;
            int begin = Math.max(0, i - settings.context + 1);
            for (int k = begin; k < i; k++) {
                context[1 + k - begin] = Byte.toUnsignedInt(written[k]);
            }
            try (NDManager manager = trainer.getManager().newSubManager(trainer.getDevices()[0])) {
                NDList input = new NDList(manager.create(context));
                NDArray part = trainer.evaluate(input).singletonOrThrow();
                NDArray scores = DifferentiableCollectives.allGather(part, -1, tensor);
                NDArray last = scores.get((i - begin) + ", :" + TrainedLlama.BYTES);
                written[i] = (byte) draw(Torch.cast(last, ScalarType.FLOAT32).softmax(0), random);
            }
        }
        return new String(written, StandardCharsets.UTF_8);
    }

    private static int draw(NDArray distribution, Random random) {
        float[] probabilities = distribution.toFloatArray();
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

// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.train;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.gradient.DifferentiableCollectives;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.files.ByteLevelTokenizer;
import org.djlx.llm.files.LlamaDirectory;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.sampling.Constraint;
import org.djlx.llm.sampling.Grammar;
import org.djlx.llm.sampling.Logits;
import org.djlx.llm.sampling.Sampler;
import org.djlx.llm.sampling.Vocabulary;
import org.djlx.llm.tune.TrainableModel;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.DataParallelConfig;
import org.djlx.training.GradientReduction;
import org.djlx.training.checkpoint.CheckpointManager;
import org.djlx.training.checkpoint.TrainingProgress;

/**
 * One rank of a training: a small Llama learns to predict the next byte of a text. Ranks share a
 * model (tensor parallel) or a batch (data parallel). Random numbers depend on the seed alone, so
 * any number of ranks has the same losses, up to rounding.
 *
 * <p>The last tenth of the text is held out: the model never trains on it. The loss there shows
 * whether the model learns the language or only the text.
 */
final class TrainJob {

    private static final int SIZE = 128;
    private static final int LAYERS = 3;
    private static final int HEADS = 8;
    private static final int KEY_VALUE_HEADS = 4;
    private static final int HIDDEN = 256;
    private static final int LOSSES = 200; // that a training computes
    private static final int PROMPT = 16; // bytes
    private static final int SHORT_SAMPLE = 144; // bytes, at most
    private static final int FEWEST_STEPS_SAMPLED = 8;
    private static final int REPORTS = 10;
    private static final int HELD_OUT_PART = 10; // a tenth
    private static final double TEMPERATURE = 0.7;
    private static final int BEGIN =
            new ByteLevelTokenizer(ByteLevelTokenizer.SMALLEST).id(ByteLevelTokenizer.BEGIN);
    private static final Grammar TEXT = Grammar.regex("[^\\x00]*"); // valid UTF-8
    private static final Vocabulary BYTES =
            new Vocabulary(
                    IntStream.range(0, ByteLevelTokenizer.BYTES)
                            .mapToObj(value -> new byte[] {(byte) value})
                            .toList(),
                    ByteLevelTokenizer.BYTES);

    /**
     * Settings of a training. Activations are of bfloat16 or float32, as parameters.
     *
     * @param tensorParallel how many neighbouring ranks share a model
     * @param context the tokens of a piece of text: the token that begins every text, then bytes
     * @param batch the pieces of text in a batch of all ranks
     * @param checkpoints the folder of checkpoints; null for none
     * @param llama the folder that the trained model is written to; null for none
     * @param sample the bytes that the trained model writes
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

    interface Listener {

        /** The job resumes from a checkpoint, whose step may be larger than the number of steps. */
        void restored(long step);

        default void saved(long step) {}

        /**
         * The model wrote a sample before it was trained (0), or after a part of the steps. Called
         * on the ranks that share the first rank's model.
         */
        default void sampled(int percent, String text) {}

        /**
         * The losses of a batch of all ranks and on the held-out part; called about 200 times in a
         * training.
         */
        void trained(int step, float loss, float heldOut);

        /** This rank has done a step; its loss is not known. */
        default void stepped(int step, double tokensPerSecond) {}
    }

    private final byte[] text;
    private final int trainLength; // bytes before the held-out part
    private final Settings settings;
    private final Listener listener;

    TrainJob(byte[] text, Settings settings, Listener listener) {
        this.text = text;
        trainLength = text.length - Math.max(settings.context, text.length / HELD_OUT_PART);
        this.settings = settings;
        this.listener = listener;
    }

    /** The bytes of the shortest text that can be learned. */
    static int shortest(int context) {
        return Math.max(4 * context, PROMPT);
    }

    /** The steps between two reports. */
    static int tenth(int steps) {
        return Math.max(1, steps / REPORTS);
    }

    /** The model's attention heads, which the ranks of a model divide. */
    static int heads() {
        return HEADS;
    }

    private TrainableModel model(ProcessGroup tensor) throws IOException {
        ModelConfig config =
                LlamaDirectory.config(
                        ByteLevelTokenizer.SMALLEST,
                        SIZE,
                        HIDDEN,
                        LAYERS,
                        HEADS,
                        KEY_VALUE_HEADS,
                        settings.context,
                        10_000,
                        true,
                        ScalarType.FLOAT32);
        return TrainableModel.builder()
                .setGroup(tensor)
                .setConfig(config)
                .optComputeType(settings.bfloat16 ? ScalarType.BFLOAT16 : ScalarType.FLOAT32)
                .optSequenceParallel(settings.context)
                .build();
    }

    /** Returns an initializer that gives all ranks the same full weights. */
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

    /** Returns the text that the model generated; empty on ranks of other copies of the model. */
    String run() throws IOException {
        ProcessGroup all = settings.group;
        int rank = all.rank();
        try (ProcessGroup tensor = all.split(rank / settings.tensorParallel, rank);
                ProcessGroup data = all.split(rank % settings.tensorParallel, rank);
                Model model = Model.newInstance("train", all.device(), "PyTorch-P2P")) {
            TrainableModel llama = model(tensor);
            llama.block().setInitializer(weights(), Parameter.Type.WEIGHT);
            model.setBlock(llama.block());
            DataParallelConfig config =
                    new DataParallelConfig(llama.loss())
                            .optGradientReduction(GradientReduction.MEAN)
                            .optProcessGroup(data);
            config.optDevices(new Device[] {all.device()});
            Tracker rate = Tracker.fixed(0.002f);
            config.optOptimizer(Optimizer.adam().optLearningRateTracker(rate).build());
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(settings.context));
                train(trainer, data, tensor);
                if (settings.llama != null && data.rank() == 0) {
                    if (tensor.rank() == 0) {
                        LlamaDirectory.writeAllButWeights(settings.llama, llama.config(), 1);
                    }
                    llama.save(settings.llama);
                }
                return data.rank() == 0 ? write(trainer, tensor, settings.sample) : "";
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
            }
        }
        if (done == 0) {
            sample(trainer, data, tensor, 0);
        }
        int every = Math.max(1, settings.steps / LOSSES);
        int tenth = tenth(settings.steps);
        long begin = System.nanoTime();
        for (int step = (int) done + 1; step <= settings.steps; step++) {
            boolean last = step == settings.steps;
            boolean reported = step == 1 || step % every == 0 || step % tenth == 0 || last;
            float loss = step(trainer, data, step, reported);
            double seconds = (System.nanoTime() - begin) / 1e9;
            double speed = (double) (step - done) * settings.batch * settings.context / seconds;
            if (reported) {
                float heldOut = heldOutLoss(trainer, data);
                listener.trained(step, loss, heldOut);
            }
            listener.stepped(step, speed);
            if (checkpoints != null && (step % settings.checkpointEvery == 0 || last)) {
                checkpoints.save(trainer, new TrainingProgress(step, 0, step));
                listener.saved(step);
            }
            for (int percent = 25; percent <= 50; percent += 25) {
                if (settings.steps >= FEWEST_STEPS_SAMPLED
                        && step == settings.steps * percent / 100) {
                    sample(trainer, data, tensor, percent);
                }
            }
        }
    }

    private void sample(Trainer trainer, ProcessGroup data, ProcessGroup tensor, int percent) {
        if (data.rank() == 0) {
            int bytes = Math.min(SHORT_SAMPLE, settings.sample);
            listener.sampled(percent, write(trainer, tensor, bytes));
        }
    }

    private Path checkpoints(int part) {
        boolean divided = settings.tensorParallel > 1;
        return divided ? settings.checkpoints.resolve("part-" + part) : settings.checkpoints;
    }

    /** Trains on a batch; returns its mean loss over all ranks if {@code wanted}, otherwise NaN. */
    private float step(Trainer trainer, ProcessGroup data, int step, boolean wanted) {
        Random random = new Random(settings.seed * 1_000_003 + step);
        int[] begins = new int[settings.batch];
        Arrays.setAll(begins, i -> random.nextInt(trainLength - settings.context + 1));
        try (NDManager manager = trainer.getManager().newSubManager(trainer.getDevices()[0])) {
            NDList input = new NDList();
            NDList labels = new NDList();
            addPieces(begins, data, manager, input, labels);
            NDArray loss;
            try (GradientCollector collector = trainer.newGradientCollector()) {
                loss = trainer.getLoss().evaluate(labels, trainer.forward(input, labels));
                collector.backward(loss);
            }
            trainer.step();
            return wanted ? mean(loss.stopGradient(), data) : Float.NaN;
        }
    }

    /** Returns the loss on a batch of pieces spread over the held-out part. */
    private float heldOutLoss(Trainer trainer, ProcessGroup data) {
        int last = text.length - settings.context;
        int[] begins = new int[settings.batch];
        Arrays.setAll(
                begins,
                i -> trainLength + (int) ((long) (last - trainLength) * i / settings.batch));
        try (NDManager manager = trainer.getManager().newSubManager(trainer.getDevices()[0])) {
            NDList input = new NDList();
            NDList labels = new NDList();
            addPieces(begins, data, manager, input, labels);
            NDList predictions = trainer.evaluate(input);
            return mean(
                    NoGradient.get(() -> trainer.getLoss().evaluate(labels, predictions)), data);
        }
    }

    private static float mean(NDArray loss, ProcessGroup data) {
        data.allReduce(loss, ReduceOp.AVG).await();
        return loss.getFloat();
    }

    /** Adds this rank's part of a batch: pieces of text, and the bytes that follow each token. */
    private void addPieces(
            int[] begins, ProcessGroup data, NDManager manager, NDList input, NDList labels) {
        int own = begins.length / data.worldSize();
        int context = settings.context;
        long[] tokens = new long[own * context];
        long[] next = new long[own * context];
        for (int row = 0; row < own; row++) {
            int begin = begins[own * data.rank() + row];
            for (int i = 0; i < context; i++) {
                tokens[row * context + i] = i == 0 ? BEGIN : token(begin + i - 1);
                next[row * context + i] = token(begin + i);
            }
        }
        input.add(manager.create(tokens));
        labels.add(manager.create(next));
    }

    private int token(int place) {
        return Byte.toUnsignedInt(text[place]);
    }

    /**
     * Generates valid UTF-8 that continues the beginning of the text by {@code count} bytes,
     * without a last character that they cut. All ranks of the model call this and sample the same.
     */
    private String write(Trainer trainer, ProcessGroup tensor, int count) {
        Sampler sampler = sampler();
        byte[] prompt = decode(text, PROMPT).getBytes(StandardCharsets.UTF_8);
        byte[] written = Arrays.copyOf(prompt, prompt.length + count);
        for (int i = prompt.length; i < written.length; i++) {
            // The padding after the last token does not affect the last token's prediction.
            long[] context = new long[settings.context];
            context[0] = BEGIN;
            int begin = Math.max(0, i - settings.context + 1);
            for (int k = begin; k < i; k++) {
                context[1 + k - begin] = Byte.toUnsignedInt(written[k]);
            }
            try (NDManager manager = trainer.getManager().newSubManager(trainer.getDevices()[0])) {
                NDList input = new NDList(manager.create(context));
                NDArray part = trainer.evaluate(input).singletonOrThrow();
                NDArray all = DifferentiableCollectives.allGather(part, -1, tensor);
                NDArray last =
                        all.get((i - begin) + ", :" + ByteLevelTokenizer.BYTES).expandDims(0);
                Logits logits = Logits.of(Torch.cast(last, ScalarType.FLOAT32));
                Sampler.SampledToken next = Sampler.sample(logits, List.of(sampler.next())).get(0);
                if (next == null) { // A logit is NaN: the training has diverged.
                    return decode(written, i);
                }
                sampler.append(next.token());
                written[i] = (byte) next.token();
            }
        }
        return decode(written, written.length);
    }

    private Sampler sampler() {
        GenerationRequest request =
                GenerationRequest.builder()
                        .setPromptTokens(BEGIN)
                        .optTemperature(TEMPERATURE)
                        .optSeed(settings.seed)
                        .build();
        Sampler sampler = new Sampler(request, new int[0], Set.of());
        sampler.follow(new Constraint(TEXT, BYTES));
        return sampler;
    }

    /** Decodes the first bytes of a text, without a last character that they cut. */
    private static String decode(byte[] utf8, int length) {
        return new String(utf8, 0, length, StandardCharsets.UTF_8).replaceFirst("\ufffd\\z", "");
    }
}

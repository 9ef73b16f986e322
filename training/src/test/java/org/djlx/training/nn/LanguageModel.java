// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;

/**
 * A small Llama of two layers on one rank: all blocks, with names for their parameters.
 *
 * @param model the blocks in a row
 * @param blocks those with parameters, by name
 * @param loss the loss
 */
record LanguageModel(
        SequentialBlock model,
        Map<String, ShardedBlock> blocks,
        VocabularyParallelCrossEntropy loss) {

    static final int LAYERS = 2;
    static final long SIZE = 12;
    static final int HEAD_SIZE = 4;
    static final long HIDDEN = 16;
    static final float EPSILON = 1e-3f;
    static final int IGNORED = -100;

    /**
     * The configuration of a test.
     *
     * @param sequence the length of the sequences; 0 if the input's shape says it
     * @param computeType of activations; null for that of the parameters
     */
    record Settings(
            boolean sequenceParallel,
            int heads,
            int keyValueHeads,
            long vocabulary,
            boolean tied,
            long sequence,
            ScalarType computeType) {}

    static LanguageModel create(ProcessGroup group, Settings settings) {
        boolean divided = settings.sequenceParallel;
        RotaryEmbedding rotary =
                RotaryEmbedding.builder().setHeadSize(HEAD_SIZE).optBase(100).build();
        ParallelEmbedding embedding =
                ParallelEmbedding.builder()
                        .setGroup(group)
                        .optSequenceParallel(divided)
                        .setVocabulary(settings.vocabulary)
                        .setSize(SIZE)
                        .optComputeType(settings.computeType)
                        .build();
        SequentialBlock model = new SequentialBlock().add(embedding);
        Map<String, ShardedBlock> blocks = new LinkedHashMap<>();
        blocks.put("embedding", embedding);
        for (int i = 0; i < LAYERS; i++) {
            ParallelTransformerBlock layer =
                    ParallelTransformerBlock.builder()
                            .setGroup(group)
                            .optSequenceParallel(divided)
                            .setHeads(settings.heads)
                            .optKeyValueHeads(settings.keyValueHeads)
                            .setHeadSize(HEAD_SIZE)
                            .setHidden(HIDDEN)
                            .optRotary(rotary)
                            .optSequenceLength(settings.sequence)
                            .optEpsilon(EPSILON)
                            .build();
            model.add(layer);
            for (String name : layer.getChildren().keys()) {
                Block child = layer.getChildren().get(name);
                blocks.put(i + "." + name.substring(2), (ShardedBlock) child);
            }
        }
        RmsNorm norm =
                RmsNorm.builder()
                        .setGroup(group)
                        .optSequenceParallel(divided)
                        .optEpsilon(EPSILON)
                        .build();
        ColumnParallelLinear.Builder head =
                ColumnParallelLinear.builder()
                        .setGroup(group)
                        .optSequenceParallel(divided)
                        .optBias(!settings.tied);
        head = settings.tied ? head.optTied(embedding) : head.setUnits(settings.vocabulary);
        ColumnParallelLinear last = head.optPadded(true).build();
        blocks.put("norm", norm);
        blocks.put("head", last);
        model.add(norm).add(last);
        VocabularyParallelCrossEntropy loss =
                VocabularyParallelCrossEntropy.builder()
                        .setGroup(group)
                        .setVocabulary(settings.vocabulary)
                        .optIgnoredLabel(IGNORED)
                        .build();
        return new LanguageModel(model, blocks, loss);
    }

    /**
     * Sets an initializer of random numbers that depend only on the seed and the size of a
     * parameter.
     */
    void setInitializers(long seed) {
        model.setInitializer(
                (manager, shape, type) -> {
                    Random random = new Random(seed * 1000 + shape.size());
                    NDArray values =
                            manager.create(
                                    random.doubles(shape.size(), -0.5, 0.5).toArray(), shape);
                    return values.toType(type, false);
                },
                parameter -> true);
    }

    /** Collects all full parameters, on all ranks. */
    Map<String, NDArray> full(NDManager manager) {
        Map<String, NDArray> all = new LinkedHashMap<>();
        blocks.forEach(
                (block, of) -> {
                    for (Parameter parameter : of.getParameters().values()) {
                        String name = parameter.getName();
                        all.put(block + "." + name, of.full(name, manager));
                    }
                });
        return all;
    }

    /** Collects all full gradients, on all ranks. Overwrites the parameters. */
    Map<String, NDArray> fullGradients(NDManager manager) {
        for (ShardedBlock block : blocks.values()) {
            for (Parameter parameter : block.getParameters().values()) {
                NDArray array = parameter.getArray();
                try (NDArray gradient = array.getGradient()) {
                    NoGradient.run(() -> gradient.copyTo(array));
                }
            }
        }
        return full(manager);
    }
}

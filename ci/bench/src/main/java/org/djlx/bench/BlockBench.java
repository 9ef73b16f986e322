// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.util.Pair;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.nn.ParallelTransformerBlock;
import org.djlx.training.nn.RotaryEmbedding;

/**
 * Times the forward and backward pass of a sequence-parallel transformer block on one rank and, as
 * lower bounds, its matmuls and its attention alone.
 *
 * @param warmUp the uncounted rounds. The JVM compiles the host's code after some hundred rounds;
 *     until then the GPU waits for the host at the start of a round
 */
record BlockBench(
        ProcessGroup group, Size size, ScalarType type, int warmUp, int turns, int rounds) {

    /** The sizes of a block, as in Llama 3; {@code tokens} are those of all ranks. */
    record Size(int tokens, int size, int heads, int keyValueHeads, int headSize, int hidden) {}

    /** Milliseconds of the block, with the host running ahead of the GPU. */
    static final String BLOCK = "blockMilliseconds";

    /**
     * Milliseconds of the block, with an idle GPU at the start of each round: the GPU waits until
     * the host has launched the first kernels. In a model of many layers this happens once a step,
     * not once a block.
     */
    static final String FROM_IDLE = "blockFromIdleMilliseconds";

    static final String MATMULS = "matmulsMilliseconds";

    static final String ATTENTION = "attentionMilliseconds";

    /**
     * Milliseconds of the matmuls, then the attention. Matmuls at full power lower the GPU's clock,
     * so this is more than the sum of both times.
     */
    static final String BOTH = "matmulsAndAttentionMilliseconds";

    /** Returns the medians by their names in the report. */
    Map<String, Double> run() {
        Map<String, Double> medians = new LinkedHashMap<>();
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            Round block = block(manager);
            Round matmuls = matmuls(manager);
            Round attention = attention(manager);
            double fromIdle = median(block, 1);
            medians.put(BLOCK, median(block, rounds));
            medians.put(FROM_IDLE, fromIdle);
            medians.put(MATMULS, median(matmuls, rounds));
            medians.put(ATTENTION, median(attention, rounds));
            Round both =
                    own -> {
                        matmuls.run(own);
                        attention.run(own);
                    };
            medians.put(BOTH, median(both, rounds));
            return medians;
        }
    }

    private interface Round {
        void run(NDManager manager);
    }

    /**
     * Returns the median time of a round over all turns. A turn starts once all ranks have arrived
     * and all devices are idle.
     */
    private double median(Round round, int rounds) {
        double[] times = new double[turns];
        for (int i = -(warmUp + rounds - 1) / rounds; i < turns; i++) {
            try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
                NDArray mark = manager.zeros(new Shape(1));
                mark.getFloat(); // Waits for all queued work.
                group.barrier().await();
                long begin = System.nanoTime();
                for (int j = 0; j < rounds; j++) {
                    try (NDManager own = manager.newSubManager()) {
                        round.run(own);
                    }
                }
                // Waits for the device.
                NoGradient.get(() -> mark.add(mark).getFloat());
                if (i >= 0) {
                    times[i] = (System.nanoTime() - begin) / 1e6 / rounds;
                }
            }
        }
        return Stats.median(times);
    }

    private NDArray random(NDManager manager, long... shape) {
        return NoGradient.get(
                () ->
                        Torch.cast(
                                manager.randomNormal(0, 0.02f, new Shape(shape), DataType.FLOAT32),
                                type));
    }

    /** The block. It begins without gradients, as after a step of a trainer. */
    private Round block(NDManager manager) {
        ParallelTransformerBlock block =
                ParallelTransformerBlock.builder()
                        .setGroup(group)
                        .optSequenceParallel(true)
                        .setHeads(size.heads)
                        .optKeyValueHeads(size.keyValueHeads)
                        .setHeadSize(size.headSize)
                        .setHidden(size.hidden)
                        .optRotary(RotaryEmbedding.builder().setHeadSize(size.headSize).build())
                        .build();
        Shape shape = new Shape(size.tokens / group.worldSize(), size.size);
        block.setInitializer(new NormalInitializer(0.02f), Parameter.Type.WEIGHT);
        block.initialize(manager, DataType.FLOAT32, shape);
        ParameterStore store = new ParameterStore(manager, false);
        NDArray x = random(manager, shape.getShape());
        NDArray gradient = random(manager, shape.getShape());
        return round -> {
            try (GradientScope scope = GradientScope.open()) {
                NDArray input = input(scope, round, x);
                NDArray y = block.forward(store, new NDList(input), true).singletonOrThrow();
                scope.backward(List.of(y), List.of(gradient));
            }
            for (Pair<String, Parameter> parameter : block.getParameters()) {
                Torch.setGradient(store.getValue(parameter.getValue(), group.device(), true), null);
            }
        };
    }

    /** The matmuls of this rank's part of the block, each with both gradients. */
    private Round matmuls(NDManager manager) {
        int ranks = group.worldSize();
        long keyValue = 2L * Math.max(1, size.keyValueHeads / ranks) * size.headSize;
        long own = (long) size.heads * size.headSize / ranks;
        long[][] weights = {
            {size.size, own + keyValue},
            {own, size.size},
            {size.size, 2L * size.hidden / ranks},
            {size.hidden / ranks, size.size}
        };
        List<NDArray[]> all = new ArrayList<>();
        for (long[] shape : weights) {
            all.add(
                    new NDArray[] {
                        random(manager, size.tokens, shape[0]),
                        random(manager, shape),
                        random(manager, size.tokens, shape[1])
                    });
        }
        return round ->
                NoGradient.run(
                        () -> {
                            for (NDArray[] each : all) {
                                each[0].matMul(each[1]).close();
                                each[2].matMul(each[1].transpose()).close();
                                each[0].transpose().matMul(each[2]).close();
                            }
                        });
    }

    /** The attention of this rank's heads, with its gradients. */
    private Round attention(NDManager manager) {
        long ranks = group.worldSize();
        long own = size.heads / ranks;
        long shared = Math.max(1, size.keyValueHeads / ranks);
        NDArray queries = random(manager, 1, own, size.tokens, size.headSize);
        NDArray keys = random(manager, 1, shared, size.tokens, size.headSize);
        NDArray values = random(manager, 1, shared, size.tokens, size.headSize);
        NDArray gradient = random(manager, 1, own, size.tokens, size.headSize);
        return round -> {
            try (GradientScope scope = GradientScope.open()) {
                NDArray y =
                        Torch.attention(
                                input(scope, round, queries),
                                input(scope, round, keys),
                                input(scope, round, values),
                                true);
                scope.backward(List.of(y), List.of(gradient));
            }
        };
    }

    /** Returns an input that requires a gradient. The gradient is computed and dropped. */
    private static NDArray input(GradientScope scope, NDManager round, NDArray x) {
        NDArray input = x.stopGradient();
        input.attach(round);
        scope.record(
                "the layer before",
                List.of(x),
                List.of(),
                List.of(input),
                (inputs, kept, gradients) -> Collections.singletonList(null));
        return input;
    }
}

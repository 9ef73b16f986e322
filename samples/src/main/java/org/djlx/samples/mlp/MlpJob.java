// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.mlp;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.function.BinaryOperator;
import java.util.stream.Collectors;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.launch.cli.TextTable;
import org.djlx.fusedops.FallbackReason;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.UsageCounter;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * One rank of a tensor-parallel MLP on the bytes of a text, on the device of its group.
 *
 * <pre>
 *   x       (tokens / W, 256)     this rank's tokens
 *   hidden  (tokens, 1024 / W)    gelu(allGather(x) W1), this rank's columns of W1
 *   y       (tokens / W, 256)     reduceScatter(hidden W2), this rank's rows of W2
 * </pre>
 */
record MlpJob(ProcessGroup group, NDManager manager, ScalarType type) {

    private static final int EMBEDDING = 256;
    private static final int HIDDEN = 1024;
    private static final int MAX_TOKENS = 2048;
    private static final long SEED = 42;

    /**
     * The result that rank 0 reports.
     *
     * @param largestError the largest error of all ranks and operators, relative to the largest
     *     magnitude
     * @param operators a row for each operator
     */
    record Result(int tokens, double largestError, TextTable operators) {}

    /** One operator's result, with the largest error of all ranks. */
    private record Measured(NDArray result, double error) {}

    Result run(byte[] text) {
        int worldSize = group.worldSize();
        if (text.length < worldSize) {
            throw new IllegalArgumentException(
                    String.format(
                            "the text has %s bytes, fewer than there are ranks, %s; name a longer"
                                    + " one by --text, or give a lower --ranks",
                            text.length, worldSize));
        }
        // All ranks have the same number of tokens and hidden units.
        int tokens = Math.min(MAX_TOKENS, text.length) / worldSize * worldSize;
        int hiddenUnits = (HIDDEN + worldSize - 1) / worldSize * worldSize;
        NDArray x = embed(text, tokens);
        NDArray w1 = random(new Shape(EMBEDDING, hiddenUnits), 1);
        NDArray w2 = random(new Shape(hiddenUnits, EMBEDDING), 2);
        NDArray product = doubles(x).matMul(doubles(w1));
        NDArray y = Activation.gelu(product).matMul(doubles(w2));

        String ownTokens = range(tokens);
        String ownUnits = range(hiddenUnits);
        NDArray xShard = x.get(ownTokens);
        NDArray w1Shard = w1.get(":, " + ownUnits);
        NDArray w2Shard = w2.get(ownUnits);
        TextTable table = new TextTable("operator", "shape", "path", "largest error");
        Measured first =
                measure(
                        table,
                        "allGatherMatmul",
                        xShard,
                        w1Shard,
                        (a, b) ->
                                FusedOps.allGatherMatmul(a, List.of(b), 0, group, false)
                                        .outputs()
                                        .get(0),
                        product.get(":, " + ownUnits),
                        product);
        Measured second =
                measure(
                        table,
                        "matmulReduceScatter",
                        Activation.gelu(first.result),
                        w2Shard,
                        (a, b) -> FusedOps.matmulReduceScatter(a, b, ReduceOp.SUM, 0, group),
                        y.get(ownTokens),
                        y);
        return new Result(tokens, Math.max(first.error, second.error), table);
    }

    /** Returns this rank's part of a dimension. */
    private String range(int size) {
        int part = size / group.worldSize();
        return group.rank() * part + ":" + (group.rank() + 1) * part;
    }

    /** Returns the embedding of each byte of the text. */
    private NDArray embed(byte[] text, int tokens) {
        double[] table = gaussians(256 * EMBEDDING, 0, 1);
        double[] values = new double[tokens * EMBEDDING];
        for (int i = 0; i < tokens; i++) {
            System.arraycopy(table, (text[i] & 0xff) * EMBEDDING, values, i * EMBEDDING, EMBEDDING);
        }
        return Torch.cast(manager.create(values, new Shape(tokens, EMBEDDING)), type);
    }

    /** Returns weights that keep the variance of their input. */
    private NDArray random(Shape shape, int salt) {
        double deviation = 1 / Math.sqrt(shape.get(0));
        double[] values = gaussians((int) shape.size(), salt, deviation);
        return Torch.cast(manager.create(values, shape), type);
    }

    private static double[] gaussians(int count, int salt, double deviation) {
        Random random = new Random(SEED + salt);
        double[] values = new double[count];
        Arrays.setAll(values, i -> deviation * random.nextGaussian());
        return values;
    }

    /** Runs an operator, and adds it to the table. */
    private Measured measure(
            TextTable table,
            String name,
            NDArray a,
            NDArray b,
            BinaryOperator<NDArray> operator,
            NDArray expected,
            NDArray scale) {
        NDArray result;
        String path;
        try (UsageCounter usage = FusedOps.countUsage()) {
            result = operator.apply(a, b);
            path = path(usage);
        }
        double own =
                doubles(result).sub(expected).abs().max().getDouble()
                        / scale.abs().max().getDouble();
        NDArray largest = manager.create(new double[] {own});
        group.allReduce(largest, ReduceOp.MAX).await();
        double error = largest.getDouble(0);
        table.add(name, a.getShape() + " x " + b.getShape(), path, String.format("%.1e", error));
        return new Measured(result, error);
    }

    /** Returns the path that the operator took. Ranks may use different matmuls on one path. */
    private static String path(UsageCounter usage) {
        for (FallbackReason reason : FallbackReason.values()) {
            if (usage.fallbacks(reason) > 0) {
                return "fallback (" + reason + ")";
            }
        }
        return usage.choices().keySet().stream()
                .map(choice -> words(choice.path()))
                .distinct()
                .sorted()
                .collect(Collectors.joining(", "));
    }

    private static String words(Path path) {
        return switch (path) {
            case GATHERED -> path + " (all data at once)";
            case PIPELINED -> path + " (parts beside matmuls)";
            case FUSED, NCCL -> path.toString();
        };
    }

    private static NDArray doubles(NDArray array) {
        return Torch.cast(array, ScalarType.FLOAT64);
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.mlp;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.function.Supplier;
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
final class MlpJob implements AutoCloseable {

    private static final int EMBEDDING = 256;
    private static final int HIDDEN = 1024;
    private static final int MAX_TOKENS = 2048;
    private static final long SEED = 42;

    private final ProcessGroup group;
    private final NDManager manager;
    private final ScalarType type;
    private final int tokens;
    // The unsharded input and weights, rounded to the type, and this rank's shards.
    private final NDArray x;
    private final NDArray w1;
    private final NDArray w2;
    private final NDArray xShard;
    private final NDArray w1Shard;
    private final NDArray w2Shard;

    /**
     * The result that rank 0 reports.
     *
     * @param tokens the number of tokens
     * @param largestError the largest error of all ranks and operators, relative to the largest
     *     magnitude
     * @param operators a row for each operator
     */
    record Result(int tokens, double largestError, TextTable operators) {}

    MlpJob(ProcessGroup group, byte[] text, ScalarType type) {
        int worldSize = group.worldSize();
        if (text.length < worldSize) {
            throw new IllegalArgumentException(
                    String.format(
                            "the text has %s bytes, fewer than there are ranks, %s; name a longer"
                                    + " one by --text, or give a lower --ranks",
                            text.length, worldSize));
        }
        this.group = group;
        this.type = type;
        // All ranks have the same number of tokens and hidden units.
        int tokensPerRank = Math.min(MAX_TOKENS, text.length) / worldSize;
        int hiddenPerRank = (HIDDEN + worldSize - 1) / worldSize;
        int hidden = hiddenPerRank * worldSize;
        tokens = tokensPerRank * worldSize;
        manager = NDManager.newBaseManager(group.device(), "PyTorch");
        x = embed(text);
        w1 = random(new Shape(EMBEDDING, hidden), 1);
        w2 = random(new Shape(hidden, EMBEDDING), 2);
        int rank = group.rank();
        xShard = x.get(range(rank, tokensPerRank));
        w1Shard = w1.get(":, " + range(rank, hiddenPerRank));
        w2Shard = w2.get(range(rank, hiddenPerRank));
    }

    private static String range(int rank, int size) {
        return rank * size + ":" + (rank + 1) * size;
    }

    /** Returns the embedding of each byte of the text. */
    private NDArray embed(byte[] text) {
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

    Result run() {
        NDArray wideX = doubles(x);
        NDArray wideProduct = wideX.matMul(doubles(w1));
        NDArray wideY = Activation.gelu(wideProduct).matMul(doubles(w2));
        int columns = (int) w1Shard.getShape().get(1);
        int rows = (int) xShard.getShape().get(0);
        NDArray expectedProduct = wideProduct.get(":, " + range(group.rank(), columns));
        NDArray expectedY = wideY.get(range(group.rank(), rows));

        TextTable table = new TextTable("operator", "shape", "path", "largest error");
        Measured first = measure(this::gatherAndMultiply, expectedProduct, wideProduct);
        NDArray hidden = Activation.gelu(first.result());
        Measured second = measure(() -> multiplyAndScatter(hidden), expectedY, wideY);
        first.addTo(table, "allGatherMatmul", xShard, w1Shard);
        second.addTo(table, "matmulReduceScatter", hidden, w2Shard);
        return new Result(tokens, Math.max(first.error(), second.error()), table);
    }

    private NDArray gatherAndMultiply() {
        return FusedOps.allGatherMatmul(xShard, List.of(w1Shard), 0, group, false).outputs().get(0);
    }

    private NDArray multiplyAndScatter(NDArray hidden) {
        return FusedOps.matmulReduceScatter(hidden, w2Shard, ReduceOp.SUM, 0, group);
    }

    /** One operator's result, with the largest error of all ranks. */
    private record Measured(NDArray result, String path, double error) {

        void addTo(TextTable table, String operator, NDArray a, NDArray b) {
            table.add(
                    operator,
                    a.getShape() + " x " + b.getShape(),
                    path,
                    String.format("%.1e", error));
        }
    }

    private Measured measure(Supplier<NDArray> operator, NDArray expected, NDArray scale) {
        NDArray result;
        String path;
        try (UsageCounter usage = FusedOps.countUsage()) {
            result = operator.get();
            path = path(usage);
        }
        double error =
                doubles(result).sub(expected).abs().max().getDouble()
                        / scale.abs().max().getDouble();
        return new Measured(result, path, maxOverRanks(error));
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

    private double maxOverRanks(double value) {
        try (NDArray tensor = manager.create(new double[] {value})) {
            group.allReduce(tensor, ReduceOp.MAX).await();
            return tensor.getDouble(0);
        }
    }

    private static NDArray doubles(NDArray array) {
        return Torch.cast(array, ScalarType.FLOAT64);
    }

    @Override
    public void close() {
        manager.close();
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.torch.BlockMath;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * One operation on arrays of -1, 0 and 1, whose sums every element type holds exactly, compared
 * with libtorch's float64. Inputs, the operation and the comparison are separate steps, so that
 * ranks that share a GPU make no first call of libtorch while kernels of other ranks wait for them.
 * Inputs are copied from a pool on the GPU, and comparisons stay there: in the steps, no rank
 * copies from or to the host.
 */
final class ExactCase {

    /** What ranks have, and so the shapes of their arrays. */
    private enum Operands {
        /** A (rows, inner), and Bs (inner, columns) that are the same on all ranks. */
        SHARDS,
        /** As SHARDS, with one B of 16-column units. */
        GATED_SHARDS,
        /** A (ranks × rows, inner), and each rank's own B (inner, columns). */
        PRODUCTS,
        /** A (rows, columns). */
        TENSOR,
        /** A (ranks × rows, columns). */
        TENSORS,
        /** A (rows, hidden), a residual, and a weight (hidden). */
        NORMED,
        /** A (rows, inner), and each rank's own B (inner, columns). */
        TERMS,
        /** As SHARDS, in float8 with scales. */
        SCALED_SHARDS,
        /** As PRODUCTS, in float8 with scales. */
        SCALED_PRODUCTS,
        /** A (ranks × rows, columns), splits, and what the outputs hold before the call. */
        SPLIT;

        boolean hasBs() {
            return switch (this) {
                case TENSOR, TENSORS, NORMED, SPLIT -> false;
                default -> true;
            };
        }

        boolean isScaled() {
            return this == SCALED_SHARDS || this == SCALED_PRODUCTS;
        }
    }

    /** Runs an operation on this rank. */
    private interface Run {
        NDList run(ExactCase one, ProcessGroup group, NDList inputs);
    }

    /** Compares results in float64; gives {@link #differences} of each of them. */
    private interface Compare {
        NDList compare(ExactCase one, ProcessGroup group, NDArray pool, NDList results);
    }

    /** The table of operations: operands, call, expected results. */
    enum Kind {
        ALL_GATHER_MATMUL(
                Operands.SHARDS, ExactCase::allGatherMatmul, ExactCase::compareGatheredProducts),
        ALL_GATHER_GATED(Operands.GATED_SHARDS, ExactCase::allGatherGated, ExactCase::compareGated),
        MATMUL_REDUCE_SCATTER(
                Operands.PRODUCTS,
                (one, group, in) ->
                        new NDList(
                                FusedOps.matmulReduceScatter(
                                        in.get(0), in.get(1), ReduceOp.SUM, 0, group)),
                ExactCase::comparePartOfProducts),
        ALL_REDUCE(
                Operands.TENSOR,
                (one, group, in) -> one.allReduce(group, in),
                (one, group, pool, out) -> one.same(out, one.sum(group, pool))),
        ALL_REDUCE_RMS_NORM(Operands.NORMED, ExactCase::allReduceRmsNorm, ExactCase::compareNorm),
        LOW_CONTENTION_ALL_GATHER(
                Operands.TENSOR,
                (one, group, in) -> one.lowContention(group, in, group.worldSize()),
                (one, group, pool, out) -> one.same(out, one.gathered(group, pool))),
        LOW_CONTENTION_REDUCE_SCATTER(
                Operands.TENSORS,
                (one, group, in) -> one.lowContention(group, in, 1),
                (one, group, pool, out) -> one.same(out, one.part(group, one.sum(group, pool)))),
        MATMUL_ALL_REDUCE(
                Operands.TERMS,
                (one, group, in) ->
                        new NDList(FusedOps.matmulAllReduce(in.get(0), in.get(1), group)),
                (one, group, pool, out) -> one.same(out, one.sumOfProducts(group, pool))),
        ALL_GATHER_SCALED_MATMUL(
                Operands.SCALED_SHARDS,
                ExactCase::allGatherScaledMatmul,
                ExactCase::compareGatheredProducts),
        SCALED_MATMUL_REDUCE_SCATTER(
                Operands.SCALED_PRODUCTS,
                (one, group, in) ->
                        new NDList(
                                FusedOps.scaledMatmulReduceScatter(
                                        in.get(0),
                                        in.get(1),
                                        in.get(2),
                                        in.get(3),
                                        ReduceOp.SUM,
                                        0,
                                        group)),
                ExactCase::comparePartOfProducts),
        PIPELINED_ALL_GATHER(
                Operands.SHARDS,
                ExactCase::pipelinedAllGather,
                (one, group, pool, out) ->
                        one.same(out, one.gathered(group, pool).matMul(one.b(pool, 0)))),
        PIPELINED_PRODUCE_AND_ALL_TO_ALL(
                Operands.PRODUCTS,
                ExactCase::pipelinedProduceAndAllToAll,
                (one, group, pool, out) ->
                        one.same(
                                out,
                                NDArrays.concat(one.products(group, pool, Part.OF_THIS_RANK), 0))),
        ALL_TO_ALL_VDEV(Operands.SPLIT, ExactCase::allToAllVdev, ExactCase::compareSplit),
        ALL_TO_ALL_VDEV_2D(Operands.SPLIT, ExactCase::allToAllVdev, ExactCase::compareSplit),
        BARRIER_OF_SOME_RANKS(
                Operands.TENSOR, ExactCase::exchangeAmongSome, ExactCase::compareAmongSome);

        private final Operands operands;
        private final Run run;
        private final Compare compare;

        Kind(Operands operands, Run run, Compare compare) {
            this.operands = operands;
            this.run = run;
            this.compare = compare;
        }
    }

    /** The rows of each rank's A that a product has. */
    private enum Part {
        OF_THIS_RANK,
        ALL
    }

    /** The kinds of random cases: all, or those whose names match {@code test.soak.kinds}. */
    static final List<Kind> KINDS =
            Stream.of(Kind.values())
                    .filter(
                            kind ->
                                    kind.name()
                                            .matches(System.getProperty("test.soak.kinds", ".*")))
                    .toList();

    private static final OpType EXCHANGE = new OpType("exchangeAmongSome");
    private static final int MOST_ROWS = 700;
    private static final int MOST_INNER = 384;
    private static final int MOST_COLUMNS = 512;
    private static final int MOST_RANKS = 8;
    private static final int MOST_ELEMENTS = MOST_RANKS * MOST_ROWS * MOST_INNER;
    private static final int RESIDUAL = 300; // salts, behind those of As and Bs
    private static final int WEIGHT = 301;
    private static final int SCALES = 400;
    private static final int BEFORE = 500; // what outputs hold before the call
    private static final int MOST_ALIGN = 8;
    private static final float EPSILON = 0x1p-20f;
    private static final int POOL = MOST_ELEMENTS + (1 << 20);

    private final Kind kind;
    private final ScalarType type;
    private final int rows; // of a shard or a part
    private final int inner;
    private final List<Integer> columns; // of each B
    private final long seed;

    ExactCase(Kind kind, ScalarType type, int rows, int inner, List<Integer> columns, long seed) {
        this.kind = kind;
        this.type = type;
        this.rows = rows;
        this.inner = inner;
        this.columns = columns;
        this.seed = seed;
    }

    /**
     * A random operation: 1 to 700 rows a rank, any element type, mostly whole units of 8 elements.
     */
    static ExactCase random(Random random) {
        return random(KINDS.get(random.nextInt(KINDS.size())), random);
    }

    /** As {@link #random(Random)}, of one kind. */
    static ExactCase random(Kind kind, Random random) {
        List<ScalarType> types =
                List.of(
                        ScalarType.BFLOAT16,
                        ScalarType.FLOAT16,
                        ScalarType.BFLOAT16,
                        ScalarType.FLOAT32,
                        ScalarType.FLOAT64);
        // Kernels reduce no float64.
        boolean wide = kind.operands.hasBs() && kind.operands != Operands.TERMS;
        ScalarType type = types.get(random.nextInt(types.size() - (wide ? 0 : 1)));
        if (kind.operands.isScaled()) {
            type = ScalarType.BFLOAT16; // of the product
        }
        int unit = random.nextInt(5) == 0 ? 1 : 8;
        int rows = 1 + random.nextInt(random.nextBoolean() ? MOST_ROWS : 40);
        List<Integer> columns = new ArrayList<>();
        boolean several =
                EnumSet.of(Operands.SHARDS, Operands.SCALED_SHARDS).contains(kind.operands);
        int count = several ? 1 + random.nextInt(3) : 1;
        for (int i = 0; i < count; i++) {
            int width = 1 + random.nextInt(MOST_COLUMNS / unit);
            columns.add(
                    kind.operands == Operands.GATED_SHARDS ? 16 * (1 + width / 2) : unit * width);
        }
        int inner = unit * (1 + random.nextInt(MOST_INNER / unit));
        return new ExactCase(kind, type, rows, inner, columns, random.nextLong());
    }

    Kind kind() {
        return kind;
    }

    /** The same operation on other elements; sizes that the seed makes may differ. */
    ExactCase withOtherSeed() {
        return new ExactCase(kind, type, rows, inner, columns, seed + 6);
    }

    /**
     * Random elements from which all cases take theirs, the same on all ranks: -1, 0 and 1.
     *
     * @return an array of int8, in the manager
     */
    static NDArray pool(NDManager manager) {
        byte[] bytes = new byte[POOL];
        new Random(1).nextBytes(bytes);
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) ((bytes[i] & 3) == 0 ? -1 : (bytes[i] & 3) == 1 ? 1 : 0);
        }
        return manager.create(ByteBuffer.wrap(bytes), new Shape(POOL), DataType.INT8);
    }

    /**
     * What a rank has: A and the Bs, then their scales; of an all-reduce, the tensor; of a norm,
     * the residual and the weight behind it; of an all-to-all, the splits and the outputs behind
     * it.
     *
     * @param pool the {@link #pool}, to whose manager the inputs belong
     */
    NDList inputs(ProcessGroup group, NDArray pool) {
        ScalarType given = kind.operands.isScaled() ? ScalarType.FLOAT8_E4M3FN : type;
        NDList inputs = new NDList(array(pool, given, aShape(group), group.rank()));
        if (kind.operands == Operands.NORMED) {
            inputs.add(array(pool, type, aShape(group), RESIDUAL));
            inputs.add(array(pool, type, new Shape(hidden()), WEIGHT));
        }
        for (int i = 0; kind.operands.hasBs() && i < columns.size(); i++) {
            NDArray b = array(pool, given, bShape(i), bSalt(group.rank(), i));
            // The fused kernel gates Bs that are given by columns alone.
            boolean byColumns = kind.operands == Operands.GATED_SHARDS || kind.operands.isScaled();
            inputs.add(byColumns ? byColumns(b) : b);
        }
        if (kind.operands.isScaled()) {
            inputs.add(scaleOfA(group, pool, group.rank(), ScalarType.FLOAT32));
            for (int i = 0; i < columns.size(); i++) {
                inputs.add(scaleOfB(pool, i, ScalarType.FLOAT32));
            }
        }
        if (kind.operands == Operands.SPLIT) {
            inputs.add(pool.getManager().create(splits(group.worldSize(), group.rank())));
            inputs.add(array(pool, type, outputShape(group), BEFORE));
            inputs.add(array(pool, type, aShape(group), BEFORE + 1));
        }
        return inputs;
    }

    /**
     * Multiplies as the caller's computations of a pipeline will: cuBLAS loads its kernels, which
     * must not happen while kernels on the same GPU wait for this rank; see optSharedGpus.
     */
    void loadCallersProducts(ProcessGroup group, NDList inputs) {
        boolean gathers = kind == Kind.PIPELINED_ALL_GATHER;
        if (!gathers && kind != Kind.PIPELINED_PRODUCE_AND_ALL_TO_ALL) {
            return;
        }
        NDArray b = inputs.get(1);
        Shape shape = new Shape((long) rows * group.worldSize(), columns.get(0));
        try (NDArray products = Torch.empty(b.getManager(), shape, type)) {
            for (int rank = 0; rank < group.worldSize(); rank++) {
                try (NDArray part = rowsOf(products, rank);
                        NDArray a = rowsOf(inputs.get(0), gathers ? 0 : rank)) {
                    Torch.mmOut(part, a, b);
                }
            }
        }
    }

    /** Returns a rank's rows of an array. */
    private NDArray rowsOf(NDArray array, int rank) {
        return Torch.narrow(array, 0, (long) rows * rank, rows);
    }

    private static NDArray byColumns(NDArray b) {
        try (NDArray turned = b.transpose()) {
            NDArray copy = Torch.empty(b.getManager(), turned.getShape(), Torch.scalarType(b));
            Torch.copy(copy, turned);
            b.close();
            return copy.transpose();
        }
    }

    private int bSalt(int rank, int i) {
        return switch (kind.operands) {
            case PRODUCTS, SCALED_PRODUCTS, TERMS -> 100 + rank;
            default -> 200 + i;
        };
    }

    private Shape aShape(ProcessGroup group) {
        long all = (long) rows * group.worldSize();
        return switch (kind.operands) {
            case TENSOR -> new Shape(rows, columns.get(0));
            case TENSORS, SPLIT -> new Shape(all, columns.get(0));
            case NORMED -> new Shape(rows, hidden());
            case PRODUCTS, SCALED_PRODUCTS -> new Shape(all, inner);
            case SHARDS, GATED_SHARDS, SCALED_SHARDS, TERMS -> new Shape(rows, inner);
        };
    }

    /** The elements of a row that is normalised: up to 4096. */
    private int hidden() {
        return 8 * columns.get(0);
    }

    private Shape bShape(int i) {
        return new Shape(inner, columns.get(i));
    }

    /** The elements of the pool from a place that the seed and the salt tell. */
    private NDArray array(NDArray pool, ScalarType as, Shape shape, int salt) {
        int size = (int) shape.size();
        int begin = new Random(seed * 1_000_003 + salt).nextInt(POOL - size + 1);
        try (NDArray flat = Torch.narrow(pool, 0, begin, size);
                NDArray shaped = flat.reshape(shape)) {
            return Torch.cast(shaped, as);
        }
    }

    /** Whether each row of A and each column of B has a scale; otherwise there is one of each. */
    private boolean scalesByRow() {
        return (seed & 1) == 0;
    }

    /** The scales of a rank's A, which are 0.5, 1 or 2. Where ranks add, all have the same. */
    private NDArray scaleOfA(ProcessGroup group, NDArray pool, int rank, ScalarType as) {
        boolean own = scalesByRow() && kind.operands == Operands.SCALED_SHARDS;
        Shape shape = scalesByRow() ? new Shape(aShape(group).get(0), 1) : new Shape(1);
        return scale(pool, as, shape, SCALES + (own ? 1 + rank : 0));
    }

    private NDArray scaleOfB(NDArray pool, int i, ScalarType as) {
        Shape shape = scalesByRow() ? new Shape(1, columns.get(i)) : new Shape(1);
        return scale(pool, as, shape, SCALES + 50 + i);
    }

    private NDArray scale(NDArray pool, ScalarType as, Shape shape, int salt) {
        NDArray exponent = array(pool, as, shape, salt);
        return exponent.mul(exponent).mul(0.25).add(exponent.mul(0.75)).add(1);
    }

    /** The experts of each rank; 1 in the 1-D form. */
    private int experts() {
        return kind == Kind.ALL_TO_ALL_VDEV ? 1 : 1 + (int) Math.floorMod(seed, 3L);
    }

    private int align() {
        return kind == Kind.ALL_TO_ALL_VDEV ? 0 : (int) Math.floorMod(seed >> 8, MOST_ALIGN + 1L);
    }

    /** The rows that a rank sends to each expert of all ranks. */
    private long[] splits(int worldSize, int rank) {
        return new Random(seed * 31 + rank)
                .longs((long) worldSize * experts(), 0, rows / experts() + 1)
                .toArray();
    }

    private Shape outputShape(ProcessGroup group) {
        long most = (long) rows * group.worldSize() + experts() * MOST_ALIGN;
        return new Shape(most, columns.get(0));
    }

    /** Runs the operation on this rank; a GPU may not have ended it when this returns. */
    NDList run(ProcessGroup group, NDList inputs) {
        return kind.run.run(this, group, inputs);
    }

    private NDList allReduce(ProcessGroup group, NDList inputs) {
        NDArray sum = Torch.cast(inputs.get(0), type); // the input stays as it is
        group.allReduce(sum, ReduceOp.SUM).await();
        return new NDList(sum);
    }

    private NDList allReduceRmsNorm(ProcessGroup group, NDList inputs) {
        NormedResidual normed =
                FusedOps.allReduceRmsNorm(
                        inputs.get(0), inputs.get(1), inputs.get(2), EPSILON, group);
        return new NDList(normed.residual(), normed.norm());
    }

    /** An all-gather if the output has the rows of all ranks; otherwise a reduce-scatter. */
    private NDList lowContention(ProcessGroup group, NDList inputs, int parts) {
        NDArray input = inputs.get(0);
        Shape shape = new Shape((long) parts * rows, columns.get(0));
        NDArray output = Torch.empty(input.getManager(), shape, type);
        Work work =
                parts > 1
                        ? LowContention.allGather(group, output, input)
                        : LowContention.reduceScatter(group, output, input, ReduceOp.SUM);
        work.await();
        return new NDList(output);
    }

    private NDList allGatherMatmul(ProcessGroup group, NDList inputs) {
        GatheredMatmul result =
                FusedOps.allGatherMatmul(
                        inputs.get(0), new ArrayList<>(inputs.subList(1, inputs.size())), 0, group);
        NDList all = new NDList(result.gathered().orElseThrow());
        all.addAll(result.outputs());
        return all;
    }

    private NDList allGatherScaledMatmul(ProcessGroup group, NDList inputs) {
        int bs = columns.size();
        GatheredMatmul result =
                FusedOps.allGatherScaledMatmul(
                        inputs.get(0),
                        inputs.subList(1, 1 + bs),
                        inputs.get(1 + bs),
                        inputs.subList(2 + bs, 2 + 2 * bs),
                        0,
                        group,
                        true);
        NDList all = new NDList(result.gathered().orElseThrow());
        all.addAll(result.outputs());
        return all;
    }

    private NDList pipelinedAllGather(ProcessGroup group, NDList inputs) {
        NDArray b = inputs.get(1);
        Shape shape = new Shape((long) rows * group.worldSize(), columns.get(0));
        NDArray products = Torch.empty(b.getManager(), shape, type);
        FusedOps.pipelinedAllGather(
                inputs.get(0),
                (shard, rank) -> {
                    try (NDArray part = rowsOf(products, rank)) {
                        Torch.mmOut(part, shard, b);
                    }
                },
                group);
        return new NDList(products);
    }

    private NDList pipelinedProduceAndAllToAll(ProcessGroup group, NDList inputs) {
        NDArray b = inputs.get(1);
        Shape shape = new Shape((long) rows * group.worldSize(), columns.get(0));
        NDArray output = Torch.empty(b.getManager(), shape, type);
        FusedOps.pipelinedProduceAndAllToAll(
                (chunk, rank) -> {
                    try (NDArray part = rowsOf(inputs.get(0), rank)) {
                        Torch.mmOut(chunk, part, b);
                    }
                },
                output,
                group);
        return new NDList(output);
    }

    /** In the 2-D form, there and back. */
    private NDList allToAllVdev(ProcessGroup group, NDList inputs) {
        NDArray splits = inputs.get(1);
        NDManager manager = splits.getManager();
        Shape two = new Shape(2, splits.size());
        NDArray output = Torch.cast(inputs.get(2), type);
        NDArray routed = Torch.empty(manager, two, ScalarType.INT64);
        if (kind == Kind.ALL_TO_ALL_VDEV) {
            VariableAllToAll.allToAllVdev(group, output, inputs.get(0), splits, routed).await();
            return new NDList(output, routed);
        }
        NDArray back = Torch.cast(inputs.get(3), type);
        NDArray returned = Torch.empty(manager, two, ScalarType.INT64);
        VariableAllToAll.allToAllVdev2d(group, output, inputs.get(0), splits, routed, align())
                .await();
        VariableAllToAll.allToAllVdev2dOffset(group, back, output, routed, returned).await();
        return new NDList(output, routed, back, returned);
    }

    /**
     * The ranks are divided in two; each part exchanges its tensors between barriers of its own.
     */
    private int[] some(ProcessGroup group) {
        return IntStream.range(0, group.worldSize())
                .filter(rank -> (seed >> rank & 1) == (seed >> group.rank() & 1))
                .toArray();
    }

    /** The tensors of the ranks of this rank's part, one after another. */
    private NDList exchangeAmongSome(ProcessGroup group, NDList inputs) {
        P2pBuffers buffers = group.p2pBuffers().orElseThrow();
        int[] ranks = some(group);
        NDArray tensor = inputs.get(0);
        NDManager manager = tensor.getManager();
        Shape shape = new Shape((long) rows * ranks.length, columns.get(0));
        NDArray output = Torch.empty(manager, shape, type);
        long size = tensor.size() * type.itemSize();
        long half = buffers.bufferSize() / 2;
        group.execute(
                        EXCHANGE,
                        new Operation.Agreed(type, aShape(group).getShape(), null, 0),
                        operation -> {
                            buffers.intraNodeBarrier(operation, ranks);
                            for (int rank : ranks) {
                                long place = half + group.rank() * size;
                                copy(buffers, rank, place, tensor, true);
                            }
                            buffers.intraNodeBarrier(operation, ranks);
                            for (int i = 0; i < ranks.length; i++) {
                                try (NDArray part =
                                        Torch.narrow(output, 0, (long) rows * i, rows)) {
                                    copy(
                                            buffers,
                                            group.rank(),
                                            half + ranks[i] * size,
                                            part,
                                            false);
                                }
                            }
                            // The next operation may write to the same half.
                            buffers.intraNodeBarrier(operation);
                        })
                .await();
        return new NDList(output);
    }

    private void copy(P2pBuffers buffers, int rank, long place, NDArray array, boolean there) {
        NDManager manager = array.getManager();
        try (NDArray view = buffers.p2pBuffer(manager, rank, array.getShape(), type, place)) {
            Torch.copy(there ? view : array, there ? array : view);
        }
    }

    private NDList allGatherGated(ProcessGroup group, NDList inputs) {
        return new NDList(
                FusedOps.allGatherGated(inputs.get(0), inputs.get(1), ExactCase::gate, group));
    }

    /** Computes {@code silu(gates) * values}. */
    static NDArray gate(NDArray both) {
        long half = both.getShape().get(1) / 2;
        return BlockMath.siluGate(
                Torch.narrow(both, 1, 0, half), Torch.narrow(both, 1, half, half));
    }

    /**
     * Compares what came out with the same in float64.
     *
     * @param pool the {@link #pool}, to whose manager all arrays belong
     * @return for each array that came out two numbers, on the GPU: how many elements differ, and
     *     the index of the first one; 0 if there is none
     */
    NDList compare(ProcessGroup group, NDArray pool, NDList results) {
        return kind.compare.compare(this, group, pool, results);
    }

    /** As {@link #compare}, what differs between two runs; belongs to the manager. */
    static NDList changes(NDManager manager, NDList before, NDList after) {
        try (NDManager scratch = manager.newSubManager()) {
            NDList changes = new NDList();
            for (int i = 0; i < before.size(); i++) {
                NDArray one = Torch.alias(scratch, before.get(i));
                changes.add(differences(one.neq(after.get(i))));
            }
            changes.attach(manager);
            return changes;
        }
    }

    /** The As of all ranks. */
    private NDList as(ProcessGroup group, NDArray pool) {
        NDList as = new NDList();
        for (int rank = 0; rank < group.worldSize(); rank++) {
            as.add(array(pool, ScalarType.FLOAT64, aShape(group), rank));
        }
        return as;
    }

    private NDArray sum(ProcessGroup group, NDArray pool) {
        return sum(as(group, pool));
    }

    private static NDArray sum(NDList terms) {
        return terms.stream().reduce(NDArray::add).orElseThrow();
    }

    /** This rank's rows of an array with the rows of all. */
    private NDArray part(ProcessGroup group, NDArray all) {
        return Torch.narrow(all, 0, (long) rows * group.rank(), rows);
    }

    private NDList comparePartOfProducts(ProcessGroup group, NDArray pool, NDList results) {
        return same(results, sum(products(group, pool, Part.OF_THIS_RANK)));
    }

    private NDArray sumOfProducts(ProcessGroup group, NDArray pool) {
        return sum(products(group, pool, Part.ALL));
    }

    /** The product of each rank's A and B. */
    private NDList products(ProcessGroup group, NDArray pool, Part part) {
        NDList as = as(group, pool);
        NDList products = new NDList();
        for (int rank = 0; rank < as.size(); rank++) {
            NDArray b = array(pool, ScalarType.FLOAT64, bShape(0), bSalt(rank, 0));
            NDArray product = scaled(as.get(rank).matMul(b), pool, 0, scaleOfA(group, pool, rank));
            products.add(part == Part.ALL ? product : part(group, product));
        }
        return products;
    }

    private NDArray gathered(ProcessGroup group, NDArray pool) {
        return NDArrays.concat(as(group, pool), 0);
    }

    private NDList compareGatheredProducts(ProcessGroup group, NDArray pool, NDList results) {
        NDArray gathered = gathered(group, pool);
        NDArray scale = null;
        if (kind.operands.isScaled()) {
            NDList scales = new NDList();
            for (int rank = 0; rank < group.worldSize(); rank++) {
                scales.add(scaleOfA(group, pool, rank));
            }
            scale = scalesByRow() ? NDArrays.concat(scales, 0) : scales.get(0);
        }
        NDList expected = new NDList(gathered);
        for (int i = 0; i < columns.size(); i++) {
            expected.add(scaled(gathered.matMul(b(pool, i)), pool, i, scale));
        }
        return same(results, expected.toArray(new NDArray[0]));
    }

    /** A rank's scales of A in float64; null if the operator has none. */
    private NDArray scaleOfA(ProcessGroup group, NDArray pool, int rank) {
        return kind.operands.isScaled() ? scaleOfA(group, pool, rank, ScalarType.FLOAT64) : null;
    }

    private NDArray scaled(NDArray product, NDArray pool, int i, NDArray scaleOfA) {
        return scaleOfA == null
                ? product
                : product.mul(scaleOfA).mul(scaleOfB(pool, i, ScalarType.FLOAT64));
    }

    private NDList compareSplit(ProcessGroup group, NDArray pool, NDList results) {
        int ranks = group.worldSize();
        NDList as = as(group, pool);
        NDArray before = array(pool, ScalarType.FLOAT64, outputShape(group), BEFORE);
        NDList pieces = new NDList();
        long[] routed = new long[2 * ranks * experts()];
        long end = 0;
        for (int expert = 0; expert < experts(); expert++) {
            long begin = end;
            for (int source = 0; source < ranks; source++) {
                long[] sent = splits(ranks, source);
                int index = group.rank() * experts() + expert;
                int chunk = expert * ranks + source;
                routed[chunk] = sent[index];
                routed[routed.length / 2 + chunk] = end;
                long first = Arrays.stream(sent, 0, index).sum();
                addRows(pieces, as.get(source), first, sent[index]);
                end += sent[index];
            }
            long padded = align() == 0 ? 0 : Math.max(align(), end - begin + align() - 1);
            long next = align() == 0 ? end : begin + padded / align() * align();
            addRows(pieces, before, end, next - end);
            end = next;
        }
        addRows(pieces, before, end, before.getShape().get(0) - end);
        NDList expected = new NDList(NDArrays.concat(pieces, 0), longs(pool, routed));
        if (kind == Kind.ALL_TO_ALL_VDEV_2D) {
            long[] splits = splits(ranks, group.rank());
            long[] returned = Arrays.copyOf(splits, 2 * splits.length);
            for (int i = 1; i < splits.length; i++) {
                returned[splits.length + i] = returned[splits.length + i - 1] + splits[i - 1];
            }
            long sum = Arrays.stream(splits).sum();
            NDArray unsent = array(pool, ScalarType.FLOAT64, aShape(group), BEFORE + 1);
            NDList back = new NDList();
            addRows(back, as.get(group.rank()), 0, sum);
            addRows(back, unsent, sum, unsent.getShape().get(0) - sum);
            expected.add(NDArrays.concat(back, 0));
            expected.add(longs(pool, returned));
        }
        return same(results, expected.toArray(new NDArray[0]));
    }

    private static void addRows(NDList pieces, NDArray from, long begin, long count) {
        if (count > 0) {
            pieces.add(Torch.narrow(from, 0, begin, count));
        }
    }

    /** Splits and offsets, in float64. */
    private static NDArray longs(NDArray pool, long[] values) {
        double[] doubles = Arrays.stream(values).asDoubleStream().toArray();
        return pool.getManager().create(doubles, new Shape(2, values.length / 2));
    }

    private NDList compareAmongSome(ProcessGroup group, NDArray pool, NDList results) {
        NDList as = as(group, pool);
        NDList some = new NDList();
        for (int rank : some(group)) {
            some.add(as.get(rank));
        }
        return same(results, NDArrays.concat(some, 0));
    }

    private NDList compareGated(ProcessGroup group, NDArray pool, NDList results) {
        NDArray both = gathered(group, pool).matMul(b(pool, 0));
        int half = columns.get(0) / 2;
        NDArray gates = Torch.narrow(both, 1, 0, half);
        NDArray values = Torch.narrow(both, 1, half, half);
        NDArray expected = gates.mul(Activation.sigmoid(gates)).mul(values);
        return new NDList(close(expected, results.get(0)));
    }

    private NDList compareNorm(ProcessGroup group, NDArray pool, NDList results) {
        Shape shape = results.get(0).getShape();
        NDArray residual = sum(group, pool).add(array(pool, ScalarType.FLOAT64, shape, RESIDUAL));
        NDArray weight = array(pool, ScalarType.FLOAT64, new Shape(hidden()), WEIGHT);
        NDArray squares = residual.mul(residual).mean(new int[] {1}, true);
        NDArray norm = residual.div(squares.add(EPSILON).sqrt()).mul(weight);
        NDList right = same(new NDList(results.get(0)), residual);
        right.add(close(norm, results.get(1)));
        return right;
    }

    private NDArray b(NDArray pool, int i) {
        return array(pool, ScalarType.FLOAT64, bShape(i), bSalt(0, i));
    }

    private NDList same(NDList actual, NDArray... expected) {
        assertEquals(expected.length, actual.size(), toString());
        NDList differences = new NDList();
        for (int i = 0; i < expected.length; i++) {
            assertEquals(expected[i].getShape(), actual.get(i).getShape(), toString());
            try (NDArray wide = Torch.cast(actual.get(i), ScalarType.FLOAT64)) {
                differences.add(differences(expected[i].neq(wide)));
            }
        }
        return differences;
    }

    /** What is no sum of products is computed in float32, and rounded once. */
    private NDArray close(NDArray expected, NDArray actual) {
        assertEquals(expected.getShape(), actual.getShape(), toString());
        float epsilon = type == ScalarType.BFLOAT16 ? 0x1p-8f : 0x1p-11f;
        NDArray bound = expected.abs().mul(epsilon + 0x1p-14f).add(0x1p-24f);
        try (NDArray wide = Torch.cast(actual, ScalarType.FLOAT64)) {
            return differences(expected.sub(wide).abs().lte(bound).logicalNot());
        }
    }

    /** Counts the elements that differ, and finds the first. */
    private static NDArray differences(NDArray differ) {
        NDArray flat = differ.flatten().toType(DataType.INT64, false);
        NDArray first = flat.isEmpty() ? flat.sum() : flat.argMax();
        return NDArrays.stack(new NDList(flat.sum(), first));
    }

    @Override
    public String toString() {
        return String.format(
                "%s of %s, %d rows a rank, inner %d, columns %s, seed %d",
                kind, type, rows, inner, columns, seed);
    }
}

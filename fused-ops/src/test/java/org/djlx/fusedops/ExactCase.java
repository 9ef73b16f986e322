/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * One operation on arrays of -1, 0 and 1, compared with libtorch in float64. Every element type
 * holds the sums exactly. Inputs, operation and comparison are separate steps, so that ranks that
 * share a GPU make no first call of libtorch while kernels of other ranks wait for them.
 */
final class ExactCase {

    /** The operations. */
    enum Kind {
        ALL_GATHER_MATMUL,
        ALL_GATHER_GATED,
        MATMUL_REDUCE_SCATTER,
        ALL_REDUCE
    }

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
     * Returns a random operation: 1 to 700 rows per rank, any element type, mostly multiples of 8
     * elements.
     */
    static ExactCase random(Random random) {
        List<ScalarType> types =
                List.of(
                        ScalarType.BFLOAT16,
                        ScalarType.FLOAT16,
                        ScalarType.BFLOAT16,
                        ScalarType.FLOAT32,
                        ScalarType.FLOAT64);
        Kind kind = Kind.values()[random.nextInt(Kind.values().length)];
        ScalarType type =
                types.get(random.nextInt(types.size() - (kind == Kind.ALL_REDUCE ? 1 : 0)));
        int unit = random.nextInt(5) == 0 ? 1 : 8;
        int rows = 1 + random.nextInt(random.nextBoolean() ? 700 : 40);
        List<Integer> columns = new ArrayList<>();
        int count = kind == Kind.ALL_GATHER_MATMUL ? 1 + random.nextInt(3) : 1;
        for (int i = 0; i < count; i++) {
            int width = 1 + random.nextInt(512 / unit);
            columns.add(kind == Kind.ALL_GATHER_GATED ? 16 * (1 + width / 2) : unit * width);
        }
        int inner = unit * (1 + random.nextInt(384 / unit));
        return new ExactCase(kind, type, rows, inner, columns, random.nextLong());
    }

    Kind kind() {
        return kind;
    }

    /** The inputs of a rank: A and the Bs; for an all-reduce, the tensor. */
    NDList inputs(ProcessGroup group, NDManager manager) {
        NDList inputs = new NDList(array(manager, aShape(group), group.rank()));
        for (int i = 0; kind != Kind.ALL_REDUCE && i < columns.size(); i++) {
            NDArray b = array(manager, new Shape(inner, columns.get(i)), bSalt(group.rank(), i));
            // The gated kernel takes column-major Bs only.
            inputs.add(kind == Kind.ALL_GATHER_GATED ? byColumns(b) : b);
        }
        return inputs;
    }

    private static NDArray byColumns(NDArray b) {
        try (NDArray turned = b.transpose()) {
            NDArray copy = Torch.empty(b.getManager(), turned.getShape(), Torch.scalarType(b));
            Torch.copy(copy, turned);
            b.close();
            return copy.transpose();
        }
    }

    /** Returns the seed of a B. For a reduce-scatter it differs between ranks. */
    private int bSalt(int rank, int i) {
        return kind == Kind.MATMUL_REDUCE_SCATTER ? 100 + rank : 200 + i;
    }

    private Shape aShape(ProcessGroup group) {
        return switch (kind) {
            case ALL_REDUCE -> new Shape(rows, columns.get(0));
            case MATMUL_REDUCE_SCATTER -> new Shape((long) rows * group.worldSize(), inner);
            default -> new Shape(rows, inner);
        };
    }

    private NDArray array(NDManager manager, Shape shape, int salt) {
        byte[] bytes = new byte[(int) shape.size()];
        new Random(seed * 1_000_003 + salt).nextBytes(bytes);
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) ((bytes[i] & 3) == 0 ? -1 : (bytes[i] & 3) == 1 ? 1 : 0);
        }
        try (NDArray small = manager.create(ByteBuffer.wrap(bytes), shape, DataType.INT8)) {
            return Torch.cast(small, type);
        }
    }

    /** Runs the operation on this rank. On a GPU it may still run when this returns. */
    NDList run(ProcessGroup group, NDList inputs) {
        NDArray a = inputs.get(0);
        switch (kind) {
            case ALL_REDUCE:
                group.allReduce(a, ReduceOp.SUM).await();
                return new NDList(a);
            case MATMUL_REDUCE_SCATTER:
                return new NDList(
                        FusedOps.matmulReduceScatter(a, inputs.get(1), ReduceOp.SUM, 0, group));
            case ALL_GATHER_GATED:
                Optional<NDArray> gated = FusedOps.allGatherGated(a, inputs.get(1), group);
                if (gated.isPresent()) {
                    return new NDList(gated.get());
                }
                break;
            default:
        }
        GatheredMatmul result =
                FusedOps.allGatherMatmul(
                        a, new ArrayList<>(inputs.subList(1, inputs.size())), 0, group);
        NDList all = new NDList(result.gathered().orElseThrow());
        all.addAll(result.outputs());
        return all;
    }

    /** Compares the results with libtorch in float64. */
    void check(ProcessGroup group, NDManager manager, NDList results) {
        String where =
                String.format(
                        "%s of %s, %d rows, inner %d, columns %s, seed %d, rank %d of %d",
                        kind, type, rows, inner, columns, seed, group.rank(), group.worldSize());
        int ranks = group.worldSize();
        NDList as = new NDList();
        for (int rank = 0; rank < ranks; rank++) {
            as.add(wide(array(manager, aShape(group), rank)));
        }
        if (kind == Kind.ALL_REDUCE) {
            NDArray sum = as.get(0);
            for (int rank = 1; rank < ranks; rank++) {
                sum = sum.add(as.get(rank));
            }
            assertSame(sum, results.get(0), where);
            return;
        }
        if (kind == Kind.MATMUL_REDUCE_SCATTER) {
            NDArray sum = null;
            String own = rows * group.rank() + ":" + rows * (group.rank() + 1);
            for (int rank = 0; rank < ranks; rank++) {
                NDArray b = wide(array(manager, new Shape(inner, columns.get(0)), bSalt(rank, 0)));
                NDArray product = as.get(rank).get(own).matMul(b);
                sum = sum == null ? product : sum.add(product);
            }
            assertSame(sum, results.get(0), where);
            return;
        }
        NDArray gathered = NDArrays.concat(as, 0);
        if (results.size() == 1) {
            NDArray both = gathered.matMul(b(manager, 0));
            int half = columns.get(0) / 2;
            NDArray gates = both.get(":, :" + half);
            NDArray expected =
                    gates.mul(Activation.sigmoid(gates)).mul(both.get(":, " + half + ":"));
            assertClose(expected, results.get(0), where);
            return;
        }
        assertSame(gathered, results.get(0), where);
        for (int i = 0; i < columns.size(); i++) {
            assertSame(gathered.matMul(b(manager, i)), results.get(1 + i), where + ", B " + i);
        }
    }

    private NDArray b(NDManager manager, int i) {
        return wide(array(manager, new Shape(inner, columns.get(i)), bSalt(0, i)));
    }

    private static NDArray wide(NDArray array) {
        return Torch.cast(array, ScalarType.FLOAT64);
    }

    private static void assertSame(NDArray expected, NDArray actual, String where) {
        assertEquals(expected.getShape(), actual.getShape(), where);
        assertTrue(TestArrays.awaited(expected.eq(wide(actual)).all()).getBoolean(), where);
    }

    /** Compares within one rounding of the product and the error of a float32 sigmoid. */
    private void assertClose(NDArray expected, NDArray actual, String where) {
        assertEquals(expected.getShape(), actual.getShape(), where);
        float epsilon = type == ScalarType.BFLOAT16 ? 0x1p-8f : 0x1p-11f;
        NDArray bound = expected.abs().mul(epsilon + 0x1p-14f).add(0x1p-24f);
        NDArray close = expected.sub(wide(actual)).abs().lte(bound);
        assertTrue(TestArrays.awaited(close.all()).getBoolean(), where);
    }
}

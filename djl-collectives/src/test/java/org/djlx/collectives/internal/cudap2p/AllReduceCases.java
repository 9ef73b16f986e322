/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Reductions;
import org.djlx.collectives.TestArrays;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/** All-reduces between GPUs, and their results to the bit. */
final class AllReduceCases {

    static final List<ScalarType> TYPES =
            List.of(ScalarType.FLOAT32, ScalarType.FLOAT16, ScalarType.BFLOAT16);

    private AllReduceCases() {}

    /** What rank r contributes, made on this rank's GPU. */
    static NDArray input(NDManager manager, ScalarType type, long count, int rank, long salt) {
        return TestArrays.random(manager, type, new Shape(count), 7919 * salt + rank);
    }

    /** The result to the bit: rank order, float32, one rounding; computed by libtorch. */
    private static double[] expected(
            NDManager manager,
            ScalarType type,
            long count,
            long salt,
            ReduceOp op,
            int begin,
            int ranks) {
        List<NDArray> parts = new ArrayList<>();
        for (int rank = 0; rank < ranks; rank++) {
            parts.add(input(manager, type, count + begin, rank, salt).get(begin + ":"));
        }
        NDArray result = Torch.empty(manager, new Shape(count), type);
        Reductions.reduce(result, parts, op);
        return TestArrays.values(result);
    }

    private static void check(
            ProcessGroup group,
            NDManager manager,
            ScalarType type,
            long count,
            long salt,
            ReduceOp op,
            int begin) {
        try (NDManager scope = manager.newSubManager()) {
            NDArray whole = input(scope, type, count + begin, group.rank(), salt);
            NDArray tensor = begin == 0 ? whole : whole.get(begin + ":");
            group.allReduce(tensor, op).await();
            assertArrayEquals(
                    expected(scope, type, count, salt, op, begin, group.worldSize()),
                    TestArrays.values(tensor),
                    () -> type + " " + count + " " + op + " from " + begin);
        }
    }

    /** One-shot and two-shot, ends of packs, and every alignment. */
    static void check(ProcessGroup group, NDManager manager) {
        long salt = 0;
        for (ScalarType type : TYPES) {
            for (long count : new long[] {1, 7, 8, 9, 1000, 65_537, 200_003}) {
                for (int begin : new int[] {0, 1, 3}) {
                    ReduceOp op = ++salt % 2 == 0 ? ReduceOp.SUM : ReduceOp.AVG;
                    check(group, manager, type, count, salt, op, begin);
                }
            }
        }
        String dump = group.flightRecorder().dump().toJson();
        assertTrue(dump.contains("one_shot"), dump);
        assertTrue(dump.contains("two_shot"), dump);
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.fusedops.LowContentionCase.Place;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Random calls of the fused operators, low-contention collectives and all-to-alls, compared with
 * DJL in float64. Ranks with the same seed make the same calls. For one thread.
 */
final class RandomOperators {

    private static final List<ScalarType> TYPES =
            List.of(
                    ScalarType.FLOAT32,
                    ScalarType.FLOAT64,
                    ScalarType.FLOAT16,
                    ScalarType.BFLOAT16);
    private static final List<ScalarType> HALVES = List.of(ScalarType.FLOAT16, ScalarType.BFLOAT16);
    private static final int MOST_LONG_ROWS = 400; // of a norm, whose references take memory
    private static final int MOST_IN_HEAP = 50_000; // elements of a part; there is one a rank
    private static final int UNIT = 8; // elements, of which kernels want whole multiples

    private final ProcessGroup group;
    private final Random random;
    private final Map<String, Runnable> kinds = new LinkedHashMap<>();
    private final Map<String, Long> counts = new TreeMap<>();
    private boolean fusedOnly; // whether all operators must be possible on FUSED

    private RandomOperators(ProcessGroup group, long seed) {
        this.group = group;
        this.random = new Random(seed);
        kinds.put("allGatherMatmul", this::allGatherMatmul);
        kinds.put("matmulReduceScatter", this::matmulReduceScatter);
    }

    /** Returns calls of all operators and collectives. */
    static RandomOperators ofAll(ProcessGroup group, long seed) {
        RandomOperators all = new RandomOperators(group, seed);
        all.kinds.put("allReduceRmsNorm", all::allReduceRmsNorm);
        all.kinds.put("lowContentionAllGather", () -> all.lowContention(true));
        all.kinds.put("lowContentionReduceScatter", () -> all.lowContention(false));
        all.kinds.put("allToAllVdev", all::allToAllVdev);
        return all;
    }

    /**
     * Returns calls of fused matmuls that are possible on FUSED, which needs neither NCCL nor
     * cuBLAS.
     */
    static RandomOperators fusedOnly(ProcessGroup group, long seed) {
        RandomOperators fused = new RandomOperators(group, seed);
        fused.fusedOnly = true;
        return fused;
    }

    /** Calls each kind a number of times. Returns the number of calls of each kind. */
    Map<String, Long> run(int times) {
        for (int i = 0; i < times; i++) {
            kinds.forEach(
                    (name, kind) -> {
                        kind.run();
                        counts.merge(name, 1L, Long::sum);
                    });
        }
        return counts;
    }

    /** Returns an element type: mostly 16 bits, which have kernels of their own. */
    private ScalarType type() {
        List<ScalarType> types = fusedOnly || random.nextBoolean() ? HALVES : TYPES;
        return types.get(random.nextInt(types.size()));
    }

    /** Returns a size of whole units: mostly one tile, on a GPU up to several tiles. */
    private int wholeSize() {
        boolean large = group.device().isGpu() && random.nextInt(3) == 0;
        return UNIT * (1 + random.nextInt(large ? 75 : 12));
    }

    /** Returns a shape whose rows are whole units. */
    private Shape wholeShape(int dimensions) {
        long[] sizes = new long[dimensions];
        for (int i = 0; i < dimensions; i++) {
            sizes[i] = 1 + random.nextInt(3);
        }
        sizes[dimensions - 2] = 1 + random.nextInt(wholeSize());
        sizes[dimensions - 1] = wholeSize();
        return new Shape(sizes);
    }

    /** Returns a size, mostly small. It may be 0. */
    private int size() {
        return random.nextInt(10) == 0
                ? random.nextInt(2)
                : 1 + random.nextInt(random.nextInt(4) == 0 ? 90 : 20);
    }

    private Shape shape(int dimensions) {
        long[] sizes = new long[dimensions];
        for (int i = 0; i < dimensions; i++) {
            sizes[i] = dimensions < 4 ? size() : 1 + random.nextInt(6);
        }
        return new Shape(sizes);
    }

    /** Returns any dimension; on FUSED, not the last. */
    private int dim(int dimensions) {
        int dim = random.nextInt(2 * dimensions) - dimensions;
        return fusedOnly && Math.floorMod(dim, dimensions) == dimensions - 1 ? dim - 1 : dim;
    }

    private void allGatherMatmul() {
        int dimensions = 2 + random.nextInt(3);
        boolean whole = fusedOnly || random.nextBoolean();
        Shape shape = whole ? wholeShape(dimensions) : shape(dimensions);
        List<Integer> columns = new ArrayList<>();
        for (int i = random.nextInt(3); i >= 0; i--) {
            columns.add(whole ? wholeSize() : size());
        }
        int dim = dim(dimensions);
        call(shape, columns, dim).checkAllGatherMatmul(group, 1 + random.nextInt(3));
    }

    private void matmulReduceScatter() {
        int dimensions = 2 + random.nextInt(3);
        boolean whole = fusedOnly || random.nextBoolean();
        Shape shape = whole ? wholeShape(dimensions) : shape(dimensions);
        int columns = whole ? wholeSize() : size();
        int dim = dim(dimensions);
        int axis = dim < 0 ? dim + dimensions : dim;
        if (axis == dimensions - 1) {
            columns *= group.worldSize();
        } else {
            long[] sizes = shape.getShape().clone();
            sizes[axis] *= group.worldSize();
            shape = new Shape(sizes);
        }
        // FUSED divides by powers of two only, which rounds nothing.
        boolean sum = fusedOnly && Integer.bitCount(group.worldSize()) > 1;
        ReduceOp op = sum || random.nextBoolean() ? ReduceOp.SUM : ReduceOp.AVG;
        call(shape, List.of(columns), dim)
                .checkMatmulReduceScatter(group, op, 1 + random.nextInt(3));
    }

    private void allReduceRmsNorm() {
        long[] sizes = shape(1 + random.nextInt(4)).getShape();
        sizes[sizes.length - 1] = 1;
        boolean longer = random.nextInt(4) == 0 && new Shape(sizes).size() <= MOST_LONG_ROWS;
        sizes[sizes.length - 1] += random.nextInt(longer ? 5000 : 100);
        new NormCase(
                        NormCase.TYPES.get(random.nextInt(NormCase.TYPES.size())),
                        new Shape(sizes),
                        random.nextInt(3) == 0,
                        Math.scalb(1f, -random.nextInt(30)),
                        random.nextInt(1 << 30))
                .check(group, 1 + random.nextInt(3));
    }

    private void allToAllVdev() {
        int experts = random.nextInt(6);
        new VdevCase(
                        type(),
                        shape(random.nextInt(3)),
                        experts,
                        experts == 0 ? 0 : random.nextInt(10),
                        size(),
                        random.nextInt(1 << 20))
                .check(group);
    }

    private FusedCase call(Shape shape, List<Integer> columns, int dim) {
        return new FusedCase(
                type(), shape, columns, dim, random.nextInt(3) == 0, random.nextInt(1 << 30));
    }

    private void lowContention(boolean gathers) {
        Place[] places = Place.values();
        Shape part = shape(random.nextInt(4));
        while (part.size() > MOST_IN_HEAP) {
            part = shape(random.nextInt(4));
        }
        LowContentionCase one =
                new LowContentionCase(
                        type(),
                        part,
                        places[random.nextInt(group.isP2pAvailable() ? places.length : 3)],
                        random.nextInt(1 << 20));
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            if (gathers) {
                one.allGather(group, manager).run();
            } else {
                ReduceOp op = random.nextBoolean() ? ReduceOp.SUM : ReduceOp.AVG;
                one.reduceScatter(group, manager, op).run();
            }
        }
    }
}

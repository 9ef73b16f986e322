// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.Stream;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.Work;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Thousands of all-reduces of random sizes, types and alignments, beside NCCL's of the same
 * numbers. They are made, reduced and compared on the GPUs; the host looks once in a while.
 */
@Tag("gpu")
@Timeout(300)
class CudaP2pAgainstNcclTest {

    private static final int OPERATIONS = 5_000;
    private static final int BATCH = 100; // operations until the host looks
    private static final int SEED = 20;
    private static final long MAX_BYTES = 64 << 20;
    private static final int MAX_BEGIN = 16; // elements before a tensor, in its memory
    private static final int SPREAD = 1 << 16; // places where a rank's numbers may begin
    private static final float LIMIT = 2; // no number is larger
    private static final Duration TIMEOUT = Duration.ofSeconds(30);
    private static final List<ScalarType> TYPES =
            List.of(ScalarType.FLOAT32, ScalarType.FLOAT16, ScalarType.BFLOAT16);

    @BeforeEach
    void requireGpus() {
        GpuTests.require(2, NativeLibrary.NCCL, NativeLibrary.NVRTC);
    }

    /** One-shot and two-shot; for two ranks, one-shot alone, by several launches; direct. */
    @ParameterizedTest
    @CsvSource({"1048576, 67108864", "67108864, 67108864", "65536, 262144"})
    void allReducesOfRandomSizes(long oneShotBytes, long twoShotBytes) {
        NcclOptions nccl = NcclOptions.builder().optTimeout(TIMEOUT).optBlockingWait(false).build();
        CudaP2pOptions p2p =
                CudaP2pOptions.builder()
                        .optBufferSize(1 << 20)
                        .optOneShotBytes(oneShotBytes)
                        .optTwoShotBytes(twoShotBytes)
                        .optDirect(true)
                        .optNcclOptions(nccl)
                        .build();
        int worldSize = Math.min(RegionLayout.MAX_RANKS, CudaDevice.count());
        Engine.getEngine("PyTorch").setRandomSeed(SEED);
        List<ProcessGroup> references = ProcessGroups.local("nccl", worldSize, nccl);
        List<ProcessGroup> groups = ProcessGroups.local("cuda_p2p", worldSize, p2p);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        ProcessGroup reference = references.get(group.rank());
                        compare(group, reference, OPERATIONS);
                        String dump = group.flightRecorder().dump().toJson();
                        assertTrue(dump.contains("one_shot"), dump);
                        assertEquals(oneShotBytes < MAX_BYTES, dump.contains("two_shot"), dump);
                        assertEquals(twoShotBytes < MAX_BYTES, dump.contains("\"direct\""), dump);
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
            references.forEach(ProcessGroup::destroy);
        }
    }

    /** One rank: both groups reduce the same, and results have the same bits on all ranks. */
    private static void compare(ProcessGroup group, ProcessGroup reference, int operations) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            Comparison comparison = new Comparison(group, reference, manager);
            List<Reduction> warmUp = new ArrayList<>();
            for (ScalarType type : TYPES) {
                for (long byteSize : new long[] {4, 1 << 10, 1 << 18, 1 << 20, MAX_BYTES}) {
                    long count = byteSize / type.itemSize();
                    warmUp.add(new Reduction(type, ReduceOp.SUM, count));
                    warmUp.add(new Reduction(type, ReduceOp.AVG, count));
                }
            }
            comparison.warmUp(warmUp);
            Random random = new Random(SEED);
            for (int i = 0; i < operations; i += BATCH) {
                comparison.run(
                        i, Stream.generate(() -> Reduction.random(random)).limit(BATCH).toList());
            }
        }
    }

    /** What is reduced, the same on all ranks. */
    private record Reduction(ScalarType type, ReduceOp op, long count) {

        /** Small ones are as many as large ones: the logarithm of the size is uniform. */
        static Reduction random(Random random) {
            ScalarType type = TYPES.get(random.nextInt(TYPES.size()));
            ReduceOp op = random.nextBoolean() ? ReduceOp.SUM : ReduceOp.AVG;
            double most = (double) MAX_BYTES / type.itemSize();
            return new Reduction(type, op, Math.round(Math.pow(most, random.nextDouble())));
        }
    }

    /**
     * How far the results may be apart: as far as both may be from the exact one, with unit
     * roundoff u, W ranks, and M, which no partial sum exceeds: W * {@link #LIMIT}, for AVG {@link
     * #LIMIT}.
     *
     * <ul>
     *   <li>NCCL rounds to the type after each of W - 1 additions, each time by at most u * M. For
     *       AVG it first multiplies by 1 / W, itself rounded: twice u * M more.
     *   <li>Ours adds and divides in float32, W roundings, and rounds to the type once: for 16-bit
     *       types little more than u * M, for float32 W * u * M.
     * </ul>
     *
     * That is (2 * W + 1) * u * M at most, for 16-bit types (W + 2) * u * M; one more leaves room
     * for the products of roundings.
     */
    private static double tolerance(Reduction reduction, int ranks) {
        double unit =
                switch (reduction.type()) {
                    case FLOAT32 -> 0x1p-24;
                    case FLOAT16 -> 0x1p-11;
                    case BFLOAT16 -> 0x1p-8;
                    default -> throw new AssertionError(reduction);
                };
        double largest = reduction.op() == ReduceOp.SUM ? LIMIT * ranks : LIMIT;
        return 2 * (ranks + 1) * unit * largest;
    }

    /** The memory in which one rank reduces and compares. */
    private static final class Comparison {

        private final ProcessGroup group;
        private final ProcessGroup reference;
        private final NDManager manager;
        private final Random own; // differs from rank to rank
        private final Map<ScalarType, NativeMemory> numbers = new EnumMap<>(ScalarType.class);
        private final NativeMemory ours;
        private final NativeMemory theirs;
        private final NativeMemory oursWide; // in float32
        private final NativeMemory theirsWide;
        private final NDArray found; // per operation: largest, smallest difference; of bytes, too
        private final NativeMemory foundWords;
        private final List<Work> works = new ArrayList<>();
        private boolean warm;

        Comparison(ProcessGroup group, ProcessGroup reference, NDManager manager) {
            this.group = group;
            this.reference = reference;
            this.manager = manager;
            own = new Random(SEED + 1 + group.rank());
            for (ScalarType type : TYPES) {
                long count = MAX_BYTES / type.itemSize() + SPREAD;
                try (NDArray floats = manager.randomUniform(-LIMIT, LIMIT, new Shape(count))) {
                    numbers.put(type, memoryOf(Torch.cast(floats, type)));
                }
            }
            long slack = MAX_BEGIN * Float.BYTES;
            ours = memory(MAX_BYTES + slack);
            theirs = memory(MAX_BYTES + slack);
            oursWide = memory(2 * MAX_BYTES);
            theirsWide = memory(2 * MAX_BYTES);
            found = manager.zeros(new Shape(4, BATCH));
            foundWords = memoryOf(found);
        }

        private NativeMemory memory(long byteSize) {
            return memoryOf(Torch.empty(manager, new Shape(byteSize), ScalarType.INT8));
        }

        /** The memory of an array, which belongs to the manager. */
        private static NativeMemory memoryOf(NDArray array) {
            long byteSize = array.size() * Torch.scalarType(array).itemSize();
            return new NativeMemory(
                    Torch.dataPointer(array), byteSize, Torch.device(array), () -> {});
        }

        /**
         * Runs reductions one by one. NCCL connects, libtorch loads its kernels and gets its
         * memory; all of that can wait for the whole GPU, and so must not happen later, while
         * kernels wait for those of other ranks.
         */
        void warmUp(List<Reduction> reductions) {
            run(0, reductions);
            warm = true;
        }

        /** Runs reductions, then looks at what the GPU found. */
        void run(int number, List<Reduction> reductions) {
            TorchInPlace.mul(found, 0);
            List<Integer> begins = new ArrayList<>();
            try (NDManager scope = manager.newSubManager()) {
                for (int i = 0; i < reductions.size(); i++) {
                    begins.add(own.nextInt(MAX_BEGIN));
                    enqueue(scope, i, reductions.get(i), begins.get(i));
                }
                float[] worst = found.toFloatArray();
                works.forEach(work -> work.await(TIMEOUT));
                works.clear();
                for (int i = 0; i < reductions.size(); i++) {
                    Reduction reduction = reductions.get(i);
                    String name =
                            String.format(
                                    "%s, number %d, on rank %d from element %d of its memory",
                                    reduction, number + i, group.rank(), begins.get(i));
                    double apart = Math.max(worst[i], -worst[BATCH + i]); // NaN if any is
                    assertTrue(
                            apart <= tolerance(reduction, group.worldSize()),
                            () -> name + " is " + apart + " from NCCL's");
                    assertTrue(
                            worst[2 * BATCH + i] == 0 && worst[3 * BATCH + i] == 0,
                            () -> name + " has not the bits of rank 0");
                }
            }
        }

        private void enqueue(NDManager scope, int i, Reduction reduction, int begin) {
            ScalarType type = reduction.type();
            Shape shape = new Shape(reduction.count());
            long from = (long) own.nextInt(SPREAD) * type.itemSize();
            NDArray input = Torch.view(scope, numbers.get(type), from, shape, type);
            long offset = (long) begin * type.itemSize();
            NDArray result = Torch.view(scope, ours, offset, shape, type);
            NDArray expected = Torch.view(scope, theirs, offset, shape, type);
            Torch.copy(result, input);
            Torch.copy(expected, input);
            follow(group.allReduce(result, reduction.op()));
            follow(reference.allReduce(expected, reduction.op()));
            compareValues(scope, i, result, expected);
            Torch.copy(expected, result);
            follow(reference.broadcast(expected, 0));
            compareBits(scope, i, result, expected);
        }

        /** Lets what is enqueued next come after an operation. */
        private void follow(Work work) {
            works.add(work);
            if (warm) {
                work.await(); // by the stream, not by the host
            } else {
                work.await(TIMEOUT);
            }
        }

        private void compareValues(NDManager scope, int i, NDArray result, NDArray expected) {
            Shape shape = result.getShape();
            NDArray a = Torch.view(scope, oursWide, 0, shape, ScalarType.FLOAT32);
            NDArray b = Torch.view(scope, theirsWide, 0, shape, ScalarType.FLOAT32);
            Torch.copy(a, result);
            Torch.copy(b, expected);
            a.subi(b);
            note(scope, 0, i, a.max());
            note(scope, 1, i, a.min());
        }

        private void compareBits(NDManager scope, int i, NDArray result, NDArray expected) {
            NDArray difference = TestArrays.bytes(scope, expected);
            difference.subi(TestArrays.bytes(scope, result)); // modulo 256: 0 if they are equal
            note(scope, 2, i, difference.max());
            note(scope, 3, i, difference.min());
        }

        private void note(NDManager scope, int row, int i, NDArray value) {
            long offset = (long) (row * BATCH + i) * Float.BYTES;
            Torch.copy(
                    Torch.view(scope, foundWords, offset, new Shape(), ScalarType.FLOAT32), value);
        }
    }
}

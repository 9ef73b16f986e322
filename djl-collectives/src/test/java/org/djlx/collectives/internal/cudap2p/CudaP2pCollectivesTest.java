// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.stream.IntStream;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.p2p.P2pAllocator;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaGraph;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * All-gather, reduce-scatter, all-to-all and broadcast by kernels, beside values that the host
 * computes.
 */
@Tag("gpu")
@Timeout(300)
class CudaP2pCollectivesTest {

    private static final int[] COUNTS = {1, 3, 4, 5, 1000, 4096, 65_537, 300_000, 1_000_001};
    private static final int UNWRITTEN = 0x5a5a5a5a;

    /** How a call runs. */
    private enum Mode {
        ASYNC,
        IN_ORDER,
        GRAPH
    }

    private int worldSize;

    @BeforeEach
    void requireGpus() {
        worldSize = P2pRanks.require();
    }

    /** One rank's call, its output and the expected values. */
    private record Call(String name, CallBody body, NDArray output, int[] expected) {

        void check() {
            assertArrayEquals(expected, output.toIntArray(), name);
        }
    }

    private interface CallBody {
        Work issue(boolean asyncOp);
    }

    /** One rank: makes calls on tensors of its own. */
    private final class Rank {

        private final ProcessGroup group;
        private final NDManager manager;
        private final NDArray heap;
        private final int rank;

        Rank(ProcessGroup group, NDManager manager, NDArray heap) {
            this.group = group;
            this.manager = manager;
            this.heap = heap;
            rank = group.rank();
        }

        /** Returns a rank's words: any, and many that stand for an empty slot or an escape. */
        private int[] words(int of, int seed, int count) {
            SplittableRandom random = new SplittableRandom(seed * 31L + of);
            int[] words = new int[count];
            for (int i = 0; i < count; i++) {
                int kind = random.nextInt(8);
                words[i] = kind == 0 ? -1 : kind == 1 ? Integer.MAX_VALUE : random.nextInt();
            }
            return words;
        }

        private NDArray unwritten(int count) {
            NDArray output = manager.zeros(new Shape(count), DataType.INT32);
            output.addi(UNWRITTEN);
            return output;
        }

        List<Call> calls(int count) {
            return List.of(
                    allGather(count, unwritten(count * worldSize)),
                    allGather(count, unwrittenInHeap(count * worldSize)),
                    allToAll(count),
                    splitAllToAll(count),
                    broadcast(count),
                    reduceScatter(count, ScalarType.FLOAT32),
                    reduceScatter(count, ScalarType.BFLOAT16));
        }

        /** Returns an output at the same place on all ranks. */
        private NDArray unwrittenInHeap(int count) {
            return heap.get(":" + count).muli(0).addi(UNWRITTEN);
        }

        private Call allGather(int count, NDArray output) {
            NDArray input = manager.create(words(rank, count, count));
            int[] expected =
                    IntStream.range(0, worldSize)
                            .flatMap(source -> IntStream.of(words(source, count, count)))
                            .toArray();
            return new Call(
                    "allGather of " + count,
                    async -> group.allGatherIntoTensor(output, input, async),
                    output,
                    expected);
        }

        private Call allToAll(int count) {
            NDArray input = manager.create(words(rank, count + 1, count * worldSize));
            NDArray output = unwritten(count * worldSize);
            int[] expected =
                    IntStream.range(0, worldSize)
                            .flatMap(
                                    source ->
                                            IntStream.of(
                                                            words(
                                                                    source,
                                                                    count + 1,
                                                                    count * worldSize))
                                                    .skip((long) rank * count)
                                                    .limit(count))
                            .toArray();
            return new Call(
                    "allToAll of " + count,
                    async -> group.allToAllSingle(output, input, async),
                    output,
                    expected);
        }

        /** The size of the part from a rank to another: also 0, and different on each rank. */
        private int split(int from, int to, int count) {
            return (3 * from + 5 * to + count) % 4 * count / 2;
        }

        private Call splitAllToAll(int count) {
            long[] sent = new long[worldSize];
            long[] received = new long[worldSize];
            int[][] all = new int[worldSize][];
            for (int peer = 0; peer < worldSize; peer++) {
                int from = peer;
                sent[peer] = split(rank, peer, count);
                received[peer] = split(peer, rank, count);
                int whole = IntStream.range(0, worldSize).map(to -> split(from, to, count)).sum();
                all[peer] = words(peer, count + 2, whole);
            }
            int[] expected =
                    IntStream.range(0, worldSize)
                            .flatMap(
                                    source -> {
                                        int begin =
                                                IntStream.range(0, rank)
                                                        .map(to -> split(source, to, count))
                                                        .sum();
                                        return IntStream.of(all[source])
                                                .skip(begin)
                                                .limit(split(source, rank, count));
                                    })
                            .toArray();
            NDArray input = manager.create(all[rank]);
            NDArray output = unwritten(expected.length);
            return new Call(
                    "allToAll with splits of " + count,
                    async -> group.allToAllSingle(output, input, received, sent),
                    output,
                    expected);
        }

        private Call broadcast(int count) {
            int root = count % worldSize;
            int[] expected = words(root, count + 3, count);
            NDArray tensor = rank == root ? manager.create(expected) : unwritten(count);
            return new Call(
                    "broadcast of " + count,
                    async -> group.broadcast(tensor, root, async),
                    tensor,
                    expected);
        }

        /** Sums of small integers are exact; the rounded result is compared as an integer. */
        private Call reduceScatter(int count, ScalarType type) {
            int whole = count * worldSize;
            float[] own = new float[whole];
            int[] expected = new int[count];
            for (int source = 0; source < worldSize; source++) {
                SplittableRandom random = new SplittableRandom(source * 7L + count);
                for (int i = 0; i < whole; i++) {
                    int value = random.nextInt(17) - 8;
                    own[i] = source == rank ? value : own[i];
                    if (i / count == rank) {
                        expected[i % count] += value;
                    }
                }
            }
            NDArray input = Torch.cast(manager.create(own), type);
            NDArray sums = Torch.cast(manager.zeros(new Shape(count)).addi(Float.NaN), type);
            NDArray output = unwritten(count);
            return new Call(
                    "reduceScatter of " + count + " " + type,
                    async -> {
                        Work work = group.reduceScatterTensor(sums, input, ReduceOp.SUM, async);
                        work.blockCurrentStream();
                        Torch.copy(output, sums);
                        return work;
                    },
                    output,
                    expected);
        }
    }

    /**
     * Large slots, and small ones: several launches, or several rounds of one launch. Copy engines
     * move tensors of more than 1 MiB, in several rounds.
     */
    @ParameterizedTest
    @CsvSource({"67108864, false", "65536, false", "67108864, true"})
    void movesEveryBitInEachMode(long oneShotBytes, boolean copyEngines) {
        CudaP2pOptions options =
                P2pRanks.options()
                        .optOneShotBytes(oneShotBytes)
                        .optTwoShotBytes(oneShotBytes)
                        .optCopyEngines(false)
                        .optBufferSize(4 << 20)
                        .optHeapSize(64 << 20)
                        .build();
        List<ProcessGroup> groups = ProcessGroups.local("cuda_p2p", worldSize, options);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        ProcessGroup view = copyEngines ? group.withCopyEngines() : group;
                        P2pRanks.runOnStream(group, () -> checkModes(view));
                        String dump = group.flightRecorder().dump().toJson();
                        assertTrue(dump.contains("\"exchange\""), dump);
                        assertEquals(copyEngines, dump.contains("\"copies\""), dump);
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private void checkModes(ProcessGroup group) {
        try (CudaDevice device = CudaDevice.open(group.device());
                CudaStream stream = CudaStream.create(device);
                NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            P2pAllocator allocator = group.p2pBuffers().orElseThrow().allocator();
            Shape most = new Shape((long) COUNTS[COUNTS.length - 1] * worldSize);
            NDArray heap = allocator.allocate(manager, most, ScalarType.INT32);
            CudaStreamGuard guard = Torch.cudaStreamGuard(group.device(), stream.handle());
            try {
                for (Mode mode : Mode.values()) {
                    for (int count : COUNTS) {
                        check(group, stream, heap, mode, count);
                    }
                }
            } finally {
                guard.close();
                stream.synchronize();
            }
        }
    }

    private void check(ProcessGroup group, CudaStream stream, NDArray heap, Mode mode, int count) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            List<Call> calls = new Rank(group, manager, heap).calls(count);
            stream.synchronize();
            if (mode == Mode.GRAPH) {
                CudaGraph graph =
                        CudaGraph.capture(
                                stream, () -> calls.forEach(call -> call.body().issue(true)));
                try (graph) {
                    for (int launch = 0; launch < 3; launch++) {
                        graph.launch(stream);
                        // An eager call between two launches.
                        calls.get(launch).body().issue(false);
                        stream.synchronize();
                        calls.forEach(Call::check);
                    }
                }
                return;
            }
            // All calls are under way at the same time.
            List<Work> works = new ArrayList<>();
            calls.forEach(call -> works.add(call.body().issue(mode == Mode.ASYNC)));
            works.forEach(Work::blockCurrentStream);
            stream.synchronize();
            calls.forEach(Call::check);
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.jni.JniUtils;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.collectives.soak.Soak;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaMemory;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * Every rank allocates and frees GPU memory at random, on the thread that issues operations and on
 * another thread, while operators of two groups run. The driver waits for a GPU before it frees
 * memory, and the GPU may wait for a rank: there must be no deadlock.
 */
@Tag("gpu")
@Tag("soak")
class AllocationSoakTest {

    private static final int CALLS = 20; // by the same path

    /** The forced paths. If one is not possible, the model chooses. */
    private static final List<Path> PATHS = List.of(Path.FUSED, Path.GATHERED, Path.PIPELINED);

    private int worldSize;
    private CyclicBarrier turn;

    @BeforeEach
    void requireGpus() {
        int most = P2pRanks.require();
        P2pRanks.requireOwnGpus("memory is freed when all kernels of its GPU have ended");
        worldSize = 2 + new Random(Soak.SEED).nextInt(most - 1);
        turn = new CyclicBarrier(worldSize);
    }

    @Test
    void operatorsOfTwoGroupsBesideAllocations() {
        CudaP2pOptions options =
                P2pRanks.options()
                        .optNcclOptions(
                                NcclOptions.builder().optTimeout(Duration.ofSeconds(60)).build())
                        .optBufferSize(64 << 20)
                        .build();
        List<ProcessGroup> one = ProcessGroups.local("cuda_p2p", worldSize, options);
        List<ProcessGroup> other = ProcessGroups.local("cuda_p2p", worldSize, options);
        AtomicBoolean stop = new AtomicBoolean();
        long end = System.nanoTime() + Soak.SECONDS * 1_000_000_000L;
        try {
            List<Long> rounds =
                    ProcessGroups.run(
                            one,
                            group -> {
                                long[] done = {0};
                                P2pRanks.run(
                                        group,
                                        () ->
                                                done[0] =
                                                        rank(
                                                                List.of(
                                                                        group,
                                                                        other.get(group.rank())),
                                                                end,
                                                                stop));
                                return done[0];
                            });
            System.out.printf(
                    "soak allocation, seed %d, %d s, %d ranks: operations of each rank: %s%n",
                    Soak.SEED, Soak.SECONDS, worldSize, rounds);
        } finally {
            stop.set(true);
            one.forEach(ProcessGroup::destroy);
            other.forEach(ProcessGroup::destroy);
        }
    }

    private long rank(List<ProcessGroup> groups, long end, AtomicBoolean stop) {
        int rank = groups.get(0).rank();
        Random own = new Random(Soak.SEED * 100 + rank);
        Random common = new Random(Soak.SEED); // The ranks issue the same operations.
        Thread allocator = new Thread(() -> allocate(groups.get(0), own.nextLong(), stop));
        allocator.start();
        long operations = 0;
        try (NDManager manager = NDManager.newBaseManager(groups.get(0).device(), "PyTorch");
                CudaDevice device = CudaDevice.open(groups.get(0).device())) {
            List<NativeMemory> taken = new ArrayList<>();
            boolean more = true;
            while (more) {
                int choice = common.nextInt(PATHS.size() + 1);
                Path path = choice < PATHS.size() ? PATHS.get(choice) : null;
                try (NDManager scope = manager.newSubManager()) {
                    List<Runnable> checks = new ArrayList<>();
                    inTurn(
                            path,
                            turn,
                            () -> {
                                for (int i = 0; i < CALLS; i++) {
                                    ProcessGroup group = groups.get(common.nextInt(2));
                                    checks.add(operation(group, scope, common));
                                    change(device, taken, own);
                                }
                            });
                    operations += CALLS;
                    checks.forEach(Runnable::run);
                }
                // All ranks stop after the same round: rank 0 decides.
                NDArray late = manager.full(new Shape(1), System.nanoTime() > end ? 1f : 0f);
                groups.get(0).broadcast(late, 0).await();
                more = late.getFloat() == 0;
                late.close();
            }
            taken.forEach(NativeMemory::close);
        } finally {
            stop.set(true);
            try {
                allocator.join();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }
        return operations;
    }

    /** Forces a path on all ranks, which start and end together. */
    @SuppressWarnings("try") // the scope is not named in the body
    private static void inTurn(Path path, CyclicBarrier turn, Runnable body) {
        try (FusedOps.Scope scope = path == null ? () -> {} : FusedOps.force(path)) {
            await(turn);
            body.run();
            await(turn);
        }
        await(turn);
    }

    private static void await(CyclicBarrier turn) {
        try {
            turn.await(60, TimeUnit.SECONDS);
        } catch (InterruptedException | BrokenBarrierException | TimeoutException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Allocates or frees memory, by the driver or by libtorch. */
    private static void change(CudaDevice device, List<NativeMemory> taken, Random random) {
        switch (random.nextInt(8)) {
            case 0, 1 -> {
                if (taken.size() < 20) {
                    taken.add(CudaMemory.allocate(device, 1 + random.nextInt(64 << 20)));
                }
            }
            case 2, 3 -> {
                if (!taken.isEmpty()) {
                    taken.remove(random.nextInt(taken.size())).close();
                }
            }
            case 4 -> JniUtils.emptyCudaCache();
            default -> {
                // Nothing, so that some operators follow each other directly.
            }
        }
    }

    private static void allocate(ProcessGroup group, long seed, AtomicBoolean stop) {
        Random random = new Random(seed);
        try (CudaDevice device = CudaDevice.open(group.device())) {
            List<NativeMemory> taken = new ArrayList<>();
            while (!stop.get()) {
                change(device, taken, random);
            }
            taken.forEach(NativeMemory::close);
        }
    }

    /** Issues an operation, and returns the check of its result. */
    private Runnable operation(ProcessGroup group, NDManager manager, Random common) {
        int rows = 1 + common.nextInt(300);
        int value = common.nextInt(4);
        ScalarType type = common.nextBoolean() ? ScalarType.BFLOAT16 : ScalarType.FLOAT32;
        NDArray ones = full(manager, new Shape(64, 32), 1, type);
        switch (common.nextInt(4)) {
            case 0 -> {
                // Up to sizes for which NCCL is chosen.
                long count = 1L << common.nextInt(23);
                NDArray tensor = full(manager, new Shape(count), group.rank() + value, type);
                group.allReduce(tensor, ReduceOp.SUM).blockCurrentStream();
                float want = worldSize * value + worldSize * (worldSize - 1) / 2f;
                return () -> same(want, tensor);
            }
            case 1 -> {
                NDArray a = full(manager, new Shape(rows, 64), group.rank() + value, type);
                NDArray out = FusedOps.allGatherMatmul(a, List.of(ones), 0, group).outputs().get(0);
                return () -> {
                    for (int rank = 0; rank < worldSize; rank++) {
                        same(64 * (rank + value), out.get(rank * rows + ":" + (rank + 1) * rows));
                    }
                };
            }
            case 2 -> {
                Shape shape = new Shape((long) rows * worldSize, 64);
                NDArray a = full(manager, shape, group.rank() + value, type);
                NDArray out = FusedOps.matmulReduceScatter(a, ones, ReduceOp.SUM, 0, group);
                float want = 64 * (worldSize * value + worldSize * (worldSize - 1) / 2f);
                return () -> same(want, out);
            }
            default -> {
                NDArray in = manager.full(new Shape(rows), (float) (group.rank() + value));
                NDArray out = manager.zeros(new Shape((long) rows * worldSize));
                LowContention.allGather(group, out, in).blockCurrentStream();
                return () -> {
                    for (int rank = 0; rank < worldSize; rank++) {
                        same(rank + value, out.get(rank * rows + ":" + (rank + 1) * rows));
                    }
                };
            }
        }
    }

    private static NDArray full(NDManager manager, Shape shape, float value, ScalarType type) {
        return Torch.cast(manager.full(shape, value), type);
    }

    private static void same(float want, NDArray result) {
        NDArray array = Torch.cast(result, ScalarType.FLOAT32);
        assertEquals(want, array.max().getFloat());
        assertEquals(want, array.min().getFloat());
        assertEquals(want, array.flatten().get(0).getFloat(), Torch.info(array).toString());
    }
}

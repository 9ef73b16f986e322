// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CyclicBarrier;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Runs {@link ExactCase}s on ranks that are threads, on GPUs of their own as far as there are so
 * many. Each rank keeps its stream from group to group, because libtorch keeps the memory of a
 * stream that is gone and allocates anew for another.
 */
final class ExactRanks implements AutoCloseable {

    private static final long BUFFER = 64 << 20;
    private static final long RESERVED = 2L << 30; // bytes, more than a batch takes

    private final Map<Integer, Rank> ranks = new ConcurrentHashMap<>();

    /** A rank's stream, and a pool of inputs on its GPU. */
    private static final class Rank implements AutoCloseable {

        private final CudaDevice device;
        private final CudaStream stream;
        private final NDManager manager;
        private final NDArray pool;

        @SuppressWarnings("try") // the guard is not named in the body
        Rank(ProcessGroup group) {
            device = CudaDevice.open(group.device());
            stream = CudaStream.create(device);
            manager = NDManager.newBaseManager(group.device(), "PyTorch");
            try (CudaStreamGuard guard = enter()) {
                // From here on libtorch divides this memory, instead of asking the driver for more.
                Torch.empty(manager, new Shape(RESERVED), ScalarType.INT8).close();
                pool = ExactCase.pool(manager);
                stream.synchronize();
            }
        }

        CudaStreamGuard enter() {
            return Torch.cudaStreamGuard(device.device(), stream.handle());
        }

        @Override
        public void close() {
            manager.close();
            stream.close();
            device.close();
        }
    }

    /** A group of so many ranks. */
    static List<ProcessGroup> groups(int ranks) {
        P2pRanks.require(ranks);
        return ProcessGroups.local(
                "cuda_p2p", ranks, P2pRanks.options().optBufferSize(BUFFER).build());
    }

    /**
     * Runs cases in order on all ranks, each some times in a row. Compares what came out last, and
     * each time with the time before.
     *
     * @param path the path that is forced where it is possible; null if the model chooses
     */
    @SuppressWarnings("try") // the scope is not named in the body
    void run(List<ProcessGroup> groups, Path path, List<ExactCase> cases, int times) {
        try (FusedOps.Scope scope = path == null ? () -> {} : FusedOps.force(path)) {
            run(groups, cases, times);
        } catch (CollectiveException e) {
            throw new AssertionError("path " + path + ": " + e.getMessage(), e);
        }
    }

    /** Runs cases in order on all ranks, by the path that is forced, if any. */
    @SuppressWarnings("try") // the guard is not named in the body
    void run(List<ProcessGroup> groups, List<ExactCase> cases, int times) {
        CyclicBarrier step = new CyclicBarrier(groups.size());
        ProcessGroups.run(
                groups,
                group -> {
                    Rank rank = ranks.computeIfAbsent(group.rank(), r -> new Rank(group));
                    await(step);
                    try (CudaStreamGuard guard = rank.enter()) {
                        run(group, rank, cases, times, step);
                    } catch (AssertionError e) {
                        throw new AssertionError(
                                String.format(
                                        "rank %d of %d: %s",
                                        group.rank(), groups.size(), e.getMessage()),
                                e);
                    }
                    return null;
                });
    }

    private static void run(
            ProcessGroup group, Rank rank, List<ExactCase> cases, int times, CyclicBarrier step) {
        try (NDManager manager = rank.manager.newSubManager()) {
            NDArray pool = Torch.alias(manager, rank.pool);
            List<NDList> inputs = new ArrayList<>();
            for (ExactCase one : cases) {
                NDList given = one.inputs(group, pool);
                one.loadCallersProducts(group, given);
                inputs.add(given);
            }
            rank.stream.synchronize();
            await(step);
            List<NDList> results = new ArrayList<>();
            NDList differences = new NDList();
            List<ExactCase> of = new ArrayList<>(); // of each element of that list
            for (int i = 0; i < cases.size(); i++) {
                ExactCase one = cases.get(i);
                NDList result = one.run(group, inputs.get(i));
                rank.stream.synchronize();
                for (int time = 1; time < times; time++) {
                    NDList next = one.run(group, inputs.get(i));
                    rank.stream.synchronize();
                    add(differences, of, one, ExactCase.changes(manager, result, next));
                    result.close();
                    result = next;
                }
                results.add(result);
                // cuBLAS loads a kernel with the first product of a size, which must not happen
                // while kernels on the same GPU wait for this rank; see optSharedGpus.
                await(step);
            }
            for (int i = 0; i < cases.size(); i++) {
                ExactCase one = cases.get(i);
                try (NDManager scratch = manager.newSubManager()) {
                    NDList each = one.compare(group, Torch.alias(scratch, pool), results.get(i));
                    each.attach(manager);
                    add(differences, of, one, each);
                }
            }
            // What differs is read from the GPU once.
            NDArray all = NDArrays.stack(differences);
            rank.stream.synchronize();
            long[] values = all.toLongArray();
            for (int i = 0; i < of.size(); i++) {
                String from = ": elements differ from index " + values[2 * i + 1];
                assertEquals(0, values[2 * i], of.get(i) + from);
            }
            await(step);
        }
    }

    private static void add(NDList all, List<ExactCase> of, ExactCase one, NDList each) {
        all.addAll(each);
        of.addAll(Collections.nCopies(each.size(), one));
    }

    private static void await(CyclicBarrier step) {
        try {
            step.await();
        } catch (InterruptedException | BrokenBarrierException e) {
            throw new IllegalStateException("another rank failed", e);
        }
    }

    @Override
    public void close() {
        ranks.values().forEach(Rank::close);
    }
}

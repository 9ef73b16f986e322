// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.CostModel;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.cost.Workload;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaGraph;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.Torch;

/**
 * Measures the paths of an operator with the operands of a call, instead of predicting their times:
 * the same idea as {@code torch.backends.cudnn.benchmark}.
 *
 * <ul>
 *   <li>Each path runs several times eagerly, and several times as a CUDA graph, on a stream of its
 *       own. A path's time is that of the slowest rank in the fastest round.
 *   <li>Before each call the ranks agree whether one of them has new sizes. So all ranks measure in
 *       the same call, or take the times of the {@link PathCache} if each rank has its own sizes
 *       there.
 *   <li>Some sizes may differ between ranks. Times are added up by the sizes that all ranks have in
 *       common, so all ranks choose the same path.
 * </ul>
 */
public final class PathMeasurement {

    private static final int WARM_UPS = 3;
    private static final int ROUNDS = 3;
    private static final int CALLS = 8; // of a round
    private static final int CALLS_OF_GRAPH = 2; // recorded in one graph

    private static final float NEVER = 1e30f; // the time of a path that did not run
    private static final Path[] PATHS = Path.values();

    private PathMeasurement() {}

    /**
     * What all ranks know of an operator without an exchange: the sizes that are the same on all
     * ranks, with a usual size for the one that may differ, and whether the part is by rows.
     */
    record Key(Workload usual, boolean byRows) {

        static Key of(MatmulPlan.Operator<?> operator) {
            return new Key(CostModel.usual(operator.workload()), operator.isByRows());
        }
    }

    /**
     * The measurements of a key: the total time of each path, over the calls in which the ranks
     * measured. The totals are the same on all ranks.
     */
    static final class Measured {

        private final Set<Workload> measured = new HashSet<>(); // with this rank's own sizes
        private final float[] eager = new float[PATHS.length]; // us, by path
        private final float[] recorded = new float[PATHS.length];

        Choice fastest(boolean isRecorded) {
            float[] times = isRecorded ? recorded : eager;
            List<String> texts = new ArrayList<>();
            Path fastest = null;
            for (Path path : PATHS) {
                float time = times[path.ordinal()];
                if (time < NEVER) {
                    texts.add(String.format(Locale.ROOT, "%s %.1f", path, time));
                    fastest = fastest == null || time < times[fastest.ordinal()] ? path : fastest;
                }
            }
            return new Choice(fastest, "measured us: " + String.join(", ", texts));
        }

        private void add(Workload work, float[] times) {
            measured.add(work);
            for (int i = 0; i < PATHS.length; i++) {
                eager[i] += times[i];
                recorded[i] += times[PATHS.length + i];
            }
        }
    }

    /** How a rank, or at worst one of all ranks, knows the times of its sizes. */
    enum Known {
        HERE,
        IN_CACHE,
        NOWHERE
    }

    /**
     * What all ranks know, and the greatest of the times that they have in their caches.
     *
     * @param worst of all ranks
     */
    record Agreement(Known worst, float[] times) {

        /**
         * Agrees with the other ranks.
         *
         * @param cached this rank's times if it has them in its cache, else zeros
         * @param greatest returns the greatest of each of the ranks' values
         */
        static Agreement of(Known known, float[] cached, UnaryOperator<float[]> greatest) {
            float[] values = Arrays.copyOf(cached, cached.length + 1);
            values[cached.length] = known.ordinal();
            float[] all = greatest.apply(values);
            Known worst = Known.values()[(int) all[cached.length]];
            return new Agreement(worst, Arrays.copyOf(all, cached.length));
        }
    }

    /**
     * Measures the paths, or finds their times in the cache, if a rank does not know its sizes yet.
     * All ranks call it in the same order among the group's operations, without the lock of the
     * group's plans, and not while a graph is recorded.
     *
     * @param candidates the paths that all ranks measure; a rank on which FUSED is not possible
     *     measures PIPELINED in its place, which matches
     * @param own the paths that are possible on this rank
     * @return whether there are new times
     */
    static <R> boolean measure(
            Measured kept,
            MatmulPlan.Operator<R> operator,
            ProcessGroup group,
            Operands operands,
            Set<Path> candidates,
            Set<Path> own,
            Consumer<R> closeResult) {
        String sizes =
                String.join(
                        " ",
                        operator.workload().toString(),
                        operator.isByRows() ? "by rows" : "",
                        EnumSet.copyOf(candidates).toString(),
                        group.requireP2pBuffers().bufferSize() + " bytes");
        boolean isNew = !kept.measured.contains(operator.workload());
        PathCache cache = PathCache.of(group.device());
        Optional<float[]> cached = isNew ? cache.find(sizes, 2 * PATHS.length) : Optional.empty();
        Known known = !isNew ? Known.HERE : cached.isPresent() ? Known.IN_CACHE : Known.NOWHERE;
        Agreement all =
                Agreement.of(
                        known,
                        cached.orElseGet(() -> new float[2 * PATHS.length]),
                        values -> greatest(operator, group, values));
        if (all.worst == Known.HERE) {
            return false;
        }
        float[] times = all.times;
        if (all.worst == Known.NOWHERE) {
            float[] here = times(operator, group, operands, candidates, own, closeResult);
            times = greatest(operator, group, here);
            cache.keep(sizes, times);
        }
        kept.add(operator.workload(), times);
        return true;
    }

    /** Measures this rank's times: of eager calls by path, then of calls in a graph. */
    @SuppressWarnings("try") // the guard is not named in the body
    private static <R> float[] times(
            MatmulPlan.Operator<R> operator,
            ProcessGroup group,
            Operands operands,
            Set<Path> candidates,
            Set<Path> own,
            Consumer<R> closeResult) {
        CurrentStreams.await(group.device());
        float[] times = new float[2 * PATHS.length];
        Arrays.fill(times, NEVER);
        try (CudaDevice device = CudaDevice.open(group.device());
                CudaStream stream = CudaStream.create(device);
                CudaStreamGuard guard = Torch.cudaStreamGuard(group.device(), stream.handle());
                CudaEvent begin = CudaEvent.createTiming(device);
                CudaEvent end = CudaEvent.createTiming(device)) {
            Stopwatch stopwatch = new Stopwatch(stream, begin, end);
            for (Path path : candidates) {
                Choice choice = new Choice(PathChooser.matching(path, own), "measured");
                try (MatmulPath<R> prepared =
                        MatmulPlan.prepare(operator, group, operands, choice)) {
                    Runnable call = () -> call(prepared, group, operands, closeResult);
                    times[path.ordinal()] = stopwatch.eager(call);
                    if (path != Path.NCCL) { // NCCL calls cannot be recorded.
                        times[PATHS.length + path.ordinal()] = stopwatch.recorded(call);
                    }
                }
            }
            return times;
        }
    }

    private static <R> void call(
            MatmulPath<R> path, ProcessGroup group, Operands operands, Consumer<R> closeResult) {
        MatmulPath.Issued<R> issued;
        synchronized (GroupPlans.of(group)) {
            issued = path.run(group, operands);
        }
        issued.work().ifPresent(work -> GroupPlans.complete(group, work));
        closeResult.accept(issued.result());
    }

    /** Times calls on a stream, in microseconds. */
    private record Stopwatch(CudaStream stream, CudaEvent begin, CudaEvent end) {

        float eager(Runnable call) {
            for (int i = 0; i < WARM_UPS; i++) {
                call.run();
            }
            return rounds(call, CALLS);
        }

        float recorded(Runnable call) {
            Runnable calls =
                    () -> {
                        for (int i = 0; i < CALLS_OF_GRAPH; i++) {
                            call.run();
                        }
                    };
            try (CudaGraph graph = CudaGraph.capture(stream, calls)) {
                graph.launch(stream);
                float launch = rounds(() -> graph.launch(stream), CALLS / CALLS_OF_GRAPH);
                stream.synchronize();
                return launch / CALLS_OF_GRAPH;
            }
        }

        private float rounds(Runnable run, int count) {
            float least = NEVER;
            for (int round = 0; round < ROUNDS; round++) {
                begin.record(stream);
                for (int i = 0; i < count; i++) {
                    run.run();
                }
                end.record(stream);
                end.synchronize();
                least = Math.min(least, end.elapsedMillisSince(begin) * 1e3f / count);
            }
            return least;
        }
    }

    /**
     * Returns the greatest of each of the ranks' values. Before that the ranks compare their calls,
     * so that the message of a mismatch names the operators, not this all-reduce.
     */
    static float[] greatest(MatmulPlan.Operator<?> operator, ProcessGroup group, float[] values) {
        GroupPlans.complete(
                group, group.execute(operator.opType(), operator.agreed(), compared -> {}));
        return greatest(group, values);
    }

    static float[] greatest(ProcessGroup group, float[] values) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
                NDArray array = manager.create(values)) {
            group.allReduce(array, ReduceOp.MAX).await();
            CurrentStreams.await(group.device());
            return array.toFloatArray();
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import ai.djl.ndarray.NDArray;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.bytedeco.cuda.cudart.CUgraphExec_st;
import org.bytedeco.cuda.cudart.CUgraph_st;
import org.bytedeco.cuda.global.cudart;
import org.djlx.nativeops.torch.TensorHold;

/**
 * A CUDA graph: work that is captured once and launched any number of times. Each launch uses the
 * addresses of the capture, so the memory that the work reads and writes must stay in place. Arrays
 * given to {@link CudaStream#keepAlive} during capture are kept until the graph is closed; with
 * such arrays, {@link #close()} waits for the last launch.
 */
public final class CudaGraph extends CudaResource {

    private static final ThreadLocal<Capture> CAPTURE = new ThreadLocal<>();

    private final CUgraphExec_st graph = new CUgraphExec_st();
    private final List<Runnable> held; // release arrays, and close hooks
    private final List<LaunchHook> hooks;

    /** Recorded after the last launch; null if no arrays are held. */
    private final CudaEvent launched;

    /** Runs before and after each launch of a graph. */
    public interface LaunchHook extends AutoCloseable {

        /**
         * {@return the place among the hooks of a graph, lowest first} Hooks that hold a lock from
         * {@link #before} to {@link #after} need different places, so that two graphs with the same
         * hooks take the locks in one order. The default is the last place.
         */
        default long place() {
            return Long.MAX_VALUE;
        }

        /** Called before each launch. If it throws, the graph is not launched. */
        void before(CudaStream stream);

        /** Called after each launch, successful or not; in reverse order of the hooks. */
        void after(CudaStream stream);

        /** Called after the last launch has ended, when the graph is closed. */
        @Override
        void close();
    }

    /** A capture under way: what its graph holds, and hooks by their owners. */
    private record Capture(List<Runnable> held, Map<Object, LaunchHook> hooks) {}

    private CudaGraph(CudaDevice device, CUgraph_st recorded, Capture capture) {
        super(device);
        this.held = capture.held;
        this.hooks =
                capture.hooks.values().stream()
                        .sorted(Comparator.comparingLong(LaunchHook::place))
                        .toList();
        create("cuGraphInstantiate", () -> cudart.cuGraphInstantiate(graph, recorded, 0));
        launched = held.isEmpty() ? null : CudaEvent.create(device);
    }

    /**
     * Captures the work queued on a stream, instead of executing it. Another stream joins the
     * capture when it waits for an event of this stream. Before the capture ends, this stream must
     * wait for an event after all work of the other stream.
     *
     * <p>The calling thread may allocate memory and load kernels meanwhile: that happens at once,
     * and is not part of the graph. So an operator may be called for the first time within a
     * capture. Nor are synchronous copies by CUDA's API part of the graph, or work on streams that
     * have not joined: both run at once, without an error. Leave memory for libtorch: if it lacks
     * memory, it frees cached blocks, which the graph may use.
     *
     * @param stream a stream other than the default one
     * @param work queues the work on the calling thread. It must not wait for the stream
     * @return the graph, ready to launch; the caller closes it
     * @throws IllegalStateException if this thread is capturing already
     * @throws CudaException with {@code CUDA_ERROR_STREAM_CAPTURE_*} if the work cannot be
     *     captured. Exceptions of {@code work} are passed on
     */
    public static CudaGraph capture(CudaStream stream, Runnable work) {
        if (isCapturing()) {
            throw new IllegalStateException("this thread is capturing another graph");
        }
        // The other modes refuse allocations, which first calls of operators make.
        stream.call(
                "cuStreamBeginCapture",
                () ->
                        cudart.cuStreamBeginCapture(
                                stream.stream(), cudart.CU_STREAM_CAPTURE_MODE_RELAXED));
        Capture capture = new Capture(new ArrayList<>(), new LinkedHashMap<>());
        CUgraph_st recorded = new CUgraph_st();
        CudaGraph result = null;
        try {
            record(stream, work, recorded, capture);
            result = new CudaGraph(stream.device(), recorded, capture);
            result.upload(stream);
            return result;
        } finally {
            if (!recorded.isNull()) {
                stream.device().in(() -> cudart.cuGraphDestroy(recorded));
            }
            if (result == null) {
                capture.held.forEach(Runnable::run);
            }
        }
    }

    private static void record(
            CudaStream stream, Runnable work, CUgraph_st recorded, Capture capture) {
        CAPTURE.set(capture);
        boolean complete = false;
        int result;
        try {
            work.run();
            complete = true;
        } finally {
            CAPTURE.remove();
            result = stream.device().in(() -> cudart.cuStreamEndCapture(stream.stream(), recorded));
        }
        if (complete) {
            CudaDriver.check(result, "cuStreamEndCapture");
        }
    }

    static boolean isCapturing() {
        return CAPTURE.get() != null;
    }

    /**
     * Keeps arrays until the graph that the calling thread captures is closed, then passes their
     * release to {@code releaser}.
     *
     * @param releaser runs the given release, immediately or later, on any thread
     * @throws IllegalStateException unless the calling thread is in {@link #capture}
     */
    public static void keepAlive(Consumer<Runnable> releaser, NDArray... arrays) {
        List<Runnable> held = capture().held;
        List<TensorHold> references = TensorHold.all(arrays);
        held.add(() -> releaser.accept(() -> references.forEach(TensorHold::close)));
    }

    private static Capture capture() {
        Capture capture = CAPTURE.get();
        if (capture == null) {
            throw new IllegalStateException(
                    "operations that keep arrays or hooks with a CUDA graph require"
                            + " CudaGraph.capture on the thread that calls them");
        }
        return capture;
    }

    /**
     * {@return the owner's hook around each launch of the graph that the calling thread captures}
     *
     * @param owner has one hook for each graph
     * @param hook creates the hook at the owner's first call; closed with the graph
     * @throws IllegalStateException unless the calling thread is in {@link #capture}
     */
    public static LaunchHook hook(Object owner, Supplier<? extends LaunchHook> hook) {
        Capture capture = capture();
        return capture.hooks.computeIfAbsent(
                owner,
                key -> {
                    LaunchHook created = hook.get();
                    capture.held.add(created::close);
                    return created;
                });
    }

    /** Uploads the graph. Otherwise the first launch would upload it, and could block. */
    private void upload(CudaStream stream) {
        try {
            call("cuGraphUpload", () -> cudart.cuGraphUpload(graph, stream.stream()));
        } catch (CudaException e) {
            close();
            throw e;
        }
    }

    /**
     * Launches the graph on a stream of the same GPU. Launches of one graph run one after the
     * other, also on different streams.
     */
    public void launch(CudaStream stream) {
        device().requireSame(stream.device(), "the stream");
        int begun = 0;
        try {
            for (LaunchHook hook : hooks) {
                hook.before(stream);
                begun++;
            }
            call("cuGraphLaunch", () -> cudart.cuGraphLaunch(graph, stream.stream()));
            if (launched != null) {
                launched.record(stream);
            }
        } finally {
            while (begun > 0) {
                hooks.get(--begun).after(stream);
            }
        }
    }

    @Override
    void destroy() {
        try {
            if (launched != null) {
                launched.synchronize();
                launched.close();
            }
            device().call("cuGraphExecDestroy", () -> cudart.cuGraphExecDestroy(graph));
        } finally {
            held.forEach(Runnable::run);
        }
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

import ai.djl.ndarray.NDArray;
import java.util.ArrayList;
import java.util.List;
import org.bytedeco.cuda.cudart.CUgraphExec_st;
import org.bytedeco.cuda.cudart.CUgraph_st;
import org.bytedeco.cuda.global.cudart;
import org.djlx.nativeops.torch.HeldArrays;

/**
 * Work recorded once and launched any number of times, at the cost of one call a launch. It uses
 * the addresses that it was recorded with: what it reads and writes must stay where it is. Arrays
 * given to {@link CudaStream#keepAlive} during the recording do, until the graph is closed. If
 * there are such, {@link #close()} waits for the last launch to end.
 */
public final class CudaGraph extends CudaResource {

    private static final ThreadLocal<List<HeldArrays>> CAPTURE = new ThreadLocal<>();

    private final CUgraphExec_st graph = new CUgraphExec_st();
    private final List<HeldArrays> held;

    /** Behind the last launch, if arrays are held. */
    private final CudaEvent launched;

    private CudaGraph(CudaDevice device, CUgraph_st recorded, List<HeldArrays> held) {
        super(device);
        this.held = held;
        create("cuGraphInstantiate", () -> cudart.cuGraphInstantiate(graph, recorded, 0));
        launched = held.isEmpty() ? null : CudaEvent.create(device);
    }

    /**
     * Records what is queued on a stream instead of doing it. Other streams take part from when
     * they wait for an event of the stream on; by the end the stream must have waited for an event
     * behind all their work.
     *
     * @param stream a stream other than the default one
     * @param work queues the work, from the calling thread. It must neither wait for the GPU nor
     *     allocate or free GPU memory, which libtorch does where its cache has nothing that fits
     * @return the graph, to be closed by the caller, ready to be launched
     * @throws IllegalStateException if this thread is recording already
     * @throws CudaException with {@code CUDA_ERROR_STREAM_CAPTURE_*} if the work does what a graph
     *     cannot record. What {@code work} throws is passed on
     */
    public static CudaGraph capture(CudaStream stream, Runnable work) {
        if (isCapturing()) {
            throw new IllegalStateException("this thread is recording another graph");
        }
        stream.call(
                "cuStreamBeginCapture",
                () ->
                        cudart.cuStreamBeginCapture(
                                stream.stream(), cudart.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        List<HeldArrays> held = new ArrayList<>();
        CUgraph_st recorded = new CUgraph_st();
        CudaGraph result = null;
        try {
            record(stream, work, recorded, held);
            result = new CudaGraph(stream.device(), recorded, held);
            result.upload(stream);
            return result;
        } finally {
            if (!recorded.isNull()) {
                stream.device().in(() -> cudart.cuGraphDestroy(recorded));
            }
            if (result == null) {
                held.forEach(HeldArrays::close);
            }
        }
    }

    private static void record(
            CudaStream stream, Runnable work, CUgraph_st recorded, List<HeldArrays> held) {
        CAPTURE.set(held);
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

    /** Tells whether the calling thread is in {@link #capture}. */
    static boolean isCapturing() {
        return CAPTURE.get() != null;
    }

    /** Holds arrays until the graph that the calling thread records is closed. */
    static void holdForCapture(NDArray... arrays) {
        List<HeldArrays> held = CAPTURE.get();
        if (held == null) {
            throw new IllegalStateException(
                    "the stream is being captured, but not by CudaGraph.capture on this thread:"
                            + " how long to keep the arrays is not known");
        }
        held.add(new HeldArrays(arrays));
    }

    /** Does beforehand what the first launch would do, which could wait for the GPU. */
    private void upload(CudaStream stream) {
        try {
            call("cuGraphUpload", () -> cudart.cuGraphUpload(graph, stream.stream()));
        } catch (CudaException e) {
            close();
            throw e;
        }
    }

    /**
     * Queues all the work. Launches of one graph are done one after the other, also on different
     * streams.
     *
     * @param stream a stream of the same GPU
     */
    public void launch(CudaStream stream) {
        device().requireSame(stream.device(), "the stream");
        call("cuGraphLaunch", () -> cudart.cuGraphLaunch(graph, stream.stream()));
        if (launched != null) {
            launched.record(stream);
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
            held.forEach(HeldArrays::close);
        }
    }
}

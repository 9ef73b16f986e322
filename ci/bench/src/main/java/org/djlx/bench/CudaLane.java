// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaGraph;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.LaunchSize;

/** A stream of a GPU: marks are events, recordings CUDA graphs. */
final class CudaLane implements Lane {

    private static final String EMPTY_KERNEL =
            """
            .version 7.0
            .target sm_70
            .address_size 64
            .visible .entry empty() { ret; }
            """;

    private final CudaDevice device;
    private final CudaStream stream;
    private final List<CudaEvent> events = new ArrayList<>();
    private final CudaModule module;
    private final Contender bareLaunch;

    /**
     * The caller owns GPU and stream. Only measured work uses the stream: on the default stream,
     * libtorch could give memory of a graph to other work.
     */
    CudaLane(CudaDevice device, CudaStream stream) {
        this.device = device;
        this.stream = stream;
        module = CudaModule.load(device, EMPTY_KERNEL.getBytes(StandardCharsets.US_ASCII));
        CudaKernel kernel = module.kernel("empty");
        LaunchSize size = LaunchSize.of(1, 32);
        KernelArguments none = new KernelArguments();
        bareLaunch =
                new Contender.IntoArrays(
                        turn -> kernel.launch(stream, size, none), null, () -> {}, () -> {});
    }

    @Override
    public Contender bareLaunch() {
        return bareLaunch;
    }

    @Override
    public void set(int mark) {
        while (events.size() <= mark) {
            events.add(CudaEvent.createTiming(device));
        }
        events.get(mark).record(stream);
    }

    @Override
    public void synchronize() {
        // Not the device: ranks may share it, and another rank's work may wait for this rank.
        stream.synchronize();
    }

    @Override
    public double micros(int from, int to) {
        return 1000.0 * events.get(to).elapsedMillisSince(events.get(from));
    }

    @Override
    public Recording record(Runnable work) {
        CudaGraph graph = CudaGraph.capture(stream, work);
        return new Recording() {
            @Override
            public void launch() {
                graph.launch(stream);
            }

            @Override
            public void close() {
                graph.close();
            }
        };
    }

    @Override
    public void close() {
        events.forEach(CudaEvent::close);
        module.close();
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.trace;

import static org.djlx.samples.common.UsageException.parsed;
import static org.djlx.samples.common.UsageException.refuseIf;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.fusedops.FusedOps;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.samples.common.CliCommand;
import org.djlx.samples.common.DeviceKind;
import org.djlx.samples.common.Gpus;
import org.djlx.samples.common.MatmulShape;
import org.djlx.samples.common.RankOptions;
import org.djlx.samples.common.Ranks;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/** {@code trace}: traces the steps of one fused operator on all ranks. */
@Command(
        name = "trace",
        description = {
            "Warms a fused operator up, runs it once with the time of each step, and writes a trace"
                + " for ui.perfetto.dev and chrome://tracing: a rank is a process, its streams are"
                + " threads. The trace shows which pushes overlap with the matmul, and which rank"
                + " waits for which.",
            "Ranks are threads. On GPUs, events around the steps measure the times, a barrier"
                    + " before the operator aligns the ranks, and the operator never takes its"
                    + " single-kernel path."
        })
public final class TraceCommand extends CliCommand {

    /** The operators. */
    enum Operator {
        allGatherMatmul,
        matmulReduceScatter
    }

    private static final int CALLS_BEFORE = 5;

    @Parameters(index = "0", paramLabel = "FILE", description = "The file to write, JSON.")
    private Path file;

    @Option(
            names = "--op",
            defaultValue = "allGatherMatmul",
            description = "One of ${COMPLETION-CANDIDATES}.")
    private Operator operator;

    @Mixin private final RankOptions options = new RankOptions().ranks(2).device();

    @Option(
            names = "--shape",
            paramLabel = "M,N,K",
            description =
                    "The unsharded sizes; 2048,1024,1024 in float32 on the CPU and 8192,8192,8192"
                            + " in bfloat16 on GPUs if not given.")
    private String shape;

    private DeviceKind device;

    private ScalarType type() {
        return device == DeviceKind.gpu ? ScalarType.BFLOAT16 : ScalarType.FLOAT32;
    }

    @Override
    public Integer call() throws IOException {
        options.check();
        device = options.deviceKind();
        refuseIf(
                System.getenv("RANK") != null,
                "trace runs ranks that are threads, but this process is itself a rank: RANK is"
                        + " set");
        int worldSize = options.here().worldSize();
        MatmulShape sizes = sizes(worldSize);
        if (device == DeviceKind.gpu) {
            Gpus.require(worldSize, NativeLibrary.NCCL, NativeLibrary.NVRTC);
        }
        List<ProcessGroup> groups =
                TracedBackend.groups(device.backend(), worldSize, options(sizes));
        try {
            List<List<Span>> spans = ProcessGroups.run(groups, group -> run(group, sizes));
            String title =
                    String.format(
                            "%s(%s), %s, %s", operator, sizes, device, Ranks.count(worldSize));
            TraceFile.write(file, title, spans);
            out().println(title + ": " + file);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
        return 0;
    }

    private MatmulShape sizes(int worldSize) {
        String usual = device == DeviceKind.gpu ? "8192,8192,8192" : "2048,1024,1024";
        MatmulShape sizes = parsed(() -> MatmulShape.parse(shape == null ? usual : shape));
        for (long size : new long[] {sizes.m(), sizes.n(), sizes.k()}) {
            refuseIf(
                    size % worldSize != 0,
                    "the sizes %s are not divisible by %s"
                            .formatted(sizes, Ranks.count(worldSize)));
        }
        return sizes;
    }

    /** Returns options with P2P buffers of two slots per rank; a slot holds the larger operand. */
    private BackendOptions options(MatmulShape sizes) {
        long pushed = sizes.m() * Math.max(sizes.n(), sizes.k()) * type().itemSize();
        long bufferSize = 2 * pushed + (1 << 20);
        return device == DeviceKind.gpu
                ? CudaP2pOptions.builder().optBufferSize(bufferSize).build()
                : ShmOptions.builder().optBufferSize(bufferSize).build();
    }

    /** Returns the steps of the operator on one rank. */
    private List<Span> run(ProcessGroup group, MatmulShape sizes) {
        TracedBuffers buffers = (TracedBuffers) group.p2pBuffers().orElseThrow();
        int worldSize = group.worldSize();
        boolean gathers = operator == Operator.allGatherMatmul;
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            NDArray a =
                    gathers
                            ? random(manager, sizes.m() / worldSize, sizes.k())
                            : random(manager, sizes.m(), sizes.k() / worldSize);
            NDArray b =
                    gathers
                            ? random(manager, sizes.k(), sizes.n() / worldSize)
                            : random(manager, sizes.k() / worldSize, sizes.n());
            for (int i = 0; i < CALLS_BEFORE; i++) {
                call(a, b, group).close();
            }
            buffers.begin();
            call(a, b, group).close();
            if (group.device().isGpu()) {
                try (CudaDevice gpu = CudaDevice.open(group.device())) {
                    gpu.synchronize();
                }
            }
            return buffers.end();
        }
    }

    private NDArray call(NDArray a, NDArray b, ProcessGroup group) {
        return operator == Operator.allGatherMatmul
                ? FusedOps.allGatherMatmul(a, List.of(b), 0, group, false).outputs().get(0)
                : FusedOps.matmulReduceScatter(a, b, ReduceOp.SUM, 0, group);
    }

    private NDArray random(NDManager manager, long rows, long columns) {
        try (NDArray floats = manager.randomNormal(new Shape(rows, columns))) {
            return Torch.cast(floats, type());
        }
    }
}

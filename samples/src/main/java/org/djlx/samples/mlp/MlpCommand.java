// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.mlp;

import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import ai.djl.ndarray.NDManager;
import java.io.PrintWriter;
import java.nio.file.Path;
import java.util.Map;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.launch.cli.CliCommand;
import org.djlx.collectives.launch.cli.DeviceKind;
import org.djlx.collectives.launch.cli.RankOptions;
import org.djlx.collectives.launch.cli.Ranks;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** {@code mlp}: a tensor-parallel MLP, compared with an unsharded MLP. */
@Command(
        name = "mlp",
        description = {
            "Runs a tensor-parallel two-layer MLP, y = gelu(x W1) W2, on the bytes of a text: W1 is"
                    + " split by columns (all-gather + matmul), W2 by rows (matmul +"
                    + " reduce-scatter), activations by tokens.",
            "Compares the result with the undivided MLP in plain DJL; fails if the error is too"
                    + " large.",
            "Ranks are threads, or processes; in a process started by 'launch' or torchrun, mlp"
                    + " runs that process's rank."
        })
public final class MlpCommand extends CliCommand {

    /**
     * The largest error against the float64 reference, relative to the largest magnitude: about a
     * hundred rounding errors of float32, five of bfloat16.
     */
    private static final Map<String, Double> TOLERANCES = Map.of("float32", 1e-5, "bfloat16", 2e-2);

    @Mixin
    private final RankOptions options =
            new RankOptions().ranks(4).processes().device().types("float32", "float32", "bfloat16");

    @Option(
            names = "--text",
            paramLabel = "FILE",
            description = "The text whose bytes are the input; the README if not given.")
    private Path text;

    @Option(
            names = "--tolerance",
            paramLabel = "ERROR",
            description =
                    "The largest error allowed, relative to the largest magnitude; 1e-5 for float32"
                            + " and 2e-2 for bfloat16 if not given.")
    private Double tolerance;

    private String dtype;
    private DeviceKind device;

    @Override
    public Integer call() throws Exception {
        text = text == null ? readme() : text;
        options.check();
        dtype = options.type();
        device = options.deviceKind();
        refuseIf(!(tolerance() >= 0), "--tolerance must be 0 or more, not %s".formatted(tolerance));
        byte[] bytes = readFile(text);
        refuseIf(bytes.length == 0, "the text file %s is empty".formatted(text));
        if (options.inProcesses()) {
            return Ranks.launch(spec(), options.count());
        }
        return options.here().run(device.backend(), group -> run(group, bytes)).get(0);
    }

    private double tolerance() {
        return tolerance == null ? TOLERANCES.get(dtype) : tolerance;
    }

    /** Runs one rank; rank 0 reports. */
    private int run(ProcessGroup group, byte[] bytes) {
        MlpJob.Result result;
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            result = new MlpJob(group, manager, options.scalarType()).run(bytes);
        }
        // The comparison is false for NaN.
        boolean good = result.largestError() <= tolerance();
        if (group.rank() == 0) {
            PrintWriter out = out();
            out.printf(
                    "MLP on %d tokens of %s, %s, %s, device %s, backend %s%n%n%s%n",
                    result.tokens(),
                    text.getFileName(),
                    dtype,
                    Ranks.count(group.worldSize()),
                    device,
                    device.backend(),
                    result.operators());
            out.printf(
                    "%s: the largest error relative to the undivided MLP in float64 is %.1e,"
                            + " allowed are %.0e%n",
                    good ? "PASSED" : "FAILED", result.largestError(), tolerance());
            out.flush();
        }
        return good ? 0 : 1;
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.mlp;

import static org.djlx.samples.common.UsageException.refuseIf;

import java.io.PrintWriter;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.ProcessGroup;
import org.djlx.samples.common.CliCommand;
import org.djlx.samples.common.DeviceKind;
import org.djlx.samples.common.RankOptions;
import org.djlx.samples.common.Ranks;
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

    @Option(
            names = "--train",
            paramLabel = "STEPS",
            description =
                    "Trains for this many steps through the operators' gradients, in float32, and"
                            + " compares losses and weights.")
    private Integer train;

    private String dtype;
    private DeviceKind device;

    @Override
    public Integer call() throws Exception {
        text = text == null ? readme() : text;
        options.check();
        dtype = options.type();
        device = options.deviceKind();
        refuseIf(!(tolerance() >= 0), "--tolerance must be 0 or more, not %s".formatted(tolerance));
        refuseIf(
                train != null && (train < 1 || !dtype.equals("float32")),
                "--train takes 1 step or more and --dtype float32, not %d and %s"
                        .formatted(train, dtype));
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
        if (train != null) {
            return train(group, bytes);
        }
        MlpJob.Result result;
        try (MlpJob job = new MlpJob(group, bytes, options.scalarType())) {
            result = job.run();
        }
        // The comparison is false for NaN.
        boolean good = result.largestError() <= tolerance();
        if (group.rank() == 0) {
            PrintWriter out = out();
            out.printf(
                    "MLP on %d tokens of %s, %s, %s, device %s, backend %s%n%n%s%n%s%n",
                    result.tokens(),
                    text.getFileName(),
                    dtype,
                    Ranks.count(group.worldSize()),
                    device,
                    device.backend(),
                    result.operators(),
                    result.comparison());
            out.printf(
                    "%s: the largest error relative to the undivided MLP in float64 is %.1e,"
                            + " allowed are %.0e%n",
                    good ? "PASSED" : "FAILED", result.largestError(), tolerance());
            out.flush();
        }
        return good ? 0 : 1;
    }

    private int train(ProcessGroup group, byte[] bytes) {
        MlpTraining.Result result;
        try (MlpJob job = new MlpJob(group, bytes, options.scalarType())) {
            result = job.train(train);
        }
        List<Double> losses = result.losses();
        List<Double> expected = result.expected();
        double error = result.error();
        if (group.rank() == 0) {
            PrintWriter out = out();
            out.printf(
                    "MLP trained on %s, %s, device %s, backend %s%n%n",
                    text.getFileName(), Ranks.count(group.worldSize()), device, device.backend());
            for (int i = 0; i < losses.size(); i++) {
                error = Math.max(error, Math.abs(losses.get(i) / expected.get(i) - 1));
                out.printf(
                        "step %3d   loss %.4f, without sharding %.4f%n",
                        i + 1, losses.get(i), expected.get(i));
            }
            out.printf(
                    "%n%s: the largest error of losses and weights, relative to plain DJL's in"
                            + " float64, is %.1e, allowed are %.0e%n",
                    error <= tolerance() ? "PASSED" : "FAILED", error, tolerance());
            out.flush();
        }
        return error <= tolerance() ? 0 : 1;
    }
}

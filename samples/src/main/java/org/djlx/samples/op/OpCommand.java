// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.op;

import static org.djlx.samples.common.UsageException.parsed;
import static org.djlx.samples.common.UsageException.refuseIf;

import ai.djl.Device;
import ai.djl.ndarray.NDManager;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.spi.Backends;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.samples.common.CliCommand;
import org.djlx.samples.common.RankOptions;
import org.djlx.samples.common.Ranks;
import org.djlx.samples.common.TextTable;
import org.djlx.samples.op.OpKind.Takes;
import org.djlx.samples.op.OpKind.Yields;
import picocli.CommandLine.Command;
import picocli.CommandLine.Help.Visibility;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/** {@code op}: one operation on arrays from files. */
@Command(
        name = "op",
        description = {
            "Runs a collective or a fused operator on arrays from NumPy's .npz files, prints what"
                + " each rank gets, and writes the results as .npz. {rank} in the name of a file"
                + " stands for the rank.",
            "Ranks are threads, or processes; in a process started by 'launch' or torchrun, op runs"
                    + " that process's rank.",
            "scatter, reduceScatter and allToAll take an array for each rank, coalesced operations"
                + " any number of arrays, all other operations one array. broadcast and scatter"
                + " read on the root only. Results are named arr_0 and so on, as by numpy.savez;"
                + " the results of allGatherMatmul product_0 and so on, and gathered; the result of"
                + " matmulReduceScatter product.",
            "Example: samples/run.sh op allGatherMatmul --ranks 2 --example"
        })
public final class OpCommand extends CliCommand {

    private static final int SOME = 2; // number of example arrays of coalesced operations

    @Parameters(paramLabel = "OPERATION", description = "One of ${COMPLETION-CANDIDATES}.")
    private OpKind operation;

    @Mixin
    private final RankOptions options =
            new RankOptions()
                    .ranks(4)
                    .processes()
                    .types(null)
                    .typesOf("Converts the arrays read to a type");

    @Option(names = "--backend", description = "For example shm, nccl or cuda_p2p.")
    private String backend = "shm";

    @Option(names = "--input", paramLabel = "FILE", description = "The inputs.")
    private String input;

    @Option(
            names = "--example",
            description =
                    "Writes example arrays into the files of --input and --b that do not exist."
                            + " Default files: in-{rank}.npz and b-{rank}.npz.")
    private boolean example;

    @Option(
            names = "--array",
            paramLabel = "NAME",
            description =
                    "Takes only this array of the input. Repeat the option for several arrays, in"
                            + " this order.",
            showDefaultValue = Visibility.NEVER)
    private List<String> arrays = new ArrayList<>();

    @Option(
            names = "--split",
            paramLabel = "DIM",
            description =
                    "Splits the arrays of a single input file along this dimension: each rank gets"
                            + " its part.")
    private Integer split;

    @Option(
            names = "--b",
            paramLabel = "FILE",
            description =
                    "The right operands of the fused operators: one matrix or, for allGatherMatmul,"
                            + " several.")
    private String b;

    @Option(
            names = "--split-b",
            paramLabel = "DIM",
            description = "Splits B along this dimension, as --split does the input.")
    private Integer splitB;

    @Option(names = "--output", paramLabel = "FILE", description = "The file of the results.")
    private String output;

    @Option(
            names = "--reduce",
            paramLabel = "OP",
            description = "One of ${COMPLETION-CANDIDATES}; SUM if not given.")
    private ReduceOp.Kind reduce;

    @Option(names = "--factor", paramLabel = "X", description = "The factor of PREMUL_SUM.")
    private Double factor;

    @Option(
            names = "--root",
            paramLabel = "RANK",
            description = "The root of reduce, broadcast, gather and scatter; 0 if not given.")
    private Integer root;

    @Option(
            names = "--dim",
            paramLabel = "DIM",
            description =
                    "The dimension along which a fused operator gathers or scatters; 0 if not"
                            + " given.")
    private Integer dim;

    @Override
    public Integer call() throws Exception {
        if (example) {
            input = input == null && operation.reads() ? "in-{rank}.npz" : input;
            b = b == null && operation.takes(Takes.B) ? "b-{rank}.npz" : b;
        }
        checkOptions();
        if (options.inProcesses()) {
            checkCall(options.count());
            writeExamples(IntStream.range(0, options.count()).boxed().toList(), options.count());
            return Ranks.launch(spec(), options.count());
        }
        Ranks here = options.here();
        checkCall(here.worldSize());
        writeExamples(here.here(), here.worldSize());
        OpJob job = job();
        here.here().forEach(rank -> job.files(rank).forEach(this::checkFile));
        // Read all files before ranks wait for each other: an unreadable file must not look like a
        // lost rank.
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
            Map<Integer, OpJob.Arrays> arrays = new HashMap<>();
            for (int rank : here.here()) {
                arrays.put(rank, job.read(manager, rank, here.worldSize()));
            }
            report(
                    here.worldSize(),
                    here.run(backend, group -> job.run(group, arrays.get(group.rank()))));
        }
        return 0;
    }

    private void writeExamples(List<Integer> ranks, int worldSize) throws IOException {
        if (!example) {
            return;
        }
        for (String file : new String[] {input, b}) {
            refuseIf(
                    file != null
                            && !Files.isDirectory(
                                    OpInput.file(file, 0).toAbsolutePath().getParent()),
                    "there is no folder for the example file %s; create it".formatted(file));
        }
        int count = operation.readsSome() ? SOME : operation.inputs(worldSize);
        for (int rank : ranks) {
            if (operation.readsOn(rank, root())) {
                ExampleFiles.writeInputs(OpInput.file(input, rank), rank, count, worldSize);
            }
            if (b != null) {
                ExampleFiles.writeB(OpInput.file(b, rank), rank);
            }
        }
    }

    private OpJob job() {
        ScalarType type = options.scalarType();
        return new OpJob(
                operation,
                input == null ? null : new OpInput(input, arrays, split, type),
                b == null ? null : new OpInput(b, List.of(), splitB, type),
                output,
                reduceOp(),
                root(),
                dim == null ? 0 : dim);
    }

    private void checkOptions() {
        options.check();
        parsed(() -> Backends.get(backend));
        checkTaken("--input", input, operation.reads());
        checkTaken("--output", output, operation.yields() != Yields.NOTHING);
        checkTaken("--b", b, operation.takes(Takes.B));
        checkTaken("--reduce", reduce, operation.takes(Takes.REDUCE));
        checkTaken("--root", root, operation.takes(Takes.ROOT));
        checkTaken("--dim", dim, operation.takes(Takes.DIM));
        refuseIf(
                operation.reads() && input == null,
                "%s needs --input FILE, or --example".formatted(operation));
        refuseIf(
                operation.takes(Takes.B) && b == null,
                "%s needs --b FILE, or --example".formatted(operation));
        checkSplit("--split", split, "--input", input);
        checkSplit("--split-b", splitB, "--b", b);
        refuseIf(
                (reduce == ReduceOp.Kind.PREMUL_SUM) != (factor != null),
                "--factor goes with --reduce PREMUL_SUM, which needs it");
    }

    private void checkTaken(String option, Object value, boolean taken) {
        refuseIf(value != null && !taken, "%s takes no %s".formatted(operation, option));
    }

    private void checkSplit(String option, Integer dimension, String of, String file) {
        refuseIf(
                dimension != null && (file == null || file.contains(OpInput.RANK)),
                "%s is for one %s that all ranks share".formatted(option, of));
    }

    private void checkCall(int worldSize) {
        refuseIf(
                root() < 0 || root() >= worldSize,
                "--root must be from 0 to %d, the last rank, not %d"
                        .formatted(worldSize - 1, root()));
        if (output == null) {
            return;
        }
        refuseIf(
                operation.yields() == Yields.EVERYWHERE
                        && worldSize > 1
                        && !output.contains(OpInput.RANK),
                "--output needs {rank} in its name: each of %d ranks writes".formatted(worldSize));
        Path folder = Path.of(output).toAbsolutePath().getParent();
        refuseIf(
                !Files.isDirectory(folder),
                "there is no folder %s for --output; create it".formatted(folder));
    }

    private void checkFile(Path file) {
        refuseIf(
                !Files.isRegularFile(file) || !Files.isReadable(file),
                "cannot read the file %s".formatted(file.toAbsolutePath()));
    }

    private int root() {
        return root == null ? 0 : root;
    }

    private ReduceOp reduceOp() {
        if (factor != null) {
            return ReduceOp.premulSum(factor);
        }
        ReduceOp.Kind kind = reduce == null ? ReduceOp.Kind.SUM : reduce;
        return ReduceOp.constants().stream()
                .filter(constant -> constant.kind() == kind)
                .findFirst()
                .orElseThrow();
    }

    private void report(int worldSize, List<List<OpJob.Result>> results) {
        PrintWriter out = out();
        out.printf("%s done, %s, backend %s%n", operation, Ranks.count(worldSize), backend);
        TextTable table = new TextTable("rank", "result", "shape", "type", "first values", "file");
        List<OpJob.Result> all = results.stream().flatMap(List::stream).toList();
        for (OpJob.Result result : all) {
            table.add(
                    result.rank(),
                    result.name(),
                    result.shape(),
                    result.type(),
                    result.values(),
                    result.file() == null ? "-" : result.file());
        }
        if (!all.isEmpty()) {
            out.print(table);
        }
        out.flush();
    }
}

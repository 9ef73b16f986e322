// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.plan;

import static org.djlx.collectives.launch.cli.UsageException.parsed;
import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import ai.djl.Device;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import org.djlx.collectives.launch.cli.CliCommand;
import org.djlx.collectives.launch.cli.Gpus;
import org.djlx.collectives.launch.cli.MatmulShape;
import org.djlx.collectives.launch.cli.RankOptions;
import org.djlx.collectives.launch.cli.TextTable;
import org.djlx.fusedops.cost.FusedOperator;
import org.djlx.fusedops.cost.Machine;
import org.djlx.fusedops.cost.Network;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.GpuRates;
import org.djlx.nativeops.torch.ScalarType;
import picocli.CommandLine.Command;
import picocli.CommandLine.Help.Visibility;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** {@code plan}: predicts the cost of fused operators; needs no GPU. */
@Command(
        name = "plan",
        description = {
            "Predicts the time of each path of a fused operator, which path is taken and why, and"
                    + " the limit: the matmul alone, or the bytes into each GPU at the best rate."
                    + " The model is fitted to measurements; no GPU is needed.",
            "Prints all paths of one combination of shape, ranks and hosts; of several, or with"
                    + " --markdown, a row each."
        })
public final class PlanCommand extends CliCommand {

    private static final int MAX_RANKS = 1024;

    /** The operators, by short names. */
    enum Op {
        ag(FusedOperator.ALL_GATHER_MATMUL),
        rs(FusedOperator.MATMUL_REDUCE_SCATTER);

        private final FusedOperator operator;

        Op(FusedOperator operator) {
            this.operator = operator;
        }
    }

    @Option(
            names = "--shape",
            paramLabel = "M,N,K",
            required = true,
            description = {
                "The unsharded operator: A of (M, K), of each replica, by B of (K, N). May be given"
                        + " several times."
            })
    private List<String> shapes;

    @Option(
            names = "--hosts",
            paramLabel = "N",
            split = ",",
            description =
                    "The number of hosts, or several numbers; the hosts of one group if not given."
                            + " More hosts hold more replicas, which sum gradients.",
            showDefaultValue = Visibility.NEVER)
    private List<Integer> hosts = List.of();

    @Option(
            names = "--op",
            description =
                    "${COMPLETION-CANDIDATES}: all-gather + matmul, matmul + reduce-scatter;"
                            + " both if not given.")
    private Op op;

    @Mixin
    private final RankOptions options =
            new RankOptions()
                    .ranks(
                            8,
                            "Tensor-parallel ranks of a group, or several numbers; 8 if not given.")
                    .several()
                    .most(MAX_RANKS)
                    .types("bfloat16", "float64", "float32", "float16", "bfloat16");

    @Option(
            names = "--machine",
            description =
                    "The GPUs: h200, which was measured; h100, one GPU measured; or"
                            + " this, the first GPU of this process, which is measured once.")
    private String machine = "h200";

    @Option(
            names = "--network-rate",
            paramLabel = "GB/S",
            description = "Rate between hosts for each GPU.")
    private double networkRate = 50;

    @Option(
            names = "--network-latency",
            paramLabel = "US",
            description = "Latency of a message between hosts.")
    private double networkLatency = 10;

    @Option(
            names = "--markdown",
            description = "Prints the rows as a table for docs/fused-operators.md.")
    private boolean markdown;

    @Override
    public Integer call() {
        options.check();
        List<Plan> plans = parsed(this::plans);
        if (!markdown && shapes.size() == 1 && options.counts().size() == 1 && hosts.size() <= 1) {
            print("%s", plans.stream().map(Plan::details).collect(Collectors.joining("\n")));
        } else {
            TextTable table = Plan.table(plans);
            print("%s", markdown ? table.markdown() : table + plans.get(0).basis() + "\n");
        }
        return 0;
    }

    private List<Plan> plans() {
        Machine gpus = machine();
        Network network = new Network(networkRate, networkLatency);
        ScalarType type = options.scalarType();
        List<Plan> plans = new ArrayList<>();
        for (Op each : op == null ? List.of(Op.values()) : List.of(op)) {
            for (String shape : shapes) {
                for (int size : options.counts()) {
                    for (int all : hosts.isEmpty() ? List.of(0) : hosts) {
                        refuseIf(
                                !hosts.isEmpty() && (all < 1 || all > MAX_RANKS),
                                "--hosts must be from 1 to %d, not %d".formatted(MAX_RANKS, all));
                        plans.add(
                                new Plan(
                                        gpus,
                                        network,
                                        each.operator,
                                        MatmulShape.parse(shape),
                                        type,
                                        size,
                                        all));
                    }
                }
            }
        }
        return plans;
    }

    private Machine machine() {
        return switch (machine) {
            case "h200" -> Machine.H200;
            case "h100" -> Machine.H100;
            case "this" -> ofThisProcess();
            default ->
                    throw new IllegalArgumentException(
                            "--machine must be h200, h100 or this, not " + machine);
        };
    }

    private static Machine ofThisProcess() {
        try {
            Gpus.require(1);
        } catch (IllegalStateException e) {
            throw new IllegalArgumentException("--machine this: " + e.getMessage(), e);
        }
        try (CudaDevice device = CudaDevice.open(Device.gpu(0))) {
            return GpuRates.of(device)
                    .map(Machine::of)
                    .orElseThrow(
                            () ->
                                    new IllegalArgumentException(
                                            "--machine this: the GPU cannot be measured; the log"
                                                    + " says why"));
        }
    }
}

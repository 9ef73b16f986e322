/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.plan;

import java.io.PrintWriter;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;
import org.djlx.fusedops.cost.FusedOperator;
import org.djlx.fusedops.cost.Machine;
import org.djlx.fusedops.cost.Network;
import org.djlx.nativeops.ScalarType;
import org.djlx.samples.common.ElementType;
import org.djlx.samples.common.MatmulShape;
import org.djlx.samples.common.RankOptions;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/** {@code plan}: what fused operators are predicted to cost; needs no GPU. */
@Command(
        name = "plan",
        description = {
            "Predicts what a fused operator takes by each of its paths, what is taken and why, and"
                    + " the limit: the matmul alone, or the bytes into each GPU at the best rate."
                    + " The model is fitted to measurements; no GPU is needed.",
            "With one shape, number of ranks and number of hosts it shows each path; with several,"
                    + " or with --markdown, a row for each combination."
        })
public final class PlanCommand implements Callable<Integer> {

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

    @Spec private CommandSpec spec;

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
            names = "--ranks",
            paramLabel = "N",
            split = ",",
            defaultValue = "8",
            description =
                    "Tensor-parallel ranks of a group, or several numbers; ${DEFAULT-VALUE} if not"
                            + " given.")
    private List<Integer> ranks;

    @Option(
            names = "--hosts",
            paramLabel = "N",
            split = ",",
            description =
                    "Hosts, or several numbers. What a group does not need has further replicas,"
                            + " which sum gradients; if not given, a group has what it needs.")
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
                    .types(
                            ElementType.bfloat16,
                            ElementType.float64,
                            ElementType.float32,
                            ElementType.float16,
                            ElementType.bfloat16);

    @Option(
            names = "--machine",
            defaultValue = "h200",
            description = "The GPUs: h200, which is the only kind that was measured.")
    private String machine;

    @Option(
            names = "--multiprocessors",
            paramLabel = "N",
            description = "Scales to GPUs with so many; an H200 has 132.")
    private Integer multiprocessors;

    @Option(
            names = "--clock",
            paramLabel = "MHZ",
            defaultValue = "1980",
            description =
                    "Scales to GPUs of that clock; ${DEFAULT-VALUE}, an H200's, if not given.")
    private double clock;

    @Option(
            names = "--network-rate",
            paramLabel = "GB/S",
            defaultValue = "50",
            description = "From host to host, for each GPU; ${DEFAULT-VALUE} if not given.")
    private double networkRate;

    @Option(
            names = "--network-latency",
            paramLabel = "US",
            defaultValue = "10",
            description = "Of a message from host to host; ${DEFAULT-VALUE} if not given.")
    private double networkLatency;

    @Option(names = "--markdown", description = "Prints the rows as a table for docs/cost.md.")
    private boolean markdown;

    private PlanCommand() {}

    @Override
    public Integer call() {
        List<Plan> plans;
        try {
            plans = plans();
        } catch (IllegalArgumentException e) {
            throw new ParameterException(spec.commandLine(), e.getMessage(), e);
        }
        PrintWriter out = spec.commandLine().getOut();
        if (!markdown && shapes.size() == 1 && ranks.size() == 1 && hosts.size() <= 1) {
            out.print(plans.stream().map(Plan::details).collect(Collectors.joining("\n")));
        } else {
            Table table = Plan.table(plans);
            out.print(markdown ? table.markdown() : table.text());
        }
        out.flush();
        return 0;
    }

    private List<Plan> plans() {
        if (!machine.equals(Machine.H200.name())) {
            throw new IllegalArgumentException(
                    "--machine must be "
                            + Machine.H200.name()
                            + ", not "
                            + machine
                            + "; --multiprocessors and --clock scale to others");
        }
        int count = multiprocessors == null ? Machine.H200.multiprocessors() : multiprocessors;
        Machine scaled = Machine.H200.scaled(count, clock);
        Network network = new Network(networkRate, networkLatency);
        ScalarType type = options.type().scalarType();
        List<Plan> plans = new ArrayList<>();
        for (Op each : op == null ? List.of(Op.values()) : List.of(op)) {
            for (String shape : shapes) {
                for (int size : ranks) {
                    for (int all : hosts.isEmpty() ? List.of(0) : hosts) {
                        requirePositive("--ranks", size);
                        if (!hosts.isEmpty()) {
                            requirePositive("--hosts", all);
                        }
                        plans.add(
                                new Plan(
                                        scaled,
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

    private static void requirePositive(String option, int value) {
        if (value < 1 || value > MAX_RANKS) {
            throw new IllegalArgumentException(
                    option + " must be at least 1 and at most " + MAX_RANKS + ", not " + value);
        }
    }
}

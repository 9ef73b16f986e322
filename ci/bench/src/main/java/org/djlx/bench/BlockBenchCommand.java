/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import java.util.List;
import java.util.concurrent.Callable;
import org.djlx.nativeops.NativeVersions;
import org.djlx.samples.common.ElementType;
import org.djlx.samples.common.Gpus;
import org.djlx.samples.common.RankOptions;
import org.djlx.samples.common.Ranks;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/** {@code bench-block}: measures a tensor-parallel transformer block. */
@Command(
        name = "bench-block",
        description = {
            "Measures the forward and backward pass of a sequence-parallel transformer block of"
                    + " Llama 3 8B's sizes with float32 parameters, its matmuls alone and its"
                    + " attention alone. Times are the slowest rank's medians.",
            "Ranks are threads: one for each GPU, or 2 on the CPU, where smaller sizes make sense."
        })
public final class BlockBenchCommand implements Callable<Integer> {

    @Spec private CommandSpec spec;

    @Mixin
    private final RankOptions options =
            new RankOptions()
                    .ranksOfGpus()
                    .types(ElementType.bfloat16, ElementType.bfloat16, ElementType.float32)
                    .typesOf("Element type of activations");

    @Option(
            names = "--tokens",
            defaultValue = "8192",
            description = "Length of the sequence; ${DEFAULT-VALUE} if not given.")
    private int tokens;

    @Option(
            names = "--heads",
            defaultValue = "32",
            description = "Heads of 128 values; ${DEFAULT-VALUE} if not given.")
    private int heads;

    @Option(
            names = "--key-value-heads",
            defaultValue = "8",
            description = "${DEFAULT-VALUE} if not given.")
    private int keyValueHeads;

    @Option(
            names = "--hidden",
            defaultValue = "14336",
            description = "Hidden values of the MLP; ${DEFAULT-VALUE} if not given.")
    private int hidden;

    @Option(
            names = "--warm-up",
            defaultValue = "300",
            description = "Uncounted rounds; ${DEFAULT-VALUE} if not given.")
    private int warmUp;

    @Option(names = "--turns", defaultValue = "20", description = "${DEFAULT-VALUE} if not given.")
    private int turns;

    @Option(
            names = "--rounds",
            defaultValue = "8",
            description =
                    "Rounds of a turn, one after the other as the layers of a model; a turn starts"
                            + " with an idle GPU. ${DEFAULT-VALUE} if not given.")
    private int rounds;

    @Mixin private ReportOptions reports;

    private BlockBenchCommand() {}

    @Override
    public Integer call() throws Exception {
        options.check();
        int gpus = Gpus.count();
        int count = options.count();
        if (gpus > 0) {
            Gpus.require(count);
        }
        ElementType type = options.type();
        if (tokens < 1 || tokens % count != 0 || turns < 1 || rounds < 1 || warmUp < 0) {
            throw new ParameterException(
                    spec.commandLine(),
                    String.format(
                            "--tokens %d must be divisible among %s, --turns and --rounds be 1 or"
                                    + " more, not %d and %d, and --warm-up 0 or more, not %d",
                            tokens, Ranks.count(count), turns, rounds, warmUp));
        }
        if (heads < 1
                || keyValueHeads < 1
                || heads % count != 0
                || heads % keyValueHeads != 0
                || hidden < 1
                || hidden % count != 0) {
            throw new ParameterException(
                    spec.commandLine(),
                    String.format(
                            "--heads %d and --hidden %d must be 1 or more and divisible among %s,"
                                    + " and --key-value-heads %d divide --heads",
                            heads, hidden, Ranks.count(count), keyValueHeads));
        }
        int headSize = 128;
        BlockBench.Size size =
                new BlockBench.Size(
                        tokens, heads * headSize, heads, keyValueHeads, headSize, hidden);
        List<BlockBench.Times> all =
                options.here()
                        .run(
                                gpus > 0 ? "cuda_p2p" : "shm",
                                group ->
                                        new BlockBench(
                                                        group,
                                                        size,
                                                        type.scalarType(),
                                                        warmUp,
                                                        turns,
                                                        rounds)
                                                .run());
        double block = slowest(all.stream().map(BlockBench.Times::block).toList());
        double fromIdle = slowest(all.stream().map(BlockBench.Times::fromIdle).toList());
        double matmuls = slowest(all.stream().map(BlockBench.Times::matmuls).toList());
        double attention = slowest(all.stream().map(BlockBench.Times::attention).toList());
        double both = slowest(all.stream().map(BlockBench.Times::both).toList());
        spec.commandLine()
                .getOut()
                .printf(
                        "%s, %d tokens, %s: block %.2f ms (%.2f from idle), its matmuls alone"
                                + " %.2f ms, its attention alone %.2f ms, one behind the other"
                                + " %.2f ms; block / matmuls %.3f, block / both %.3f%n",
                        Ranks.count(count) + " on " + (gpus > 0 ? "GPUs" : "the CPU"),
                        tokens,
                        type,
                        block,
                        fromIdle,
                        matmuls,
                        attention,
                        both,
                        block / matmuls,
                        block / both);
        spec.commandLine().getOut().flush();
        if (reports.json() != null) {
            BenchReport report =
                    reports.report(
                            "a transformer block, forward and backward, median",
                            NativeVersions.query());
            report.put("gpus", gpus);
            report.put("ranks", count);
            report.put("tokens", tokens);
            report.put("size", size.size());
            report.put("heads", heads);
            report.put("keyValueHeads", keyValueHeads);
            report.put("hidden", hidden);
            report.put("dtype", type.name());
            report.put("turns", turns);
            report.put("rounds", rounds);
            report.put("blockMilliseconds", block);
            report.put("blockFromIdleMilliseconds", fromIdle);
            report.put("matmulsMilliseconds", matmuls);
            report.put("attentionMilliseconds", attention);
            report.put("matmulsAndAttentionMilliseconds", both);
            report.store(reports.json());
        }
        return 0;
    }

    private static double slowest(List<Double> times) {
        return times.stream().mapToDouble(Double::doubleValue).max().orElseThrow();
    }
}

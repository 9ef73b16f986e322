// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import java.util.LinkedHashMap;
import java.util.Map;
import org.djlx.collectives.launch.cli.RankOptions;
import org.djlx.collectives.launch.cli.Ranks;
import org.djlx.nativeops.NativeVersions;
import org.djlx.nativeops.torch.ScalarType;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** {@code bench-block}: measures a tensor-parallel transformer block. */
@Command(
        name = "bench-block",
        description = {
            "Measures the forward and backward pass of a sequence-parallel transformer block of"
                    + " Llama 3 8B's sizes with float32 parameters, its matmuls alone and its"
                    + " attention alone. Times are the slowest rank's medians.",
            "Ranks are threads: one for each GPU, or 2 on the CPU, where smaller sizes make sense."
        })
final class BlockBenchCommand extends ReportCommand {

    private static final int HEAD = 128; // elements per head

    @Mixin
    private final RankOptions options =
            new RankOptions()
                    .ranksOfGpus()
                    .types("bfloat16", "bfloat16", "float32")
                    .typesOf("Element type of activations");

    @Option(names = "--tokens", description = "Length of the sequence.")
    private int tokens = 8192;

    @Option(names = "--heads", description = "Heads of 128 values.")
    private int heads = 32;

    @Option(names = "--key-value-heads", description = "Heads of keys and values.")
    private int keyValueHeads = 8;

    @Option(names = "--hidden", description = "Hidden values of the MLP.")
    private int hidden = 14336;

    @Option(names = "--warm-up", description = "Uncounted rounds.")
    private int warmUp = 300;

    @Option(names = "--turns", description = "Measurements.")
    private int turns = 20;

    @Option(
            names = "--rounds",
            description =
                    "Rounds of a turn, one after the other as the layers of a model; a turn starts"
                            + " with an idle GPU.")
    private int rounds = 8;

    @Override
    public Integer call() throws Exception {
        options.check();
        int gpus = options.gpus();
        int count = options.count();
        refuseIf(
                tokens < 1 || tokens % count != 0 || turns < 1 || rounds < 1 || warmUp < 0,
                ("--tokens %d must be divisible among %s, --turns and --rounds be 1 or more, not %d"
                                + " and %d, and --warm-up 0 or more, not %d")
                        .formatted(tokens, Ranks.count(count), turns, rounds, warmUp));
        refuseIf(
                heads < 1
                        || keyValueHeads < 1
                        || heads % count != 0
                        || heads % keyValueHeads != 0
                        || hidden < 1
                        || hidden % count != 0,
                ("--heads %d and --hidden %d must be 1 or more and divisible among %s, and"
                                + " --key-value-heads %d divide --heads")
                        .formatted(heads, hidden, Ranks.count(count), keyValueHeads));
        BlockBench.Size size =
                new BlockBench.Size(tokens, heads * HEAD, heads, keyValueHeads, HEAD, hidden);
        ScalarType type = options.scalarType();
        Map<String, Double> slowest = new LinkedHashMap<>();
        options.here()
                .run(
                        gpus > 0 ? "cuda_p2p" : "shm",
                        group -> new BlockBench(group, size, type, warmUp, turns, rounds).run())
                .forEach(
                        medians ->
                                medians.forEach(
                                        (name, time) -> slowest.merge(name, time, Math::max)));
        print("%s, %d tokens, %s%n", options.placement(), tokens, options.type());
        begin("a transformer block, forward and backward, median", NativeVersions.query());
        put("gpus", gpus);
        put("ranks", count);
        put("tokens", tokens);
        put("size", size.size());
        put("heads", heads);
        put("keyValueHeads", keyValueHeads);
        put("hidden", hidden);
        put("dtype", options.type());
        put("turns", turns);
        put("rounds", rounds);
        slowest.forEach(this::put);
        store();
        printTables();
        return 0;
    }
}

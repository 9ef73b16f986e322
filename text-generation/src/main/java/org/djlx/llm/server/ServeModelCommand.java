// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.djlx.collectives.launch.cli.UsageException.parsed;
import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import ai.djl.Device;
import ai.djl.ndarray.NDManager;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import org.djlx.collectives.launch.cli.CliCommand;
import org.djlx.collectives.launch.cli.RankOptions;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.files.ByteLevelTokenizer;
import org.djlx.llm.files.LlamaDirectory;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.WeightMap;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/** {@code serve-model}: writes a small random model to try things with. */
@Command(
        name = "serve-model",
        description = {
            "Writes a Llama with random weights in Hugging Face's layout: config.json, safetensors,"
                + " a tokenizer of bytes, serving.properties. Its texts mean nothing and are the"
                + " same in every run.",
            "The sizes of Llama 3's 8B: --hidden 4096 --intermediate 14336 --layers 32 --heads 32"
                    + " --kv-heads 8 --vocabulary 128256 --dtype bfloat16"
        })
public final class ServeModelCommand extends CliCommand {

    @Parameters(paramLabel = "OUT", description = "The directory; files in it are replaced.")
    private Path directory;

    @Option(names = "--hidden")
    private int hidden = 128;

    @Option(names = "--intermediate")
    private int intermediate = 256;

    @Option(names = "--layers")
    private int layers = 2;

    @Option(names = "--heads")
    private int heads = 8;

    @Option(names = "--kv-heads")
    private int kvHeads = 4;

    @Option(names = "--vocabulary", description = "Tokens, 261 or more.")
    private int vocabulary = 512;

    @Option(names = "--max-length", description = "Tokens of a prompt and its answer.")
    private int maxLength = 1024;

    @Mixin
    private final RankOptions options =
            new RankOptions()
                    .ranks(2, "Ranks on which DJL Serving loads the model; 2 if not given.")
                    .types("float32", "float32", "float16", "bfloat16")
                    .typesOf("Element type of the weights");

    @Option(names = "--tied", description = "Uses the embedding as output weights, too.")
    private boolean tied;

    @Option(
            names = "--max-file-size",
            paramLabel = "BYTES",
            description = "Splits larger weights into several files with an index.")
    private long maxFileBytes = 5000000000L;

    @Option(names = "--seed", description = "Seed of the weights.")
    private int seed = 1;

    @Override
    public Integer call() throws IOException {
        options.check();
        refuseIf(
                maxFileBytes < 1,
                "--max-file-size must be 1 or more, not %s".formatted(maxFileBytes));
        refuseIf(
                vocabulary < ByteLevelTokenizer.SMALLEST,
                "--vocabulary must be %s or more, not %s"
                        .formatted(ByteLevelTokenizer.SMALLEST, vocabulary));
        ModelConfig config = config();
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
            manager.getEngine().setRandomSeed(seed);
            LlamaDirectory.write(
                    directory,
                    config,
                    options.count(),
                    maxFileBytes,
                    weight -> LlamaDirectory.random(manager, weight));
        }
        List<TensorSpec> tensors = WeightMap.tensors(config);
        print(
                "Wrote a Llama of %,d parameters (%,d bytes, %s) and a tokenizer of %d"
                        + " tokens to %s%n",
                tensors.stream().mapToLong(tensor -> tensor.shape().size()).sum(),
                tensors.stream().mapToLong(TensorSpec::byteSize).sum(),
                options.type(),
                vocabulary,
                directory);
        return 0;
    }

    private ModelConfig config() {
        refuseIf(
                heads < 1 || hidden % heads != 0,
                "--heads %d does not divide --hidden %d".formatted(heads, hidden));
        return parsed(
                () -> {
                    ModelConfig config =
                            LlamaDirectory.config(
                                    vocabulary,
                                    hidden,
                                    intermediate,
                                    layers,
                                    heads,
                                    kvHeads,
                                    maxLength,
                                    10_000,
                                    tied,
                                    options.scalarType());
                    config.checkDivisible(options.count());
                    return config;
                });
    }
}

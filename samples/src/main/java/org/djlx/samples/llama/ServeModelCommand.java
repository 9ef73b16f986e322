/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.llama;

import ai.djl.Device;
import ai.djl.ndarray.NDManager;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.fusedops.llm.model.LlamaConfig;
import org.djlx.samples.common.ElementType;
import org.djlx.samples.common.RankOptions;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;

/** {@code serve-model}: writes a small random model to try things with. */
@Command(
        name = "serve-model",
        description = {
            "Writes a Llama with random weights in Hugging Face's layout: config.json, safetensors,"
                + " a tokenizer trained on a text, serving.properties. Its texts mean nothing and"
                + " are the same in every run.",
            "The sizes of Llama 3's 8B: --hidden 4096 --intermediate 14336 --layers 32 --heads 32"
                    + " --kv-heads 8 --vocabulary 128256 --dtype bfloat16"
        })
public final class ServeModelCommand implements Callable<Integer> {

    private static final String DEFAULT = "${DEFAULT-VALUE} if not given.";
    private static final int MOST_LEARNED = 4096;
    private static final double EPSILON = 1e-5;
    private static final double THETA = 10_000;

    @Spec private CommandSpec spec;

    @Parameters(paramLabel = "OUT", description = "The directory; files in it are replaced.")
    private Path directory;

    @Option(
            names = "--text",
            paramLabel = "FILE",
            description = "The text that the tokenizer is trained on; the README if not given.")
    private Path text;

    @Option(names = "--hidden", defaultValue = "128", description = DEFAULT)
    private int hidden;

    @Option(names = "--intermediate", defaultValue = "256", description = DEFAULT)
    private int intermediate;

    @Option(names = "--layers", defaultValue = "2", description = DEFAULT)
    private int layers;

    @Option(names = "--heads", defaultValue = "8", description = DEFAULT)
    private int heads;

    @Option(names = "--kv-heads", defaultValue = "4", description = DEFAULT)
    private int kvHeads;

    @Option(
            names = "--vocabulary",
            defaultValue = "512",
            description = "Tokens, 261 or more; ${DEFAULT-VALUE} if not given.")
    private int vocabulary;

    @Option(
            names = "--max-length",
            defaultValue = "1024",
            description = "Tokens of a prompt and its answer; ${DEFAULT-VALUE} if not given.")
    private int maxLength;

    @Mixin
    private final RankOptions options =
            new RankOptions()
                    .ranks(2, "Ranks on which DJL Serving loads the model; 2 if not given.")
                    .types(
                            ElementType.float32,
                            ElementType.float32,
                            ElementType.float16,
                            ElementType.bfloat16)
                    .typesOf("Element type of the weights");

    @Option(names = "--tied", description = "Uses the embedding as output weights, too.")
    private boolean tied;

    @Option(
            names = "--max-file-size",
            paramLabel = "BYTES",
            defaultValue = "5000000000",
            description =
                    "Splits larger weights into several files with an index; ${DEFAULT-VALUE} if"
                            + " not given.")
    private long maxFileBytes;

    @Option(
            names = "--seed",
            defaultValue = "1",
            description = "Seed of the weights; ${DEFAULT-VALUE} if not given.")
    private int seed;

    private ServeModelCommand() {}

    @Override
    public Integer call() throws IOException {
        if (text == null) {
            text = Path.of(System.getProperty("djlx.home", "."), "README.md");
        }
        options.check();
        if (!Files.isRegularFile(text)) {
            throw new ParameterException(
                    spec.commandLine(), "cannot read the text file " + text.toAbsolutePath());
        }
        if (maxFileBytes < 1) {
            throw new ParameterException(
                    spec.commandLine(), "--max-file-size must be 1 or more, not " + maxFileBytes);
        }
        if (vocabulary < BytePairEncoding.smallest()) {
            throw new ParameterException(
                    spec.commandLine(),
                    "--vocabulary must be "
                            + BytePairEncoding.smallest()
                            + " or more, not "
                            + vocabulary);
        }
        LlamaConfig config = config();
        // More would take long to train, and the README has no more words.
        BytePairEncoding tokenizer =
                BytePairEncoding.train(Files.readString(text), Math.min(vocabulary, MOST_LEARNED));
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
            manager.getEngine().setRandomSeed(seed);
            LlamaDirectory.write(
                    directory,
                    config,
                    tokenizer,
                    options.count(),
                    maxFileBytes,
                    weight -> LlamaDirectory.random(manager, weight));
        }
        List<TensorSpec> tensors = LlamaDirectory.tensors(config);
        spec.commandLine()
                .getOut()
                .printf(
                        Locale.ROOT,
                        "Wrote a Llama of %,d parameters (%,d bytes, %s) and a tokenizer of %d"
                                + " tokens to %s%n",
                        tensors.stream().mapToLong(tensor -> tensor.shape().size()).sum(),
                        tensors.stream().mapToLong(TensorSpec::byteSize).sum(),
                        options.type(),
                        tokenizer.size(),
                        directory);
        return 0;
    }

    private LlamaConfig config() {
        try {
            if (heads < 1 || hidden % heads != 0) {
                throw new IllegalArgumentException(
                        String.format("--heads %d does not divide --hidden %d", heads, hidden));
            }
            LlamaConfig config =
                    new LlamaConfig(
                            vocabulary,
                            hidden,
                            intermediate,
                            layers,
                            heads,
                            kvHeads,
                            hidden / heads,
                            maxLength,
                            EPSILON,
                            new LlamaConfig.Rope(THETA, 1, 0, 0, 0),
                            tied,
                            List.of(),
                            options.type().scalarType());
            config.checkDivisible(options.count());
            return config;
        } catch (IllegalArgumentException e) {
            throw new ParameterException(spec.commandLine(), e.getMessage(), e);
        }
    }
}

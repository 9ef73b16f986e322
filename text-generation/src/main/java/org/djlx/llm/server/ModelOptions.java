// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.djlx.collectives.launch.cli.UsageException.parsed;
import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import ai.djl.Device;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.function.UnaryOperator;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.launch.cli.DeviceKind;
import org.djlx.collectives.launch.cli.Gpus;
import org.djlx.collectives.launch.cli.RankOptions;
import org.djlx.collectives.launch.cli.Ranks;
import org.djlx.collectives.launch.cli.UsageException;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.llm.engine.EmbeddingEngine;
import org.djlx.llm.engine.LoadingProgress;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.files.ModelHub;
import org.djlx.llm.model.KvCacheDtype;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Quantization;
import org.djlx.nativeops.NativeLibrary;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;

/** The options of commands that generate text: the ranks of the model, and its limits. */
public final class ModelOptions {

    /** How a command describes the parameter of {@link #directory(String)}. */
    public static final String MODEL =
            "A model: its directory in Hugging Face's layout, a GGUF file, or its name on a hub,"
                + " such as Qwen/Qwen3-0.6B, which is downloaded; serve-model writes a model to try"
                + " things with.";

    private static final Duration QUIET = Duration.ofSeconds(2);

    @Spec(Spec.Target.MIXEE)
    private CommandSpec spec;

    @Mixin
    private final RankOptions options =
            new RankOptions()
                    .ranks(
                            1,
                            "Ranks that share the model; 1 if not given. Under launch each process"
                                    + " is a rank, and rank 0 alone takes requests.")
                    .device();

    @Option(
            names = "--revision",
            paramLabel = "NAME",
            description = "Branch, tag or commit of a model of a hub; main if not given.")
    private String revision;

    @Option(
            names = "--hub",
            paramLabel = "URL",
            description =
                    "The Hugging Face hub; HF_ENDPOINT or https://huggingface.co if not given. A"
                            + " token is read from HF_TOKEN, or as 'hf auth login' keeps it.")
    private String hub;

    @Option(
            names = "--hub-cache",
            paramLabel = "DIR",
            description =
                    "Where models of a hub are kept, as huggingface_hub does; HF_HUB_CACHE, or hub"
                            + " in HF_HOME, if not given.")
    private Path hubCache;

    @Option(
            names = "--offline",
            description = "Take models of a hub from the cache only, as with HF_HUB_OFFLINE=1.")
    private boolean offline;

    @Option(
            names = "--max-length",
            description =
                    "Maximum number of tokens of a prompt and its answer; if not given, the model's"
                            + " limit, but at most 8192.")
    private Integer maxLength;

    @Option(names = "--max-running", description = "Maximum number of sequences in a batch.")
    private int maxRunning = 256;

    @Option(names = "--max-queued", description = "Maximum number of waiting requests.")
    private int maxQueued = 1024;

    @Option(
            names = "--cache-bytes",
            paramLabel = "BYTES",
            description =
                    "Size of the KV cache on each rank; if not given, what"
                            + " --gpu-memory-utilization says.")
    private Long cacheBytes;

    @Option(
            names = "--gpu-memory-utilization",
            paramLabel = "PART",
            description =
                    "Part of the memory for the KV cache that the device has left after the weights"
                            + " and a step's activations; on CPUs 2 GiB at most on each rank.")
    private double memoryUtilization = 0.9;

    @Option(
            names = "--quantize",
            paramLabel = "WAY",
            description =
                    "How weights are stored, one of ${COMPLETION-CANDIDATES}; fp8 is for GPUs, int8"
                            + " for CPUs; none, in the model's type, if not given.")
    private Quantization quantization = Quantization.NONE;

    @Option(
            names = "--kv-cache-dtype",
            paramLabel = "TYPE",
            description =
                    "How the KV cache stores keys and values, one of ${COMPLETION-CANDIDATES}; fp8"
                            + " is for GPUs; auto, in the model's type, if not given.")
    private KvCacheDtype kvCacheDtype = KvCacheDtype.AUTO;

    @Option(
            names = "--no-prefix-caching",
            description = "Compute every prompt anew; see docs/text-generation.md.")
    private boolean noPrefixCaching;

    @Option(
            names = "--batch-invariant",
            description =
                    "Give a request the same bits in every batch, on GPUs; see"
                            + " docs/text-generation.md.")
    private boolean batchInvariant;

    @Option(names = "--rank-timeout", description = "How long ranks wait for each other.")
    private int rankTimeout = 60;

    /**
     * Returns the directory of a model that the user names by it, or by ORG/NAME; downloads the
     * model, with its progress on stderr, if its files are not there.
     *
     * @throws UsageException if it is neither, or the model is not supported
     */
    public Path directory(String model) throws IOException {
        ModelHub.Builder builder = ModelHub.builder();
        if (hub != null) {
            builder.optEndpoint(hub);
        }
        if (hubCache != null) {
            builder.optCache(hubCache);
        }
        if (ranks().here().contains(0)) {
            builder.optProgress(new LoadingProgress(this::print));
        }
        if (revision != null) {
            refuseIf(
                    Files.exists(Path.of(model)),
                    "--revision is for models of a hub, and %s is a file or directory"
                            .formatted(model));
            builder.optRevision(revision);
        }
        if (offline) {
            builder.optOffline(true);
        }
        return parsed(() -> builder.build().directory(model));
    }

    /**
     * Loads a model or, in a process started by {@code launch} or torchrun, its rank's part: it may
     * then {@linkplain TextEngine#isFollower follow} the generator of another process. The caller
     * closes it.
     *
     * @param change sets options that the user cannot give
     * @throws UsageException if an option does not fit the model
     */
    public TextEngine load(Path directory, UnaryOperator<TextEngine.Builder> change)
            throws IOException {
        check();
        TextEngine.Builder builder =
                TextEngine.builder()
                        .setDirectory(directory)
                        .optMaxRunning(maxRunning)
                        .optMaxQueued(maxQueued)
                        .optQuantization(quantization)
                        .optKvCacheDtype(kvCacheDtype)
                        .optGpuMemoryUtilization(memoryUtilization)
                        .optPrefixCaching(!noPrefixCaching)
                        .optBatchInvariant(batchInvariant)
                        .optTimeout(Duration.ofSeconds(rankTimeout));
        if (maxLength != null) {
            builder.optMaxLength(maxLength);
        }
        if (cacheBytes != null) {
            builder.optCacheBytes(cacheBytes);
        }
        builder.optProgress(new LoadingProgress(new SlowProgress(QUIET, this::print)));
        return parsed(
                () -> {
                    place(builder);
                    return change.apply(builder).build();
                });
    }

    /**
     * Loads an embedding model on the ranks, of which each computes whole texts. The caller closes
     * it.
     *
     * @throws UsageException if an option does not fit the model
     */
    EmbeddingEngine loadEmbeddings(Path directory) throws IOException {
        check();
        requireTokenizer(directory);
        refuseIf(
                ranks().areProcesses(),
                "embedding models run in one process: start it without launch, with --ranks");
        refuseIf(quantization != Quantization.NONE, "--quantize is for models that generate text");
        EmbeddingEngine.Builder builder = EmbeddingEngine.builder().setDirectory(directory);
        if (isGpu()) {
            builder.optDevices(ranks().here().stream().map(Device::gpu).toList());
        } else {
            builder.optRanks(ranks().worldSize());
        }
        return parsed(builder::build);
    }

    private void print(String line) {
        spec.commandLine().getErr().printf("%s%n", line).flush();
    }

    /**
     * Throws a {@link UsageException}, before loading, which may take minutes, if the model has no
     * tokenizer. {@code config.json} may be missing.
     */
    public void requireTokenizer(Path directory) {
        refuseIf(
                Files.exists(directory.resolve("config.json"))
                        && !Files.exists(directory.resolve("tokenizer.json")),
                "%s has no tokenizer.json: it cannot turn text into tokens".formatted(directory));
    }

    /**
     * Throws a {@link UsageException}, before loading, if an answer of {@code maxTokens} and a
     * prompt may be too long, or config.json is invalid. It may be missing.
     */
    public void requireRoom(Path directory, int maxTokens) throws IOException {
        if (!Files.exists(directory.resolve("config.json"))) {
            return; // load() reports it.
        }
        int most = parsed(() -> ModelConfig.read(directory).maxLength());
        int wanted = maxLength == null ? TextEngine.DEFAULT_MAX_LENGTH : maxLength;
        int limit = Math.min(wanted, most);
        refuseIf(
                maxTokens >= limit,
                ("--max-tokens %d leaves no room for the prompt: %s takes %d tokens of"
                                + " prompt and answer together; give less%s")
                        .formatted(
                                maxTokens,
                                directory,
                                limit,
                                limit < most ? ", or a --max-length of " + most + " at most" : ""));
    }

    /**
     * Checks the options that do not depend on the model.
     *
     * @throws UsageException if an option is out of range
     * @throws IllegalStateException if there are too few GPUs
     */
    public void check() {
        options.check();
        positive("--max-length", maxLength);
        positive("--max-running", maxRunning);
        positive("--max-queued", maxQueued);
        positive("--cache-bytes", cacheBytes);
        positive("--rank-timeout", rankTimeout);
        if (isGpu()) {
            Gpus.require(ranks().here().size(), NativeLibrary.NCCL, NativeLibrary.NVRTC);
        }
    }

    private void positive(String name, Number value) {
        refuseIf(
                value != null && value.longValue() < 1,
                "%s must be 1 or more, not %s".formatted(name, value));
    }

    public Ranks ranks() {
        return options.here();
    }

    public boolean isGpu() {
        return options.deviceKind() == DeviceKind.gpu;
    }

    public Quantization quantization() {
        return quantization;
    }

    /** Describes the ranks of the model, such as "2 cpu ranks, threads". */
    public String placement() {
        Ranks all = ranks();
        String ranks = Ranks.count(all.worldSize()).replace(" ", " " + options.deviceKind() + " ");
        return ranks + (all.areProcesses() ? ", processes" : ", threads");
    }

    /** Gives the builder its ranks; ranks that are processes join their group. */
    private void place(TextEngine.Builder builder) {
        Ranks all = ranks();
        if (all.areProcesses()) {
            builder.optProcessGroup(process());
        } else if (isGpu()) {
            builder.optDevices(all.here().stream().map(Device::gpu).toList());
        } else {
            builder.optRanks(all.worldSize());
        }
    }

    private ProcessGroup process() {
        Duration timeout = Duration.ofSeconds(rankTimeout);
        if (!isGpu()) {
            return ProcessGroups.init("shm", new BackendOptions(timeout));
        }
        NcclOptions nccl = NcclOptions.builder().optTimeout(timeout).build();
        return ProcessGroups.init(
                "cuda_p2p", CudaP2pOptions.builder().optNcclOptions(nccl).build());
    }
}

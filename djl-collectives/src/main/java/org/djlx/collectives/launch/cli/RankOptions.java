// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch.cli;

import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import java.util.List;
import java.util.Locale;
import java.util.stream.Stream;
import org.djlx.nativeops.torch.ScalarType;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Model.OptionSpec;
import picocli.CommandLine.Option;

/**
 * The options {@code --ranks}, {@code --processes}, {@code --device} and {@code --dtype}. A command
 * selects its options where it declares the mixin:
 *
 * <pre>{@code
 * @Mixin private final RankOptions options =
 *         new RankOptions().ranks(4).processes().device().types("float32");
 * }</pre>
 *
 * {@link RootCommand} removes the options that a command has not selected.
 */
public final class RankOptions {

    private static final String[] TYPES =
            "float64 float32 float16 bfloat16 int64 int32 int8 uint8 bool".split(" ");
    private static final int MOST_GPUS = 1024; // Gpus.require checks the number of GPUs
    private static final int CPU_RANKS = 2; // default of ranksOfGpus without a GPU

    @Option(names = "--ranks", paramLabel = "N")
    private String requested; // null: not given; one number unless several are allowed

    @Option(
            names = "--processes",
            description = "Runs each rank in its own process, not on a thread.")
    private boolean processes;

    @Option(
            names = "--device",
            defaultValue = "cpu",
            description = "One of ${COMPLETION-CANDIDATES}. With gpu, each rank needs a GPU.")
    private DeviceKind device;

    @Option(names = "--dtype", paramLabel = "TYPE")
    private String type;

    private CommandSpec spec; // of the command, even if this mixin is inside another mixin
    private String ranksText; // null: no --ranks
    private int otherwise; // default of --ranks; 0 for all GPUs
    private int most = Ranks.MOST_THREADS;
    private boolean several;
    private boolean hasProcesses;
    private boolean hasDevice;
    private String typeText = "Element type";
    private String typeOtherwise; // null: --dtype has no default
    private List<String> types = List.of(); // empty: no --dtype

    /** Adds {@code --ranks} with a default. */
    public RankOptions ranks(int number) {
        return ranks(number, "Number of ranks; " + number + " if not given.");
    }

    /** Adds {@code --ranks} with its own default and description. */
    public RankOptions ranks(int number, String description) {
        otherwise = number;
        ranksText = description;
        return this;
    }

    /**
     * Adds {@code --ranks}. The default is one rank for each GPU, or two ranks on the CPU if there
     * is no GPU.
     */
    public RankOptions ranksOfGpus() {
        return ranks(0, "Number of ranks; one for each GPU, or 2 on the CPU, if not given.");
    }

    /** Allows several numbers, separated by commas, for commands that run no ranks. */
    public RankOptions several() {
        several = true;
        return this;
    }

    /** Sets the largest {@code --ranks}. */
    public RankOptions most(int number) {
        most = number;
        return this;
    }

    /** Adds {@code --processes}. */
    public RankOptions processes() {
        hasProcesses = true;
        return this;
    }

    /** Adds {@code --device}. */
    public RankOptions device() {
        hasDevice = true;
        return this;
    }

    /**
     * Adds {@code --dtype} with a default, or null for none, and the allowed types; all if none are
     * given.
     */
    public RankOptions types(String defaultType, String... allowed) {
        typeOtherwise = defaultType;
        types = List.of(allowed.length == 0 ? TYPES : allowed);
        return this;
    }

    /** Sets the description of {@code --dtype}, such as "Element type of weights". */
    public RankOptions typesOf(String text) {
        typeText = text;
        return this;
    }

    /** Removes the options that a command has not selected, and describes the selected ones. */
    void configure(CommandSpec command) {
        spec = command;
        configure(
                command,
                "--ranks",
                ranksText == null
                        ? null
                        : option("--ranks")
                                .paramLabel(several ? "N[,N...]" : "N")
                                .description(ranksText));
        configure(command, "--processes", hasProcesses ? option("--processes") : null);
        configure(command, "--device", hasDevice ? option("--device") : null);
        String end = typeOtherwise == null ? "." : "; " + typeOtherwise + " if not given.";
        configure(
                command,
                "--dtype",
                types.isEmpty()
                        ? null
                        : option("--dtype")
                                .description(typeText + ", one of " + names() + end)
                                .completionCandidates(types));
    }

    private OptionSpec.Builder option(String name) {
        return spec.findOption(name).toBuilder();
    }

    private static void configure(CommandSpec command, String name, OptionSpec.Builder option) {
        command.remove(command.findOption(name));
        if (option != null) {
            command.addOption(option.build());
        }
    }

    private String names() {
        return String.join(", ", types);
    }

    /**
     * Checks each option, and whether the options fit each other and this machine; throws a
     * UsageException that names the range.
     */
    public void check() {
        int limit = device == DeviceKind.gpu ? Math.max(most, MOST_GPUS) : most;
        for (int number : counts()) {
            Ranks.check("--ranks", number, limit, processes);
        }
        refuseIf(
                counts().size() > 1 && !several,
                "--ranks takes one number, not %s".formatted(requested));
        if (!types.isEmpty()) {
            type();
        }
    }

    /** Returns the number of ranks. */
    public int count() {
        if (requested != null) {
            return counts().get(0);
        }
        if (otherwise > 0) {
            return otherwise;
        }
        int gpus = Gpus.count();
        return gpus == 0 ? CPU_RANKS : Math.min(gpus, most);
    }

    /**
     * Returns the number of GPUs of this host, for {@link #ranksOfGpus}; 0 if the ranks run on the
     * CPU. Throws IllegalStateException if there are GPUs, but fewer than ranks.
     */
    public int gpus() {
        int gpus = Gpus.count();
        if (gpus > 0) {
            Gpus.require(count());
        }
        return gpus;
    }

    /** Returns the ranks of {@link #ranksOfGpus} as text, such as "2 ranks on GPUs". */
    public String placement() {
        return Ranks.count(count()) + " on " + (Gpus.count() > 0 ? "GPUs" : "the CPU");
    }

    /** Returns the numbers of ranks. */
    public List<Integer> counts() {
        return requested == null
                ? List.of(count())
                : Stream.of(requested.split(",", -1)).map(RankOptions::number).toList();
    }

    private static int number(String text) {
        refuseIf(!text.matches("-?\\d{1,9}"), "--ranks must be a number, not '%s'".formatted(text));
        return Integer.parseInt(text);
    }

    /**
     * Returns the ranks that run in this process; throws UsageException if it belongs to a job with
     * another number of ranks.
     */
    public Ranks here() {
        return Ranks.of(requested == null ? null : count(), count());
    }

    /** Returns whether the command starts a process for each rank. */
    public boolean inProcesses() {
        return processes;
    }

    /** Returns where the ranks run. */
    public DeviceKind deviceKind() {
        return device;
    }

    /** Returns the element type: the user's, or the default; null if there is neither. */
    public String type() {
        if (type == null) {
            return typeOtherwise;
        }
        String name = type.toLowerCase(Locale.ROOT);
        refuseIf(
                !types.contains(name),
                "--dtype must be one of %s, not %s".formatted(names(), type));
        return name;
    }

    /** Returns {@link #type} as libtorch's element type; null if {@code type} is null. */
    public ScalarType scalarType() {
        return type() == null ? null : ScalarType.valueOf(type().toUpperCase(Locale.ROOT));
    }
}

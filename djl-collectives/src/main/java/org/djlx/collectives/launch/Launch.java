// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import java.net.URI;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.stream.Stream;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import picocli.CommandLine;
import picocli.CommandLine.Command;
import picocli.CommandLine.Help.Visibility;
import picocli.CommandLine.IDefaultValueProvider;
import picocli.CommandLine.Model.ArgSpec;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Model.OptionSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;

/**
 * The command {@code launch} of picocli: runs a main class, or another command of the same command
 * line, once for each rank. {@link Launch} is its main class; add it to a command line of yours as
 * a subcommand, with {@code setStopAtPositional(true)}.
 */
@Command(
        name = "launch",
        defaultValueProvider = Launch.Variables.class,
        description = {
            "Runs a program in N processes with the environment of torchrun: RANK, WORLD_SIZE,"
                    + " MASTER_ADDR and the like.",
            "Each line that a rank prints is prefixed with its number. If a rank or a launcher"
                + " fails, all ranks on all nodes are stopped, and start again up to --max-restarts"
                + " times with TORCHELASTIC_RESTART_COUNT one higher. Otherwise the exit code of"
                + " the first failure is returned. Standard input of ranks is empty.",
            "With --nnodes, run it once on each host, with the same --nproc-per-node and"
                    + " --rdzv-endpoint.",
            "The variable PET_NAME sets the option --name, as with torchrun. In a task of srun or a"
                    + " Kubernetes indexed job, --nnodes, --node-rank and --master-addr are known.",
            "Example: samples/run.sh launch --nproc 2 mlp"
        })
public final class Launch implements Callable<Integer> {

    private static final String DEFAULT_PORT = "29500"; // torchrun's

    @Spec private CommandSpec spec;

    @Option(
            names = {"--nproc-per-node", "--nproc"},
            paramLabel = "N",
            description =
                    "Number of processes on this host, one for each rank: a number, gpu, cpu, or"
                            + " auto for gpu if there is one; 1 if not given.")
    private String processes = "1";

    @Option(
            names = "--nnodes",
            paramLabel = "N|MIN:MAX",
            description =
                    "Number of hosts (nodes). With MIN:MAX the job goes on with fewer nodes if one"
                            + " is lost, and starts again with more if one comes.")
    private String nodes;

    @Option(
            names = "--node-rank",
            paramLabel = "RANK",
            description =
                    "Number of this node, from 0; node 0 serves the store. If not given, the nodes"
                            + " agree.")
    private Integer nodeRank;

    @Option(
            names = "--rdzv-endpoint",
            paramLabel = "HOST:PORT",
            description = "The same as --master-addr HOST --master-port PORT.")
    private String endpoint;

    @Option(
            names = "--master-addr",
            paramLabel = "ADDRESS",
            description =
                    "Address of the store; "
                            + Launcher.DEFAULT_MASTER_ADDRESS
                            + " if not given. With --nnodes, an address of one node.")
    private String masterAddress;

    @Option(
            names = "--master-port",
            paramLabel = "PORT",
            description =
                    "Port of the store; a free one if not given, with --nnodes "
                            + DEFAULT_PORT
                            + ".")
    private Integer masterPort;

    @Option(
            names = "--bind-addr",
            paramLabel = "ADDRESS",
            description = "Address on which the store listens; --master-addr if not given.")
    private String bindAddress;

    @Option(
            names = "--rdzv-id",
            paramLabel = "NAME",
            description = "Name of the job; launchers of another name do not meet.")
    private String runId = "none";

    @Option(
            names = "--rdzv-conf",
            paramLabel = "KEY=SECONDS",
            split = ",",
            description =
                    "join_timeout: how long to wait for MIN nodes, 600; last_call_timeout: how long"
                            + " for more of them, 30.",
            showDefaultValue = Visibility.NEVER)
    private Map<String, Integer> conf = new LinkedHashMap<>();

    @Option(
            names = "--max-restarts",
            paramLabel = "N",
            description = "How often all ranks start again after one, or a launcher, has failed.")
    private int maxRestarts;

    @Option(
            names = "--log-dir",
            paramLabel = "FOLDER",
            description =
                    "Writes the output of each rank to attempt_N/RANK/stdout.log and stderr.log,"
                            + " too.")
    private Path logs;

    @Option(
            names = "--env",
            paramLabel = "NAME=VALUE",
            description = "Sets an environment variable of the ranks; may be repeated.",
            showDefaultValue = Visibility.NEVER)
    private Map<String, String> environment = new LinkedHashMap<>();

    @Option(
            names = "--jvm-arg",
            paramLabel = "ARG",
            description = "Adds a JVM option for the ranks, for example -Xmx1g; may be repeated.",
            showDefaultValue = Visibility.NEVER)
    private List<String> jvmArgs = new ArrayList<>();

    @Parameters(
            paramLabel = "PROGRAM",
            arity = "1",
            index = "0",
            description =
                    "The name of a class with a main method, or a command of this command line.")
    private String main;

    @Parameters(
            paramLabel = "ARG",
            arity = "0..*",
            index = "1..*",
            description = "Its arguments.",
            showDefaultValue = Visibility.NEVER)
    private List<String> args = new ArrayList<>();

    private Map<String, String> variables = System.getenv();

    /** Constructor for picocli. */
    public Launch() {}

    /**
     * Runs the command, and ends this process with its exit code.
     *
     * @param args the options, the main class of the ranks, and its arguments
     */
    public static void main(String[] args) {
        CommandLine command = new CommandLine(new Launch()).setStopAtPositional(true);
        command.setExpandAtFiles(false); // Arguments of a rank's main method may begin with @.
        command.getCommandSpec().mixinStandardHelpOptions(true);
        command.setParameterExceptionHandler((e, all) -> error(e, "; --help lists the options", 2));
        command.setExecutionExceptionHandler((e, all, result) -> error(e, "", 1));
        System.exit(command.execute(args));
    }

    private static int error(Exception e, String hint, int code) {
        System.err.println("error: " + e.getMessage() + hint);
        return code;
    }

    /** Takes {@code --some-option} from the variable {@code PET_SOME_OPTION}, as torchrun does. */
    static final class Variables implements IDefaultValueProvider {

        @Override
        public String defaultValue(ArgSpec arg) {
            return arg instanceof OptionSpec option && !option.isMultiValue()
                    ? System.getenv(
                            "PET_"
                                    + option.names()[0]
                                            .substring(2)
                                            .replace('-', '_')
                                            .toUpperCase(Locale.ROOT))
                    : null;
        }
    }

    /**
     * Runs the ranks.
     *
     * @return the exit code of {@link Launcher#launch}
     */
    @Override
    public Integer call() throws Exception {
        if (spec.parent() != null && spec.parent().subcommands().containsKey(main)) {
            args.add(0, main);
            main = spec.root().userObject().getClass().getName();
        }
        Launcher launcher;
        try {
            launcher = launcher(variables);
        } catch (IllegalArgumentException e) {
            throw new ParameterException(spec.commandLine(), e.getMessage(), e);
        }
        return launcher.launch();
    }

    /** Returns the launcher of these options, completed by the variables of a scheduler. */
    Launcher launcher(Map<String, String> variables) {
        LaunchEnvironment scheduler = LaunchEnvironment.of(variables);
        boolean step = variables.containsKey("SLURM_STEP_ID");
        String count = nodes != null ? nodes : step ? variables.get("SLURM_STEP_NUM_NODES") : null;
        String[] range = (count == null ? "1" : count).split(":", 2);
        int most = number("--nnodes", range[range.length - 1]);
        Launcher.Builder builder =
                Launcher.builder()
                        .setProcesses(processes())
                        .setMainClass(main)
                        .optArgs(args)
                        .optNodes(number("--nnodes", range[0]), most)
                        .optBindAddress(bindAddress)
                        .optRunId(runId)
                        .optTimeouts(seconds("join_timeout", 600), seconds("last_call_timeout", 30))
                        .optMaxRestarts(maxRestarts)
                        .optLogDirectory(logs)
                        .optEnvironment(environment)
                        .optJvmArgs(jvmArgs);
        String address = masterAddress;
        String port = masterPort == null ? null : masterPort.toString();
        if (endpoint != null) {
            URI uri = URI.create("tcp://" + endpoint);
            address = address == null ? uri.getHost() : address;
            port = port == null && uri.getPort() >= 0 ? "" + uri.getPort() : port;
        }
        if (most > 1) {
            String rank = step ? variables.get("SLURM_NODEID") : null;
            rank = rank == null ? variables.get("JOB_COMPLETION_INDEX") : rank;
            boolean ranked = nodeRank == null && endpoint == null && rank != null;
            nodeRank = ranked ? (Integer) number("the node rank", rank) : nodeRank;
            address = address == null ? scheduler.get("MASTER_ADDR") : address;
            port = port == null ? scheduler.get("MASTER_PORT") : port;
            port = port == null ? DEFAULT_PORT : port;
            if (bindAddress == null) {
                builder.optBindAddress(variables.get("DJLX_BIND_ADDRESS"));
            }
        }
        return builder.optNodeRank(nodeRank == null ? -1 : nodeRank)
                .optMasterAddress(address)
                .optMasterPort(port == null ? 0 : number("--master-port", port))
                .build();
    }

    private Duration seconds(String key, int otherwise) {
        return Duration.ofSeconds(conf.getOrDefault(key, otherwise));
    }

    private int processes() {
        int gpus =
                Stream.of("gpu", "auto").anyMatch(processes::equals)
                                && NativeLibrary.CUDA.isAvailable()
                        ? CudaDevice.count()
                        : 0;
        return switch (processes) {
            case "gpu" -> gpus;
            case "auto" -> gpus > 0 ? gpus : Runtime.getRuntime().availableProcessors();
            case "cpu" -> Runtime.getRuntime().availableProcessors();
            default -> number("--nproc-per-node", processes);
        };
    }

    private static int number(String option, String text) {
        try {
            return Integer.parseInt(text.trim());
        } catch (NumberFormatException e) {
            throw new IllegalArgumentException(option + " is not a number: " + text, e);
        }
    }
}

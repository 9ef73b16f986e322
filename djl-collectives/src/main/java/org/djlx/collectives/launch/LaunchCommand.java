// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import java.io.PrintStream;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Callable;
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
 * line, once for each rank. {@link Launch} is the program of this command alone; add this class to
 * a command line of yours as a subcommand, with {@code setStopAtPositional(true)}.
 */
@Command(
        name = "launch",
        defaultValueProvider = LaunchCommand.Variables.class,
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
            "Example: samples/run.sh launch --nproc 2 train"
        })
public final class LaunchCommand implements Callable<Integer> {

    @Spec private CommandSpec spec;

    @Option(
            names = {"--nproc-per-node", "--nproc"},
            paramLabel = "N",
            description =
                    "Number of processes on this host, one for each rank: a number, gpu, cpu, or"
                            + " auto for gpu if there is one; 1 if not given.")
    String processes = "1";

    @Option(
            names = "--nnodes",
            paramLabel = "N|MIN:MAX",
            description =
                    "Number of hosts (nodes). With MIN:MAX the job starts again with fewer if one"
                            + " is lost, and with more if one joins.")
    String nodes;

    @Option(
            names = "--node-rank",
            paramLabel = "RANK",
            description =
                    "Number of this node, from 0; node 0 serves the store. If not given, the nodes"
                            + " agree on their numbers.")
    Integer nodeRank;

    @Option(
            names = "--standalone",
            description =
                    "The job is on this host alone, with a store on a free port: an address or port"
                            + " that is set otherwise is ignored.")
    boolean standalone;

    @Option(
            names = "--rdzv-backend",
            paramLabel = "NAME",
            description =
                    "static or c10d, as with torchrun; both are the store at --rdzv-endpoint.")
    String backend = "static";

    @Option(
            names = "--rdzv-endpoint",
            paramLabel = "HOST:PORT",
            description = "The same as --master-addr HOST --master-port PORT.")
    String endpoint;

    @Option(
            names = "--master-addr",
            paramLabel = "ADDRESS",
            description = "Address of the store: this host, or with --nnodes one of the nodes.")
    String masterAddress;

    @Option(
            names = "--master-port",
            paramLabel = "PORT",
            description = "Port of the store; a free one, or with --nnodes 29500, if not given.")
    Integer masterPort;

    @Option(
            names = "--bind-addr",
            paramLabel = "ADDRESS",
            description = "Address on which the store listens; --master-addr if not given.")
    String bindAddress;

    @Option(
            names = "--rdzv-id",
            paramLabel = "NAME",
            description = "Name of the job; launchers of another name do not meet.")
    String runId = "none";

    @Option(
            names = "--rdzv-conf",
            paramLabel = "KEY=SECONDS",
            split = ",",
            description =
                    "join_timeout: how long to wait for MIN nodes, 600; last_call_timeout: how long"
                            + " for more of them, 30.",
            showDefaultValue = Visibility.NEVER)
    Map<String, Double> conf = new LinkedHashMap<>();

    @Option(
            names = "--max-restarts",
            paramLabel = "N",
            description = "How often all ranks start again after one, or a launcher, has failed.")
    int maxRestarts;

    @Option(
            names = "--log-dir",
            paramLabel = "FOLDER",
            description = "Appends all output to attempt_N/RANK/stdout.log and stderr.log, too.")
    Path logs;

    @Option(
            names = "--env",
            paramLabel = "NAME=VALUE",
            description = "Sets an environment variable of the ranks; may be repeated.",
            showDefaultValue = Visibility.NEVER)
    Map<String, String> environment = new LinkedHashMap<>();

    @Option(
            names = "--jvm-arg",
            paramLabel = "ARG",
            description = "Adds a JVM option for the ranks, for example -Xmx1g; may be repeated.",
            showDefaultValue = Visibility.NEVER)
    List<String> jvmArgs = new ArrayList<>();

    @Parameters(
            paramLabel = "PROGRAM",
            arity = "1",
            index = "0",
            description = "A class with a main method, or a command of this command line.")
    String main;

    @Parameters(
            paramLabel = "ARG",
            arity = "0..*",
            index = "1..*",
            description = "Its arguments.",
            showDefaultValue = Visibility.NEVER)
    List<String> args = new ArrayList<>();

    Duration gracePeriod = Duration.ofSeconds(15); // between SIGTERM and SIGKILL
    PrintStream out = System.out; // of the ranks
    PrintStream err = System.err; // of the ranks and the launcher

    /** Constructor for picocli. */
    public LaunchCommand() {}

    /** Runs the command with these arguments; {@link Launch#run} describes it. */
    int execute(List<String> arguments) {
        CommandLine command = new CommandLine(this).setStopAtPositional(true);
        command.setExpandAtFiles(false); // Arguments of a rank's main method may begin with @.
        command.getCommandSpec().mixinStandardHelpOptions(true);
        command.setParameterExceptionHandler((e, all) -> error(e, "; --help lists the options", 2));
        command.setExecutionExceptionHandler((e, all, result) -> error(e, "", 1));
        return command.execute(arguments.toArray(String[]::new));
    }

    private int error(Exception e, String hint, int code) {
        err.println("error: " + e.getMessage() + hint);
        return code;
    }

    /** Takes {@code --some-option} from the variable {@code PET_SOME_OPTION}, as torchrun does. */
    static final class Variables implements IDefaultValueProvider {

        @Override
        public String defaultValue(ArgSpec arg) {
            if (!(arg instanceof OptionSpec option)) {
                return null;
            }
            String name = option.names()[0].substring(2).replace('-', '_');
            String value = System.getenv("PET_" + name.toUpperCase(Locale.ROOT));
            if (value == null || value.isBlank()) {
                return null;
            }
            boolean isOn = option.typeInfo().isBoolean() && value.trim().equals("1");
            return isOn ? "true" : value.trim();
        }
    }

    /** Runs the ranks; returns the exit code, as {@link Launch#run} describes it. */
    @Override
    public Integer call() throws Exception {
        if (spec.parent() != null && spec.parent().subcommands().containsKey(main)) {
            args.add(0, main);
            main = spec.root().userObject().getClass().getName();
        }
        Launcher launcher;
        try {
            launcher = new Launcher(this, System.getenv());
        } catch (IllegalArgumentException e) {
            throw new ParameterException(spec.commandLine(), e.getMessage(), e);
        }
        return launcher.launch();
    }
}

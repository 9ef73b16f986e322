// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.launch;

import static org.djlx.samples.common.UsageException.parsed;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.samples.common.CliCommand;
import picocli.CommandLine.Command;
import picocli.CommandLine.Help.Visibility;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/** {@code launch}: runs a main class, or another command, once for each rank. */
@Command(
        name = "launch",
        description = {
            "Runs a program in N processes with the environment of torchrun: RANK, WORLD_SIZE,"
                    + " MASTER_ADDR and the like.",
            "Each line that a rank prints is prefixed with its number. If a rank fails, the others"
                    + " are stopped, and its exit code is returned. Standard input is empty.",
            "With --max-restarts, all ranks then start again, with a new store and"
                    + " TORCHELASTIC_RESTART_COUNT one higher.",
            "With --nnodes, run it once on each host, with the same --nproc, --master-addr and"
                    + " --master-port, and its own --node-rank.",
            "Example: samples/run.sh launch --nproc 2 mlp"
        })
public final class LaunchCommand extends CliCommand {

    @Option(
            names = {"--nproc", "--nproc-per-node"},
            required = true,
            paramLabel = "N",
            description = "Number of processes on this host, one for each rank.")
    private int processes;

    @Option(names = "--nnodes", paramLabel = "N", description = "Number of hosts (nodes).")
    private int nodes = 1;

    @Option(
            names = "--node-rank",
            paramLabel = "RANK",
            description = "Number of this node, from 0; node 0 serves the store.")
    private int nodeRank;

    @Option(
            names = "--master-addr",
            paramLabel = "ADDRESS",
            description =
                    "Address of the store; "
                            + Launcher.DEFAULT_MASTER_ADDRESS
                            + " if not given. With --nnodes, an address of node 0.")
    private String masterAddress;

    @Option(
            names = "--master-port",
            paramLabel = "PORT",
            description = "Port of the store; 0 for a free one. Required with --nnodes.")
    private int masterPort;

    @Option(
            names = "--max-restarts",
            paramLabel = "N",
            description =
                    "How often all ranks start again after one has failed. Not"
                            + " with several nodes: start the whole job again there.")
    private int maxRestarts;

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
            description = "The name of a class with a main method, or a command of samples/run.sh.")
    private String main;

    @Parameters(
            paramLabel = "ARG",
            arity = "0..*",
            index = "1..*",
            description = "Its arguments.",
            showDefaultValue = Visibility.NEVER)
    private List<String> args = new ArrayList<>();

    @Override
    public Integer call() throws Exception {
        if (spec().parent().subcommands().containsKey(main)) {
            args.add(0, main);
            main = spec().root().userObject().getClass().getName();
        }
        Launcher.Builder builder =
                Launcher.builder()
                        .setProcesses(processes)
                        .setMainClass(main)
                        .optArgs(args)
                        .optNodes(nodes, nodeRank)
                        .optMasterAddress(masterAddress)
                        .optMasterPort(masterPort)
                        .optMaxRestarts(maxRestarts)
                        .optEnvironment(environment)
                        .optJvmArgs(jvmArgs);
        return parsed(builder::build).launch();
    }
}

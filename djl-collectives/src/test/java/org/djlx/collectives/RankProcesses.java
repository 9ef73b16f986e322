// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.IntFunction;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.TcpStore;

/**
 * Starts one JVM per rank, with torchrun's environment variables and a store in this JVM, and
 * collects their output. Closing it ends running JVMs.
 */
public final class RankProcesses implements AutoCloseable {

    /** The build's arguments for JVMs that tests start. */
    private static final List<String> JVM_ARGUMENTS =
            Arrays.stream(System.getProperty("test.started.jvm.args", "").split(" "))
                    .filter(argument -> !argument.isEmpty())
                    .toList();

    private final List<Process> processes = new ArrayList<>();
    private final List<Path> outputs = new ArrayList<>();
    private final TcpStore store;

    /**
     * Starts the ranks.
     *
     * @param worldSize how many
     * @param mainClass the class whose main method they run
     * @param arguments its arguments
     */
    public RankProcesses(int worldSize, Class<?> mainClass, String... arguments) {
        this(worldSize, rank -> Map.of(), mainClass, arguments);
    }

    /**
     * Starts the ranks.
     *
     * @param worldSize how many
     * @param environment additional environment variables of a rank
     * @param mainClass the class whose main method they run
     * @param arguments its arguments
     */
    public RankProcesses(
            int worldSize,
            IntFunction<Map<String, String>> environment,
            Class<?> mainClass,
            String... arguments) {
        store = TcpStore.builder().setHost("localhost").setPort(0).optServer(true).build();
        try {
            for (int rank = 0; rank < worldSize; rank++) {
                Path output = Files.createTempFile("rank-" + rank + "-", ".log");
                outputs.add(output);
                List<String> command = new ArrayList<>();
                command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
                command.add("-Xmx512m");
                command.addAll(JVM_ARGUMENTS);
                command.addAll(List.of("-cp", System.getProperty("java.class.path")));
                command.add(mainClass.getName());
                command.addAll(List.of(arguments));
                ProcessBuilder builder = new ProcessBuilder(command);
                builder.environment().put("RANK", "" + rank);
                builder.environment().put("LOCAL_RANK", "" + rank);
                builder.environment().put("WORLD_SIZE", "" + worldSize);
                builder.environment().put("MASTER_ADDR", "localhost");
                builder.environment().put("MASTER_PORT", "" + store.port());
                builder.environment().put("TORCHELASTIC_USE_AGENT_STORE", "True");
                builder.environment().put("OMP_NUM_THREADS", "1");
                builder.environment().putAll(environment.apply(rank));
                builder.redirectErrorStream(true).redirectOutput(output.toFile());
                processes.add(builder.start());
            }
        } catch (IOException e) {
            close();
            throw new UncheckedIOException(e);
        }
    }

    /** The process of a rank. */
    public Process process(int rank) {
        return processes.get(rank);
    }

    /** The store that the ranks use. */
    public Store store() {
        return store;
    }

    /** Waits until all ranks have ended and returns their exit codes. */
    public List<Integer> await() throws InterruptedException {
        List<Integer> codes = new ArrayList<>();
        for (int rank = 0; rank < processes.size(); rank++) {
            if (!processes.get(rank).waitFor(180, TimeUnit.SECONDS)) {
                throw new AssertionError("rank " + rank + " hangs; it printed:\n" + output(rank));
            }
            codes.add(processes.get(rank).exitValue());
        }
        return codes;
    }

    /** Waits until all ranks have ended; fails with the output of the first failed rank. */
    public void awaitSuccess() throws InterruptedException {
        List<Integer> codes = await();
        for (int rank = 0; rank < codes.size(); rank++) {
            if (codes.get(rank) != 0) {
                throw new AssertionError(
                        "exit codes " + codes + "; rank " + rank + " printed:\n" + output(rank));
            }
        }
    }

    /** Returns the output of a rank so far. */
    public String output(int rank) {
        try {
            return Files.readString(outputs.get(rank), StandardCharsets.UTF_8);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    @Override
    public void close() {
        processes.forEach(Process::destroyForcibly);
        processes.forEach(process -> process.onExit().join());
        store.close();
        for (Path output : outputs) {
            try {
                Files.deleteIfExists(output);
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }
    }
}

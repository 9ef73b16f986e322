// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.io.Writer;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * Measures PyTorch on the same GPUs, or another program, in a child process, which runs a script of
 * {@code ci/bench/peers}. {@code torch_peer.py}, {@code train_peer.py}, {@code embed_peer.py} and
 * {@code llama_cpp_peer.mjs} read a line of JSON for each case and answer with a line. Without
 * PyTorch, or if PyTorch fails or times out, its columns are missing and a note has the cause; the
 * benchmark continues.
 */
final class TorchPeer implements AutoCloseable {

    private static final Gson GSON = new Gson();
    private static final String END = "";
    // PyTorch must not join this job's group.
    private static final List<String> NOT_INHERITED =
            List.of(
                    ("LD_PRELOAD JAVA_TOOL_OPTIONS RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR"
                                    + " MASTER_PORT")
                            .split(" "));
    private static final Map<String, String> ENVIRONMENT =
            Map.of("NCCL_NVLS_ENABLE", "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "1");

    private final Duration patience;
    private final BlockingQueue<String> lines = new LinkedBlockingQueue<>();
    private Process process; // null if it is not running
    private JsonObject ready = new JsonObject();
    private String version = "";
    private String cause = "";

    private TorchPeer(Duration patience) {
        this.patience = patience;
    }

    /** Returns a script of the checkout that run.sh names, otherwise of the working directory. */
    static Path script(String name) {
        return Path.of(System.getProperty("djlx.home", "")).resolve("ci/bench/peers").resolve(name);
    }

    /** Starts a script with a timeout of 2 minutes; null without an interpreter. */
    static TorchPeer start(String interpreter, String script, int ranks, String... more) {
        List<String> arguments = new ArrayList<>(List.of("--ranks", Integer.toString(ranks)));
        arguments.addAll(List.of(more));
        return interpreter == null
                ? null
                : start(interpreter, script(script), arguments, Duration.ofSeconds(120));
    }

    /**
     * Starts a script and waits until it is ready. {@code patience} is the timeout of the start and
     * of each answer.
     */
    static TorchPeer start(
            String interpreter, Path script, List<String> arguments, Duration patience) {
        TorchPeer peer = new TorchPeer(patience);
        ProcessBuilder builder = new ProcessBuilder(interpreter, script.toString());
        builder.command().addAll(arguments);
        NOT_INHERITED.forEach(builder.environment()::remove);
        builder.environment().putAll(ENVIRONMENT);
        builder.redirectError(ProcessBuilder.Redirect.INHERIT);
        try {
            peer.process = builder.start();
        } catch (IOException e) {
            peer.fail(e.getMessage());
            return peer;
        }
        Thread reader = new Thread(peer::read, "torch-peer");
        reader.setDaemon(true);
        reader.start();
        JsonObject ready = peer.answer();
        if (ready != null) {
            peer.ready = ready;
            peer.version = ready.entrySet().iterator().next().getValue().getAsString();
        }
        return peer;
    }

    /** Returns the first line of JSON; its first value is the version. Empty without PyTorch. */
    JsonObject ready() {
        return ready;
    }

    long pid() {
        return process.pid();
    }

    /** Returns the version of PyTorch; empty without PyTorch. */
    String version() {
        return version;
    }

    /** Returns the version of PyTorch or, without PyTorch, the cause. */
    String description() {
        return version.isEmpty() ? cause : version;
    }

    /** Returns why PyTorch does not answer; empty while it answers. */
    String cause() {
        return cause;
    }

    /** Measures a case; returns the row with PyTorch's times, or a note. */
    GpuBenchRow measure(GpuBenchRow row, int turns, int rounds) {
        JsonObject request = new JsonObject();
        request.addProperty("operation", row.operation());
        request.add("mnk", GSON.toJsonTree(row.mnk()));
        request.addProperty("bytes", row.bytes());
        request.addProperty("turns", turns);
        request.addProperty("rounds", rounds);
        JsonObject answer = ask(request);
        if (answer == null) {
            JsonObject note = new JsonObject();
            note.addProperty(GpuBenchRow.TORCH, cause);
            answer = new JsonObject();
            answer.add("notes", note);
        }
        return row.plus(answer);
    }

    /** Sends a line of JSON and returns the answer; null if there is none. */
    JsonObject ask(JsonObject request) {
        return process == null || !send(request) ? null : answer();
    }

    private boolean send(JsonObject request) {
        try {
            Writer writer = process.outputWriter();
            writer.write(request + "\n");
            writer.flush();
            return true;
        } catch (IOException e) {
            fail("it has closed its input: " + e.getMessage());
            return false;
        }
    }

    /** Returns the next line of JSON; null on timeout, end or error. */
    JsonObject answer() {
        try {
            String line = lines.poll(patience.toMillis(), TimeUnit.MILLISECONDS);
            if (line == null) {
                fail("no answer within " + patience.toSeconds() + " s");
            } else if (line.equals(END)) {
                fail("it has ended");
            } else {
                JsonObject answer = JsonParser.parseString(line).getAsJsonObject();
                if (!answer.has("error")) {
                    return answer;
                }
                fail(answer.get("error").getAsString());
            }
        } catch (JsonParseException | IllegalStateException e) {
            fail("invalid JSON: " + e.getMessage());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            fail("interrupted");
        }
        return null;
    }

    /** Queues lines of JSON; skips other output of libraries. */
    private void read() {
        try (BufferedReader reader = process.inputReader()) {
            for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                if (line.startsWith("{")) {
                    lines.add(line);
                }
            }
        } catch (IOException | UncheckedIOException e) {
            // The process has ended.
        } finally {
            lines.add(END);
        }
    }

    private void fail(String why) {
        cause = why;
        close();
    }

    /** Kills the process and its descendants. */
    @Override
    public void close() {
        if (process != null) {
            List<ProcessHandle> all = new ArrayList<>(process.descendants().toList());
            all.add(process.toHandle());
            all.forEach(ProcessHandle::destroyForcibly);
            process = null;
        }
    }
}

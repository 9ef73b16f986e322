/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
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
 * PyTorch, measured by a child process, a script in {@code ci/bench/peers}, on the same GPUs:
 * {@code torch_peer.py} and {@code train_peer.py} get a line of JSON for each case and answer with
 * one. If it is missing, fails or takes too long, its columns are missing, and a note says why; it
 * never fails the benchmark.
 */
final class TorchPeer implements AutoCloseable {

    private static final Gson GSON = new Gson();
    private static final String END = "";
    // What PyTorch must not have for our group, nor for multicast, which can put a host out of use.
    private static final List<String> NOT_INHERITED =
            List.of(
                    "LD_PRELOAD",
                    "JAVA_TOOL_OPTIONS",
                    "RANK",
                    "LOCAL_RANK",
                    "WORLD_SIZE",
                    "MASTER_ADDR",
                    "MASTER_PORT");
    private static final Map<String, String> ENVIRONMENT =
            Map.of("NCCL_NVLS_ENABLE", "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "1");

    private final Duration patience;
    private final BlockingQueue<String> lines = new LinkedBlockingQueue<>();
    private Process process; // null if it does not run
    private String version = "";
    private String cause = "";

    private TorchPeer(Duration patience) {
        this.patience = patience;
    }

    /** Returns where a script is: in the checkout, which run.sh names, or this is called from. */
    static Path script(String name) {
        return Path.of(System.getProperty("djlx.home", "")).resolve("ci/bench/peers").resolve(name);
    }

    /**
     * Starts it, and waits until it is ready.
     *
     * @param interpreter the program that runs the script, such as python3
     * @param arguments of the script
     * @param patience how long it may take for that, and for each answer
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
            peer.version = ready.get("torch").getAsString();
        }
        return peer;
    }

    /** The version of PyTorch; empty if it is not there. */
    String version() {
        return version;
    }

    /** Why it is of no use, or no longer; empty if it is. */
    String cause() {
        return cause;
    }

    /** Measures a case; returns the row with what was measured, or with a note. */
    GpuBenchRow measure(GpuBenchRow row, int turns, int rounds) {
        JsonObject request = new JsonObject();
        request.addProperty("operation", row.operation());
        request.add("mnk", GSON.toJsonTree(row.mnk()));
        request.addProperty("bytes", row.bytes());
        request.addProperty("turns", turns);
        request.addProperty("rounds", rounds);
        JsonObject answer = ask(request);
        if (answer == null) {
            return row.plus(Map.of(), Map.of(), Map.of(GpuBenchRow.TORCH, cause));
        }
        SideBySide.Result result = GSON.fromJson(answer, SideBySide.Result.class);
        return row.plus(result.columns(), result.replay(), result.notes());
    }

    /** Sends a line of JSON, and waits for the answer; null if none comes. */
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
            fail("it does not read any more: " + e.getMessage());
            return false;
        }
    }

    /** Waits for a line of JSON; null if none comes, or one that says what went wrong. */
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
            fail("what it says is no JSON: " + e.getMessage());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            fail("interrupted");
        }
        return null;
    }

    /** Passes on lines of JSON; libraries may print others. */
    private void read() {
        try (BufferedReader reader = process.inputReader()) {
            for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                if (line.startsWith("{")) {
                    lines.add(line);
                }
            }
        } catch (IOException | UncheckedIOException e) {
            // Then it is at its end, or has been ended.
        } finally {
            lines.add(END);
        }
    }

    private void fail(String why) {
        cause = why;
        close();
    }

    /** Ends it, and what it has started. */
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

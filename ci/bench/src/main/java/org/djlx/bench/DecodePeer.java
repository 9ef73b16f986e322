/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import com.google.gson.JsonObject;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.djlx.fusedops.llm.model.LlamaConfig;

/**
 * A Llama's decoding written with PyTorch's operators, {@code ci/bench/peers/decode_peer.py}, on
 * the same GPUs.
 */
final class DecodePeer {

    /** The script's name. */
    static final String SCRIPT = "decode_peer.py";

    private static final Duration PATIENCE = Duration.ofSeconds(120);

    private DecodePeer() {}

    /**
     * The results of the script.
     *
     * @param torch the version of PyTorch, or the cause why there is none
     * @param stepMicros the times of a step by batch and all-reduce method
     * @param matmulMicros the time of all matmuls of a prompt; null if not known
     * @param notes the causes of missing results
     */
    record Result(
            String torch,
            Map<Integer, Map<String, Double>> stepMicros,
            Double matmulMicros,
            List<String> notes) {}

    /**
     * Returns the script's arguments.
     *
     * @param context the tokens of each sequence in a step
     * @param prompt the tokens of the prompt whose matmuls are measured
     */
    static List<String> arguments(
            LlamaConfig config, int ranks, int context, int[] batches, int prompt) {
        String all =
                Arrays.stream(batches).mapToObj(String::valueOf).collect(Collectors.joining(","));
        Map<String, Object> options = new LinkedHashMap<>();
        options.put("--ranks", ranks);
        options.put("--layers", config.layers());
        options.put("--hidden", config.hiddenSize());
        options.put("--inner", config.intermediateSize());
        options.put("--heads", config.heads());
        options.put("--kv-heads", config.kvHeads());
        options.put("--head-size", config.headSize());
        options.put("--vocabulary", config.vocabularySize());
        options.put("--theta", config.rope().theta());
        options.put("--context", context);
        options.put("--batches", all);
        options.put("--prompt", prompt);
        return options.entrySet().stream()
                .flatMap(option -> Stream.of(option.getKey(), option.getValue().toString()))
                .toList();
    }

    /**
     * Runs the script to its end.
     *
     * @param interpreter the program that runs the script, such as python3
     */
    static Result run(String interpreter, Path script, List<String> arguments) {
        Map<Integer, Map<String, Double>> stepMicros = new LinkedHashMap<>();
        Double matmulMicros = null;
        List<String> notes = new ArrayList<>();
        try (TorchPeer peer = TorchPeer.start(interpreter, script, arguments, PATIENCE)) {
            if (peer.version().isEmpty()) {
                return new Result(peer.cause(), stepMicros, null, notes);
            }
            JsonObject answer;
            while ((answer = peer.answer()) != null && !answer.has("done")) {
                if (answer.has("micros")) {
                    stepMicros
                            .computeIfAbsent(
                                    answer.get("batch").getAsInt(), batch -> new LinkedHashMap<>())
                            .put(
                                    answer.get("method").getAsString(),
                                    answer.get("micros").getAsDouble());
                } else if (answer.has("matmulMicros")) {
                    matmulMicros = answer.get("matmulMicros").getAsDouble();
                } else {
                    notes.add(answer.toString());
                }
            }
            if (answer == null) {
                notes.add(peer.cause());
            }
            return new Result(peer.version(), stepMicros, matmulMicros, notes);
        }
    }
}

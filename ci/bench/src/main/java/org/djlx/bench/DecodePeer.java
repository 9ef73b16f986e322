// SPDX-License-Identifier: Apache-2.0
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
import org.djlx.llm.model.ModelConfig;

/**
 * A Llama's decoding written with PyTorch's operators, {@code ci/bench/peers/decode_peer.py}, on
 * the same GPUs.
 */
final class DecodePeer {

    private static final Duration PATIENCE = Duration.ofMinutes(10); // to compile a step

    private DecodePeer() {}

    /**
     * The results of the script: the version of PyTorch, or the cause why there is none; the times
     * of a step by batch and method; the time of all matmuls of a prompt, null if not known; the
     * causes of missing results.
     */
    record Result(
            String torch,
            Map<Integer, Map<String, Double>> stepMicros,
            Double matmulMicros,
            List<String> notes) {}

    /**
     * Returns the script's arguments. Each sequence has {@code context} tokens in a step; the
     * matmuls of {@code prompt} tokens are measured.
     */
    static List<String> arguments(
            ModelConfig config, int ranks, int context, int[] batches, int prompt) {
        String all =
                Arrays.stream(batches).mapToObj(String::valueOf).collect(Collectors.joining(","));
        return List.of(
                ("--ranks %s --layers %s --hidden %s --inner %s --heads %s --kv-heads %s"
                                + " --head-size %s --vocabulary %s --theta %s --context %s"
                                + " --batches %s --prompt %s")
                        .formatted(
                                ranks,
                                config.layers(),
                                config.hiddenSize(),
                                config.intermediateSize(),
                                config.heads(),
                                config.kvHeads(),
                                config.headSize(),
                                config.vocabularySize(),
                                config.rope().theta(),
                                context,
                                all,
                                prompt)
                        .split(" "));
    }

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

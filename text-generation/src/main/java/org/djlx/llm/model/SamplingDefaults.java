// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.djlx.nativeops.host.Required.check;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.djlx.nativeops.host.Required;

/**
 * The sampling parameters that a model's authors recommend, from {@code generation_config.json}.
 * They hold for requests that do not set them; as in vLLM, what the file leaves out has no effect.
 * {@code temperature} is 0 if {@code do_sample} is false.
 */
public record SamplingDefaults(
        double temperature, int topK, double topP, double minP, double repetitionPenalty) {

    public static final SamplingDefaults NONE = new SamplingDefaults(1, 0, 1, 0, 1);

    /**
     * Reads the defaults of a model directory; {@link #NONE} if there is no {@code
     * generation_config.json}.
     *
     * @throws IllegalArgumentException if an entry is out of range; the message names the file and
     *     the entry
     */
    public static SamplingDefaults read(Path directory) throws IOException {
        Path file = directory.resolve("generation_config.json");
        if (!Files.exists(file)) {
            return NONE;
        }
        ConfigEntries entries = ConfigEntries.read(file);
        return Required.naming(file, () -> read(entries));
    }

    /** {@return the defaults by the names that options of requests have} */
    public Map<String, Double> values() {
        return Map.of(
                "temperature", temperature,
                "top_k", (double) topK,
                "top_p", topP,
                "min_p", minP,
                "repetition_penalty", repetitionPenalty);
    }

    private static SamplingDefaults read(ConfigEntries json) {
        double temperature = json.number("temperature", 1.0);
        int topK = json.integer("top_k", 0);
        double topP = json.number("top_p", 1.0);
        double minP = json.number("min_p", 0.0);
        double penalty = json.number("repetition_penalty", 1.0);
        check(
                temperature >= 0 && temperature <= 100,
                "temperature %s is not 0 to 100",
                temperature);
        check(topK >= -1, "top_k must be -1 or more, not %d", topK);
        check(topP > 0 && topP <= 1, "top_p must be above 0 and at most 1, not %s", topP);
        check(minP >= 0 && minP <= 1, "min_p must be from 0 to 1, not %s", minP);
        check(
                penalty > 0 && penalty <= 100,
                "repetition_penalty must be above 0 and at most 100, not %s",
                penalty);
        boolean samples = json.flag("do_sample", true);
        return new SamplingDefaults(
                samples ? temperature : 0, Math.max(0, topK), topP, minP, penalty);
    }
}

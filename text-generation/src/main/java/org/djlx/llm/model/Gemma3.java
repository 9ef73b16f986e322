// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.djlx.llm.model.ConfigEntries.check;

/**
 * Gemma 3 for text: Gemma 2 with norms of queries and keys. Layers with a sliding window have a
 * rotary embedding of their own.
 */
final class Gemma3 extends Gemma2 {

    @Override
    LayerConfig layer(ConfigEntries json, int index) {
        check(
                !json.flag("use_bidirectional_attention", false),
                "use_bidirectional_attention must be false: encoders are not supported");
        int pattern = json.integer("sliding_window_pattern", 6);
        check(pattern >= 1, "sliding_window_pattern must be 1 or more, not %d", pattern);
        int window = window(json, index, (index + 1) % pattern != 0);
        Rope rope = window == 0 ? fullRope(json) : slidingRope(json);
        return layer(json, window, rope, LayerConfig.HeadNorms.EACH_HEAD);
    }

    private Rope fullRope(ConfigEntries json) {
        ConfigEntries parameters = json.entries("rope_parameters").entries("full_attention");
        return Rope.read(
                json,
                json.has("rope_parameters") ? parameters : json.entries("rope_scaling"),
                json.number("rope_theta", 1e6),
                headSize(json));
    }

    private Rope slidingRope(ConfigEntries json) {
        return Rope.read(
                json,
                json.entries("rope_parameters").entries("sliding_attention"),
                json.number("rope_local_base_freq", 10000.0),
                headSize(json));
    }
}

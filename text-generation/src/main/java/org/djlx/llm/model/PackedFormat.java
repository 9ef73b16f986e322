// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import org.djlx.nativeops.host.Required;

/**
 * How a model's files pack weights of 4 bits, eight in a 32-bit integer. A weight is {@code scale *
 * (number - zero)}, with a scale and a zero for each group of inputs of an output.
 *
 * @param groupSize inputs of a group; 0 if all are one group
 */
public record PackedFormat(Layout layout, int groupSize) {

    private static final Map<String, Layout> LAYOUTS =
            Map.of(
                    "awq gemm", Layout.AWQ,
                    "gptq gptq", Layout.GPTQ,
                    "gptq gptq_v2", Layout.GPTQ_V2);

    /** Which numbers stand in an integer. */
    public enum Layout {
        /** AutoAWQ's GEMM: eight outputs, interleaved. */
        AWQ,
        /** AutoGPTQ's: eight inputs, and zeros less 1. */
        GPTQ,
        /** GPTQModel's {@code gptq_v2}: eight inputs. */
        GPTQ_V2
    }

    /**
     * Reads {@code quantization_config} of a directory's {@code config.json}.
     *
     * @return empty if weights are not packed
     * @throws IllegalArgumentException if the format is not supported
     */
    public static Optional<PackedFormat> read(Path directory) throws IOException {
        return read(ConfigEntries.read(directory.resolve("config.json")));
    }

    /** Returns whether experts are in MXFP4, and nothing else is packed. */
    static boolean isMxfp4(ConfigEntries json) {
        return json.entries("quantization_config").text("quant_method", "").equals("mxfp4");
    }

    static Optional<PackedFormat> read(ConfigEntries json) {
        return json.has("quantization_config") && !isMxfp4(json)
                ? Optional.of(of(json.entries("quantization_config")))
                : Optional.empty();
    }

    private static PackedFormat of(ConfigEntries json) {
        String method = json.text("quant_method", "");
        // AutoAWQ says the version, GPTQModel the format.
        boolean isAwq = method.equals("awq");
        String format = json.text("checkpoint_format", isAwq ? "gemm" : "gptq");
        String variant = isAwq ? json.text("version", format).toLowerCase(Locale.ROOT) : format;
        Layout layout = LAYOUTS.get(method + " " + variant);
        Required.check(
                layout != null,
                "quantization_config has the quant_method '%s' (as version or checkpoint_format"
                    + " '%s'), which is not supported; supported are awq gemm, gptq and gptq_v2;"
                    + " use such a model, or one in 16 bits, which can be quantised when it is"
                    + " loaded",
                method,
                variant);
        int bits = json.integer("bits", null);
        Required.check(
                bits == 4,
                "bits of quantization_config must be 4, not %d; use such a model, or one without"
                        + " quantization",
                bits);
        int groupSize = json.integer("group_size", 128);
        Required.check(
                groupSize == -1 || groupSize > 0,
                "group_size must be positive, or -1 for one group, not %d",
                groupSize);
        return new PackedFormat(layout, Math.max(0, groupSize));
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertTrue;

import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.LlamaConfig;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.ModelConfig;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The activations for which an engine leaves memory beside the KV cache. */
class ActivationBytesTest {

    /** Those of a mixture in a padded prefill, and the buffers of decode steps. */
    @ParameterizedTest
    @CsvSource({
        "128, 8, 2048, 768, 4096, 1",
        "128, 8, 2048, 768, 5000, 4",
        "256, 16, 256, 4096, 2049, 1",
        "256, 16, 256, 4096, 30000, 8",
        "8, 2, 4096, 14336, 16384, 8",
        "8, 1, 4096, 14336, 100000, 8",
        "1, 1, 1024, 8192, 65, 1"
    })
    void includeThoseOfExperts(
            int count, int chosen, int hidden, int inner, int tokens, int ranks) {
        LayerConfig layer =
                LayerConfig.llama(LlamaFiles.rope(16), 16, inner)
                        .withExperts(inner, new LayerConfig.Experts(count, chosen, true));
        ModelConfig config =
                LlamaConfig.builder()
                        .type(ScalarType.BFLOAT16)
                        .hidden(hidden)
                        .heads(8, 8, 16)
                        .layers(2, layer)
                        .build();
        long rows = CudaModel.paddedRows(tokens, ranks);
        long pairs = Math.min(rows * chosen, WideExperts.MAX_PAIRS);
        long ofDecodes = (long) DecoderKernels.MAX_ROWS * chosen;
        long resultBytes = (pairs + ofDecodes) * (hidden + inner / ranks) * Short.BYTES;
        long routingBytes = pairs * 4 * Integer.BYTES;
        // The residual stream, its norm, the sum of the experts, and the router's logits.
        long rowBytes = rows * (3L * hidden + count) * Short.BYTES;
        long actual = TransformerModel.activationBytes(config, ranks, tokens, 512);
        long expected = resultBytes + routingBytes + rowBytes;
        assertTrue(actual >= expected, actual + " bytes, but a prefill takes " + expected);
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.engine.TextEngineTest;
import org.djlx.llm.model.LlamaConfig;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.ModelConfig;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Generation on CPU ranks in types of 16 bits, in which logits are often equal, or nearly. */
@Timeout(120)
class LlamaTypesTest {

    private static final int VOCABULARY = 300;
    @TempDir private Path directory;

    @ParameterizedTest
    @EnumSource(names = {"BFLOAT16", "FLOAT16"})
    void tokensDoNotDependOnOtherSequences(ScalarType type) throws Exception {
        LlamaFiles.write(directory, wide(type), 5);
        List<GenerationRequest> requests = new ArrayList<>();
        for (int i = 0; i < 6; i++) {
            int[] prompt = new Random(i).ints(1 + i * 9, 0, VOCABULARY).toArray();
            GenerationRequest.Builder builder =
                    TextEngineTest.request(prompt).optMaxTokens(12 + i % 3);
            if (i % 4 == 3) {
                builder.optTemperature(1).optTopP(0.9).optSeed(i);
            }
            requests.add(builder.build());
        }
        // Long prompts are read in parts, and by all ranks together; most requests run at once.
        try (TextGenerator generator =
                TextEngine.builder()
                        .setDirectory(directory)
                        .optRanks(2)
                        .optMaxRunning(4)
                        .optPrefillTokens(33)
                        .optPrefixCaching(false)
                        .build()) {
            List<Generation> together = requests.stream().map(generator::submit).toList();
            List<List<GeneratedPiece>> pieces = new ArrayList<>();
            for (Generation generation : together) {
                pieces.add(generation.await(Duration.ofMinutes(1)));
            }
            for (int i = 0; i < requests.size(); i++) {
                Generation alone = generator.submit(requests.get(i));
                // Probabilities, too: those that differ by rounding lead to other tokens later.
                assertEquals(alone.await(Duration.ofMinutes(1)), pieces.get(i), "of " + i);
            }
        }
    }

    /** Wide enough that products of more rows, in another order, are seen to be others. */
    private static ModelConfig wide(ScalarType type) {
        return LlamaConfig.builder()
                .vocabulary(VOCABULARY)
                .hidden(256)
                .heads(8, 8, 32)
                .maxLength(128)
                .type(type)
                .layers(2, 512)
                .build();
    }
}

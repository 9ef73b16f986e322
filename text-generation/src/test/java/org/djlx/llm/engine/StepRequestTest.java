// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.Gson;
import java.util.Arrays;
import java.util.List;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.djlx.llm.ops.TokenBatch;
import org.djlx.llm.sampling.LogitEdits;
import org.djlx.llm.sampling.SamplingParameters;
import org.junit.jupiter.api.Test;

/** Encoding of steps. */
class StepRequestTest {

    private static final SamplingParameters SAMPLING =
            new SamplingParameters(0.7, 40, 0.95, 0.1, -3, 9, 5, null);
    private static final LogitEdits EDITS =
            new LogitEdits(1.5f, 0.25f, -2, new int[] {7, 2, 99, 3, 0, 5}, null);

    private static SamplingParameters with(LogitEdits edits) {
        return new SamplingParameters(0, 0, 1, 0, 0, -1, 20, edits);
    }

    /** Other processes get everything. */
    @Test
    void decodesStepsAsTheyWereEncoded() {
        int[] ahead = {TokenBatch.LAST_SAMPLED};
        int[] apart = {48, 49, 50, 16, 17, 0, 96};
        int[] many = IntStream.range(0, 4096).toArray();
        List<TokenBatch.Chunk> chunks =
                List.of(
                        new TokenBatch.Chunk(4, ahead, 6, apart, true, SAMPLING, 3),
                        new TokenBatch.Chunk(0, many, 0, many, false, SamplingParameters.GREEDY, 0),
                        new TokenBatch.Chunk(
                                5, new int[] {3, 4}, 9, many, true, SamplingParameters.GREEDY, 0),
                        new TokenBatch.Chunk(6, many, 0, many, true, with(EDITS), 0),
                        new TokenBatch.Chunk(
                                7,
                                many,
                                0,
                                many,
                                true,
                                with(new LogitEdits(1, 0, 0, new int[0], () -> new int[] {5, 6})),
                                0),
                        new TokenBatch.Chunk(
                                8,
                                many,
                                0,
                                many,
                                true,
                                with(new LogitEdits(1, 0, 0, new int[0], () -> new int[0])),
                                0));
        StepRequest sent = new StepRequest(new TokenBatch(chunks));
        StepRequest step = StepRequest.CODEC.decode(StepRequest.CODEC.encode(sent));
        assertEquals(5, step.sampling().size()); // of chunks that need logits
        assertEquals(chunks.size(), step.batch().chunks().size());
        for (int i = 0; i < chunks.size(); i++) {
            TokenBatch.Chunk expected = chunks.get(i);
            TokenBatch.Chunk actual = step.batch().chunks().get(i);
            assertArrayEquals(expected.tokens(), actual.tokens());
            assertEquals(expected.start(), actual.start());
            assertEquals(expected.sequence(), actual.sequence());
            assertArrayEquals(Arrays.copyOf(expected.slots(), expected.length()), actual.slots());
            assertEquals(expected.needsLogits(), actual.needsLogits());
            assertEquals(expected.adapter(), actual.adapter());
            assertEquals(text(expected.sampling()), text(actual.sampling()));
        }
        StepRequest end = StepRequest.CODEC.decode(StepRequest.CODEC.encode(StepRequest.FLUSH));
        assertTrue(end.batch().chunks().isEmpty());
    }

    /** All values: records compare arrays by identity. */
    private static String text(SamplingParameters sampling) {
        LogitEdits edits = sampling.edits();
        if (edits == null) {
            return new Gson().toJson(sampling);
        }
        Supplier<int[]> allowed = edits.allowed();
        return new Gson()
                .toJson(
                        List.of(
                                sampling.minP(),
                                sampling.topLogProbabilities(),
                                edits.repetitionPenalty(),
                                edits.frequencyPenalty(),
                                edits.presencePenalty(),
                                edits.entries(),
                                allowed == null ? "all" : allowed.get()));
    }
}

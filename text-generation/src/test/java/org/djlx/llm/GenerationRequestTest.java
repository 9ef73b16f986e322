// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;

class GenerationRequestTest {

    @Test
    void hasTheDefaultsOfGreedyDecoding() {
        GenerationRequest request = GenerationRequest.builder().setPrompt("a").build();
        assertEquals("a", request.prompt().orElseThrow());
        assertTrue(request.promptTokens().isEmpty());
        assertEquals(128, request.maxTokens());
        assertEquals(0, request.temperature());
        assertEquals(0, request.topK());
        assertEquals(1, request.topP());
        assertEquals(1, request.repetitionPenalty());
        assertTrue(request.seed().isEmpty());
        assertEquals(0, request.minP());
        assertEquals(0, request.frequencyPenalty());
        assertEquals(0, request.presencePenalty());
        assertEquals(Map.of(), request.logitBias());
        assertEquals(0, request.minTokens());
        assertEquals(0, request.topLogProbabilities());
        assertFalse(request.hasPromptLogProbabilities());
    }

    @Test
    void aRequestDoesNotChangeWithItsBuilder() {
        Map<Integer, Double> bias = new HashMap<>(Map.of(3, 1.0));
        GenerationRequest.Builder builder =
                GenerationRequest.builder().setPrompt("a").optLogitBias(bias).optSeed(1);
        GenerationRequest request = builder.build();
        builder.setPrompt("b").optSeed(2);
        bias.put(4, 2.0);
        assertEquals("a", request.prompt().orElseThrow());
        assertEquals(1, request.seed().getAsLong());
        assertEquals(Map.of(3, 1.0), request.logitBias());
    }

    @Test
    void keepsCopiesOfArraysAndLists() {
        int[] tokens = {1, 2};
        List<String> stops = new ArrayList<>(List.of("x"));
        GenerationRequest request =
                GenerationRequest.builder()
                        .setPromptTokens(tokens)
                        .optStopTokens(tokens)
                        .optStopStrings(stops)
                        .build();
        tokens[0] = 9;
        stops.add("y");
        request.promptTokens().orElseThrow()[1] = 9;
        request.stopTokens()[1] = 9;
        assertArrayEquals(new int[] {1, 2}, request.promptTokens().orElseThrow());
        assertArrayEquals(new int[] {1, 2}, request.stopTokens());
        assertEquals(List.of("x"), request.stopStrings());
    }

    @Test
    void namesWhatIsWrong() {
        refuse("either prompt or promptTokens", builder -> builder.setPrompt(null));
        refuse("either prompt or promptTokens", builder -> builder.setPromptTokens(1));
        refuse("prompt is empty", builder -> builder.setPrompt(""));
        refuse("no tokens", builder -> builder.setPrompt(null).setPromptTokens());
        refuse("maxTokens", builder -> builder.optMaxTokens(0));
        refuse("temperature", builder -> builder.optTemperature(-0.1));
        refuse("temperature", builder -> builder.optTemperature(Double.NaN));
        refuse("temperature", builder -> builder.optTemperature(Double.POSITIVE_INFINITY));
        refuse("topK", builder -> builder.optTopK(-1));
        refuse("topP", builder -> builder.optTopP(0));
        refuse("topP", builder -> builder.optTopP(1.1));
        refuse("topP", builder -> builder.optTopP(Double.NaN));
        refuse("repetitionPenalty", builder -> builder.optRepetitionPenalty(0));
        refuse("stopTokens", builder -> builder.optStopTokens((int[]) null));
        refuse("stopStrings", builder -> builder.optStopStrings(null));
        refuse("stopStrings", builder -> builder.optStopStrings(List.of("a", "")));
        refuse("minP must be from 0.0 to 1.0, not 1.1", builder -> builder.optMinP(1.1));
        refuse("frequencyPenalty", builder -> builder.optFrequencyPenalty(-2.1));
        refuse("presencePenalty", builder -> builder.optPresencePenalty(Double.NaN));
        refuse("logitBias is null", builder -> builder.optLogitBias(null));
        refuse("logitBias of 7", builder -> builder.optLogitBias(Map.of(7, 101.0)));
        refuse("minTokens must be from 0", builder -> builder.optMinTokens(129));
        refuse("topLogProbabilities", builder -> builder.optTopLogProbabilities(21));
    }

    private static void refuse(String problem, UnaryOperator<GenerationRequest.Builder> change) {
        GenerationRequest.Builder builder =
                change.apply(GenerationRequest.builder().setPrompt("a"));
        String message = assertThrows(IllegalArgumentException.class, builder::build).getMessage();
        assertTrue(message.contains(problem), message);
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llama;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.Device;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.ScalarType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** A Llama on GPUs: scores against loops in float64, and text against that of the CPU. */
@Tag("gpu")
@Timeout(300)
class LlamaGpuTest {

    @TempDir private Path directory;

    static Stream<Arguments> cases() {
        return Stream.of(1, 2, 4, 8)
                .flatMap(
                        ranks ->
                                Stream.of(
                                        Arguments.of(ranks, ScalarType.FLOAT32),
                                        Arguments.of(ranks, ScalarType.FLOAT16),
                                        Arguments.of(ranks, ScalarType.BFLOAT16)));
    }

    private static Device[] gpus(int count) {
        GpuTests.require(count, NativeLibrary.NCCL, NativeLibrary.NVRTC);
        return IntStream.range(0, count).mapToObj(Device::gpu).toArray(Device[]::new);
    }

    @ParameterizedTest(name = "{0} GPUs, {1}")
    @MethodSource("cases")
    void hasTheScoresOfAWholeModel(int ranks, ScalarType type) throws Exception {
        LlamaFiles.write(directory, LlamaFiles.config(type, true), 1);
        LlamaModelTest.compare(directory, groups(ranks), false);
    }

    static Stream<Arguments> decodableCases() {
        return Stream.of(1, 2, 4, 8)
                .flatMap(
                        ranks ->
                                Stream.of(
                                        Arguments.of(ranks, ScalarType.FLOAT16, 16),
                                        Arguments.of(ranks, ScalarType.BFLOAT16, 48),
                                        Arguments.of(ranks, ScalarType.BFLOAT16, 128)));
    }

    @ParameterizedTest(name = "{0} GPUs, {1}, heads of {2}")
    @MethodSource("decodableCases")
    void decodesWithTheScoresOfAWholeModel(int ranks, ScalarType type, int headSize)
            throws Exception {
        LlamaFiles.write(directory, LlamaFiles.decodable(type, false, headSize), 1);
        LlamaModelTest.compare(directory, groups(ranks), true);
    }

    private static List<ProcessGroup> groups(int ranks) {
        NcclOptions nccl = NcclOptions.builder().optDevices(gpus(ranks)).build();
        CudaP2pOptions options = CudaP2pOptions.builder().optNcclOptions(nccl).build();
        return ProcessGroups.local("cuda_p2p", ranks, options);
    }

    /** Alone, or with so many others that several graphs take turns, and not all fit into one. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void aSequenceGetsTheSameTokensWhateverOthersThereAre(int ranks) throws Exception {
        List<Device> devices = List.of(gpus(ranks));
        LlamaFiles.write(directory, LlamaFiles.decodable(ScalarType.BFLOAT16, true, 32), 5);
        try (TextGenerator generator =
                build(
                        builder ->
                                builder.optDevices(devices)
                                        .optMaxRunning(100)
                                        .optPrefillTokens(ranks == 1 ? 40 : 100))) {
            List<GenerationRequest> requests = new ArrayList<>();
            for (int i = 0; i < 100; i++) {
                int[] prompt = new Random(i).ints(1 + i * 3, 0, 203).toArray();
                GenerationRequest.Builder builder =
                        GenerationRequest.builder()
                                .setPromptTokens(prompt)
                                .optMaxNewTokens(5 + i % 30)
                                .optIgnoreEndOfText(true);
                if (i % 2 > 0) {
                    builder.optTemperature(1).optTopP(0.9).optSeed(i);
                }
                requests.add(builder.build());
            }
            List<Generation> together = new ArrayList<>();
            for (GenerationRequest request : requests) {
                together.add(generator.submit(request));
            }
            List<List<GeneratedPiece>> pieces = new ArrayList<>();
            for (Generation generation : together) {
                pieces.add(generation.await(Duration.ofMinutes(1)));
            }
            for (int i = 0; i < requests.size(); i += 9) {
                List<GeneratedPiece> alone =
                        generator.submit(requests.get(i)).await(Duration.ofMinutes(1));
                assertEquals(alone, pieces.get(i), "of " + i); // probabilities, too
            }
        }
    }

    @Test
    void generatesWhatTheCpuDoes() throws Exception {
        List<Device> devices = List.of(gpus(2));
        LlamaFiles.write(directory, LlamaFiles.config(ScalarType.FLOAT32, true), 3);
        List<int[]> expected = generate(builder -> builder);
        List<int[]> tokens = generate(builder -> builder.optDevices(devices));
        for (int i = 0; i < expected.size(); i++) {
            assertArrayEquals(expected.get(i), tokens.get(i), "of " + i);
        }
    }

    /** Greedy and drawn, of short prompts and long ones, at the same time. */
    private List<int[]> generate(UnaryOperator<LlamaGenerator.Builder> change) throws Exception {
        try (TextGenerator generator = build(change)) {
            List<Generation> generations = new ArrayList<>();
            for (int i = 0; i < 8; i++) {
                int[] prompt = IntStream.range(1, 2 + i * 10).toArray();
                GenerationRequest.Builder builder =
                        GenerationRequest.builder()
                                .setPromptTokens(prompt)
                                .optMaxNewTokens(10 + i)
                                .optIgnoreEndOfText(true);
                if (i % 2 > 0) {
                    builder.optTemperature(1).optTopK(20).optRepetitionPenalty(1.2).optSeed(i);
                }
                generations.add(generator.submit(builder.build()));
            }
            List<int[]> tokens = new ArrayList<>();
            for (Generation generation : generations) {
                tokens.add(
                        generation.await(Duration.ofMinutes(1)).stream()
                                .mapToInt(GeneratedPiece::token)
                                .toArray());
            }
            return tokens;
        }
    }

    private TextGenerator build(UnaryOperator<LlamaGenerator.Builder> change) throws IOException {
        return change.apply(LlamaGenerator.builder().setDirectory(directory)).build();
    }
}

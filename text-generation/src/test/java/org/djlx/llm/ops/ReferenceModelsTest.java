// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroups;
import org.djlx.llm.model.LlamaReference;
import org.djlx.llm.model.ModelFixture;
import org.djlx.llm.model.ReferenceModels;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** Models have the tokens and log-probabilities of references in float64. */
class ReferenceModelsTest {

    // What the references generate, by model and length of the prompt: they take most of the time.
    private static final Map<String, ModelFixture.Case> CASES = new HashMap<>();

    @TempDir private Path directory;

    static Stream<Arguments> models() {
        return ReferenceModels.names().stream()
                .flatMap(name -> Stream.of(1, 2, 4).map(ranks -> Arguments.of(name, ranks)));
    }

    /** Writes a model; returns what its reference generates after a random prompt. */
    private ModelFixture.Case write(String name, int length) throws Exception {
        LlamaReference reference = ReferenceModels.write(name, directory);
        return CASES.computeIfAbsent(
                name + "-" + length, key -> ReferenceModels.generate(reference, length, 6));
    }

    /**
     * The median is compared, because rounding may choose other experts for a few tokens; that of a
     * right model was up to 0.15.
     */
    @ParameterizedTest(name = "{0}, {1} ranks")
    @MethodSource("models")
    void isCloseToTheReferenceInBfloat16(String name, int ranks) throws Exception {
        ModelFixture.Case of = write(name, 21);
        Path file = directory.resolve("config.json");
        JsonObject config = JsonParser.parseString(Files.readString(file)).getAsJsonObject();
        config.addProperty("dtype", "bfloat16");
        Files.writeString(file, config.toString());
        List<Double> errors =
                ModelFixturesTest.compare(directory, of, ProcessGroups.local(ranks), 1);
        Collections.sort(errors);
        double median = errors.get(errors.size() / 2);
        assertTrue(median <= 0.25, "off by " + median);
    }

    /** The longest prompt is divided among ranks by tokens. */
    @ParameterizedTest(name = "{0}, {1} ranks")
    @MethodSource("models")
    void hasTheLogProbabilitiesOfTheReference(String name, int ranks) throws Exception {
        for (int length : new int[] {3, 21, 70}) {
            ModelFixture.Case of = write(name, length);
            double worst =
                    Collections.max(
                            ModelFixturesTest.compare(
                                    directory, of, ProcessGroups.local(ranks), 1e-4));
            assertTrue(worst <= 1e-4, length + " tokens are off by " + worst);
        }
    }
}

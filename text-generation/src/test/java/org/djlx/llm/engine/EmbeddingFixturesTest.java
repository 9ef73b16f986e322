// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.Device;
import com.google.gson.Gson;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;
import org.djlx.llm.EmbeddingModel;
import org.djlx.nativeops.cuda.CudaDevice;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Models have the tokens and vectors of sentence-transformers, on a GPU if there is one. The
 * property {@code embedding.fixtures} names a folder that {@code
 * src/test/python/make_embedding_fixtures.py} has written.
 */
@EnabledIfSystemProperty(named = "embedding.fixtures", matches = ".+")
class EmbeddingFixturesTest {

    private record Expected(List<String> texts, int[][] tokens, float[][] vectors) {}

    static List<Path> folders() throws IOException {
        try (Stream<Path> all = Files.list(Path.of(System.getProperty("embedding.fixtures")))) {
            return all.filter(each -> Files.exists(each.resolve("expected.json"))).toList();
        }
    }

    @ParameterizedTest
    @MethodSource("folders")
    void equalsSentenceTransformers(Path folder) throws IOException {
        String json = Files.readString(folder.resolve("expected.json"));
        Expected expected = new Gson().fromJson(json, Expected.class);
        List<Device> gpus = CudaDevice.count() > 0 ? List.of(Device.gpu(0)) : List.of();
        try (EmbeddingModel model =
                EmbeddingEngine.builder().setDirectory(folder).optDevices(gpus).build()) {
            float[][] actual = model.embed(expected.texts);
            assertEquals(expected.vectors.length, actual.length);
            for (int i = 0; i < actual.length; i++) {
                assertArrayEquals(expected.tokens[i], model.encode(expected.texts.get(i), null));
                assertArrayEquals(expected.vectors[i], actual[i], 1e-5f, "text " + i);
            }
        }
    }
}

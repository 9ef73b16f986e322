// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.djl;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.huggingface.translator.TextEmbeddingTranslatorFactory;
import ai.djl.inference.Predictor;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.ndarray.BytesSupplier;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import com.google.gson.Gson;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import org.djlx.llm.EmbeddingModel;
import org.djlx.llm.model.EncoderFiles;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Embedding models as models of DJL. */
class EmbeddingModelServiceTest {

    @TempDir private static Path directory;
    private static float[][] expected;

    @BeforeAll
    static void write() throws IOException {
        EncoderFiles.write(directory, "xlm-roberta", "", "mean_tokens");
        try (EmbeddingModel model = EmbeddingModel.of(directory.toString())) {
            expected = model.embed(List.of("a b", "zed"));
        }
    }

    private static Criteria.Builder<String, float[]> texts() {
        return Criteria.builder()
                .setTypes(String.class, float[].class)
                .optModelPath(directory)
                .optEngine("PyTorch-P2P")
                .optTranslatorFactory(new TextEmbeddingTranslatorFactory());
    }

    @Test
    void predictsVectorsOfTexts() throws Exception {
        try (ZooModel<String, float[]> model =
                        texts().optOption("tensor_parallel_degree", "2").build().loadModel();
                Predictor<String, float[]> predictor = model.newPredictor()) {
            assertArrayEquals(expected[0], predictor.predict("a b"), 1e-6f);
            List<float[]> both = predictor.batchPredict(List.of("a b", "zed"));
            assertArrayEquals(expected[1], both.get(1), 1e-6f);
        }
    }

    @Test
    void answersRequestsOfDjlServing() throws Exception {
        try (ZooModel<Input, Output> model =
                        Criteria.builder()
                                .setTypes(Input.class, Output.class)
                                .optModelPath(directory)
                                .optEngine("PyTorch-P2P")
                                .build()
                                .loadModel();
                Predictor<Input, Output> predictor = model.newPredictor()) {
            Output one = predictor.predict(input("{\"inputs\": \"a b\"}"));
            Gson gson = new Gson();
            float[] vector = gson.fromJson(one.getData().getAsString(), float[].class);
            assertArrayEquals(expected[0], vector, 1e-6f);
            Output two = predictor.predict(input("{\"inputs\": [\"a b\", \"zed\"]}"));
            float[][] vectors = gson.fromJson(two.getData().getAsString(), float[][].class);
            assertArrayEquals(expected[1], vectors[1], 1e-6f);
            model.setProperty("metric_dimension", "registered");
            String openAi = predictor.predict(input("{\"input\": \"a\"}")).getData().getAsString();
            assertTrue(openAi.contains("\"model\":\"registered\""), openAi);
            assertEquals(400, predictor.predict(input("{\"inputs\": \"\"}")).getCode());
            assertEquals(400, predictor.predict(input("{}")).getCode());
        }
    }

    private static Input input(String json) {
        Input input = new Input();
        input.add(BytesSupplier.wrap(json));
        return input;
    }

    @Test
    void refusesOptionsOfGenerators() {
        Criteria<String, float[]> criteria = texts().optOption("max_model_len", "20").build();
        Exception refused = assertThrows(Exception.class, criteria::loadModel);
        String all = refused + " " + refused.getCause();
        assertTrue(all.contains("max_model_len"), all);
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.SafetensorsWriter;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.files.GgufDirectory;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.ModelFixture;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.model.WeightMap;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

class ModelWeightsTest {

    private final ModelConfig config = LlamaFiles.config(ScalarType.BFLOAT16, false);
    @TempDir private Path directory;

    @Test
    void takesTheMemoryThatIsStated() throws IOException {
        LlamaFiles.write(directory, config, 1);
        checkMemory(8);
    }

    @ParameterizedTest
    @MethodSource("org.djlx.llm.model.ModelFixture#names")
    void everyArchitectureTakesTheMemoryThatIsStated(String name) throws IOException {
        ModelFixture.write(name, directory, ScalarType.BFLOAT16);
        checkMemory(4);
    }

    private void checkMemory(int maxRanks) throws IOException {
        ModelConfig read = ModelConfig.read(directory);
        try (TensorFiles files = GgufDirectory.openWeights(directory)) {
            WeightMap.check(read, files);
            for (int ranks = 1; ranks <= maxRanks; ranks *= 2) {
                boolean inPlace = ranks != 2;
                AtomicLong filled = new AtomicLong();
                for (int rank = 0; rank < ranks; rank++) {
                    ModelWeights.read(
                                    read,
                                    rank,
                                    ranks,
                                    Device.cpu(),
                                    new WeightFormat(Quantization.NONE),
                                    files,
                                    inPlace,
                                    filled::addAndGet)
                            .close();
                }
                int missing = WeightMap.vocabularyPart(read, ranks) * ranks - read.vocabularySize();
                long zeros = (read.tied() ? 2L : 4L) * missing * read.hiddenSize();
                long stated = ranks * WeightMap.byteSize(read, ranks);
                assertEquals(stated, filled.get() + zeros);
            }
        }
    }

    @Test
    void readsLargeMatricesInPieces() throws IOException {
        ModelConfig large = LlamaFiles.config(ScalarType.BFLOAT16, true, 430_001, 7);
        LlamaFiles.write(directory, large, 1);
        try (Safetensors files = Safetensors.open(directory);
                NDManager manager = NDManager.newBaseManager(Device.cpu());
                ModelWeights weights =
                        ModelWeights.read(
                                large,
                                0,
                                1,
                                Device.cpu(),
                                new WeightFormat(Quantization.NONE),
                                files,
                                true,
                                bytes -> {})) {
            NDArray expected = Torch.empty(manager, new Shape(430_001, 40), ScalarType.BFLOAT16);
            files.read("model.embed_tokens.weight", expected);
            assertEquals(expected, weights.embedding());
        }
    }

    @Test
    void namesTheTensorThatIsWrong() throws IOException {
        String name = "model.layers.1.self_attn.k_proj.weight";
        refuse("no tensor '" + name + "'", shapes -> shapes.remove(name));
        refuse(
                "'" + name + "' in " + directory + "/model.safetensors has the shape (12, 41)",
                shapes -> shapes.put(name, TensorSpec.of(name, config.type(), new Shape(12, 41))));
        refuse("'lm_head.weight'", shapes -> shapes.remove("lm_head.weight"));
        for (String more :
                new String[] {
                    "model.layers.1.self_attn.q_proj.bias", "model.layers.2.mlp.up_proj.weight"
                }) {
            refuse(
                    "a tensor '" + more + "'",
                    shapes -> shapes.put(more, TensorSpec.of(more, config.type(), new Shape(1))));
        }
        String unused = "model.layers.0.self_attn.rotary_emb.inv_freq";
        write(shapes -> shapes.put(unused, TensorSpec.of(unused, config.type(), new Shape(4))));
        try (Safetensors files = Safetensors.open(directory)) {
            WeightMap.check(config, files);
        }
        refuse(
                "has type int32",
                shapes -> {
                    Shape shape = shapes.get(name).shape();
                    shapes.put(name, TensorSpec.of(name, ScalarType.INT32, shape));
                });
    }

    private void write(Consumer<Map<String, TensorSpec>> change) throws IOException {
        Map<String, TensorSpec> specs = new LinkedHashMap<>();
        WeightMap.shapes(config)
                .forEach(
                        (name, shape) ->
                                specs.put(name, TensorSpec.of(name, config.type(), shape)));
        change.accept(specs);
        List<TensorSpec> written = new ArrayList<>(specs.values());
        try (NDManager manager = NDManager.newBaseManager()) {
            SafetensorsWriter.writeModel(
                    directory, written, Long.MAX_VALUE, spec -> manager.zeros(spec.shape()));
        }
    }

    private void refuse(String problem, Consumer<Map<String, TensorSpec>> change)
            throws IOException {
        write(change);
        try (Safetensors files = Safetensors.open(directory)) {
            String message =
                    assertThrows(
                                    IllegalArgumentException.class,
                                    () -> WeightMap.check(config, files))
                            .getMessage();
            assertTrue(message.toLowerCase().contains(problem.toLowerCase()), message);
        }
    }
}

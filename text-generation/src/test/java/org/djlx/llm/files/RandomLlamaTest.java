// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Stream;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.model.KvCacheDtype;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Rope;
import org.djlx.llm.model.WeightMap;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Timeout(120)
@Tag("slow")
class RandomLlamaTest {

    private static final ModelConfig SMALL =
            LlamaDirectory.config(300, 16, 24, 2, 4, 2, 64, 10_000, false, ScalarType.BFLOAT16);

    @TempDir private Path folder;

    private List<Path> files(Path directory) throws IOException {
        try (Stream<Path> files = Files.list(directory)) {
            return files.sorted(Comparator.comparing(Path::toString)).toList();
        }
    }

    @Test
    void writesTheSameFilesInEveryRunUntilClosed() throws Exception {
        try (RandomLlama first = RandomLlama.write(SMALL, folder);
                RandomLlama second = RandomLlama.write(SMALL, folder);
                Safetensors weights = Safetensors.open(first.directory());
                HuggingFaceTokenizer tokenizer =
                        HuggingFaceTokenizer.newInstance(first.directory())) {
            for (Path file : files(first.directory())) {
                Path other = second.directory().resolve(file.getFileName());
                assertEquals(-1, Files.mismatch(file, other), file::toString);
            }
            ModelConfig config = ModelConfig.read(first.directory());
            assertEquals(ScalarType.BFLOAT16, config.type());
            for (TensorSpec tensor : WeightMap.tensors(config)) {
                assertEquals(tensor, weights.spec(tensor.name()));
            }
            // Every token has a text: clients see it.
            assertEquals(" 38", tokenizer.decode(new long[] {294}));
            assertEquals(295, tokenizer.encode("x").getIds()[0]);
        }
        assertEquals(List.of(), files(folder));
    }

    @Test
    void layersHaveTheSameWeightsAndOthersTheirOwn() throws Exception {
        try (RandomLlama model = RandomLlama.write(SMALL, folder);
                Safetensors weights = Safetensors.open(model.directory())) {
            for (TensorSpec tensor : weights.specs()) {
                if (tensor.name().contains("layers.0.")) {
                    String other = tensor.name().replace("layers.0.", "layers.1.");
                    assertArrayEquals(values(weights, tensor.name()), values(weights, other));
                }
            }
            assertFalse(
                    Arrays.equals(
                            values(weights, "model.embed_tokens.weight"),
                            values(weights, "lm_head.weight")));
        }
    }

    @Test
    void writesMixturesOfExperts() throws Exception {
        LayerConfig dense = SMALL.layer(0);
        LayerConfig.Attention attention =
                new LayerConfig.Attention(
                        Rope.of(10_000, 4),
                        0,
                        0.5,
                        0,
                        false,
                        false,
                        LayerConfig.HeadNorms.EACH_HEAD,
                        false);
        LayerConfig layer =
                new LayerConfig(attention, dense.mlp(), dense.norms())
                        .withExperts(24, new LayerConfig.Experts(6, 2, true));
        ModelConfig config =
                new ModelConfig(
                        "qwen3_moe",
                        300,
                        16,
                        4,
                        2,
                        4,
                        64,
                        1e-6,
                        false,
                        List.of(),
                        ScalarType.BFLOAT16,
                        List.of(layer, layer),
                        1,
                        1,
                        0,
                        false,
                        KvCacheDtype.AUTO);
        try (RandomLlama model = RandomLlama.write(config, folder);
                Safetensors weights = Safetensors.open(model.directory())) {
            ModelConfig read = ModelConfig.read(model.directory());
            assertEquals("qwen3_moe", read.modelType());
            assertEquals(config.layerConfigs(), read.layerConfigs());
            WeightMap.check(read, weights);
            String expert = "model.layers.%d.mlp.experts.%d.up_proj.weight";
            float[] first = values(weights, expert.formatted(0, 0));
            assertArrayEquals(first, values(weights, expert.formatted(1, 5)));
        }
    }

    private static float[] values(Safetensors weights, String name) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray array = manager.zeros(weights.spec(name).shape());
            weights.read(name, array);
            return array.toFloatArray();
        }
    }

    @Test
    void refusesAFolderWithoutRoom() {
        Path missing = folder.resolve("missing");
        IOException e = assertThrows(IOException.class, () -> RandomLlama.write(SMALL, missing));
        assertTrue(e.getMessage().contains("has no room for"), e::getMessage);
        assertFalse(Files.exists(missing));
    }
}

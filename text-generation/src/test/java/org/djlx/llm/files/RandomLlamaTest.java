// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Stream;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.model.KvCacheDtype;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Rope;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Timeout(120)
@Tag("slow")
class RandomLlamaTest {

    private static final ModelConfig SMALL =
            new ModelConfig(
                    "llama",
                    300,
                    16,
                    4,
                    2,
                    4,
                    64,
                    1e-5,
                    false,
                    List.of(),
                    ScalarType.BFLOAT16,
                    Collections.nCopies(2, LayerConfig.llama(Rope.of(10_000, 4), 4, 24)),
                    1,
                    1,
                    0,
                    false,
                    KvCacheDtype.AUTO);

    @TempDir private Path folder;

    private List<Path> files(Path directory) throws IOException {
        try (Stream<Path> files = Files.list(directory)) {
            return files.sorted(Comparator.comparing(Path::toString)).toList();
        }
    }

    @Test
    void isTheSameInEveryRunAndThereUntilItIsClosed() throws Exception {
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
            for (TensorSpec tensor : LlamaDirectory.tensors(config)) {
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
        try (RandomLlama model = RandomLlama.write(SMALL, folder)) {
            int layer = 2 * (16 + 16 * (16 + 8 + 8 + 16) + 16 + 3 * 16 * 24);
            assertArrayEquals(end(model, "layer-0", layer), end(model, "layer-1", layer));
            int matrix = 2 * 300 * 16;
            assertFalse(
                    Arrays.equals(
                            end(model, "embed_tokens", matrix), end(model, "lm_head", matrix)));
        }
    }

    /** Returns the data of a file, without the header. */
    private static byte[] end(RandomLlama model, String file, int size) throws IOException {
        byte[] all = Files.readAllBytes(model.directory().resolve(file + ".safetensors"));
        return Arrays.copyOfRange(all, all.length - size, all.length);
    }

    @Test
    void refusesAFolderWithoutRoom() {
        Path missing = folder.resolve("missing");
        IOException e = assertThrows(IOException.class, () -> RandomLlama.write(SMALL, missing));
        assertTrue(e.getMessage().contains("has no room for"), e::getMessage);
        assertFalse(Files.exists(missing));
    }
}

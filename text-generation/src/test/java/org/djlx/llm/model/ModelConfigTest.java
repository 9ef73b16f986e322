// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Collections;
import java.util.List;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class ModelConfigTest {

    // As Meta's Llama 3.1 8B has it.
    private static final String LLAMA_3_1 =
            """
            {
              "architectures": ["LlamaForCausalLM"],
              "attention_bias": false,
              "bos_token_id": 128000,
              "eos_token_id": [128001, 128008, 128009],
              "hidden_act": "silu",
              "hidden_size": 4096,
              "intermediate_size": 14336,
              "max_position_embeddings": 131072,
              "mlp_bias": false,
              "model_type": "llama",
              "num_attention_heads": 32,
              "num_hidden_layers": 32,
              "num_key_value_heads": 8,
              "pretraining_tp": 1,
              "rms_norm_eps": 1e-05,
              "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3"
              },
              "rope_theta": 500000.0,
              "tie_word_embeddings": false,
              "torch_dtype": "bfloat16",
              "vocab_size": 128256
            }
            """;

    @TempDir private Path directory;

    private ModelConfig read(String json) throws IOException {
        Files.writeString(directory.resolve("config.json"), json);
        return ModelConfig.read(directory);
    }

    @Test
    void readsLlama3() throws IOException {
        ModelConfig config = read(LLAMA_3_1);
        assertEquals(
                LlamaConfig.builder()
                        .vocabulary(128256)
                        .hidden(4096)
                        .heads(32, 8, 128)
                        .maxLength(131072)
                        .endTokens(128001, 128008, 128009)
                        .type(ScalarType.BFLOAT16)
                        .layers(
                                32,
                                LayerConfig.llama(
                                        Rope.llama3(500000, 64, 8, 1, 4, 8192), 128, 14336))
                        .build(),
                config);
        for (int ranks : new int[] {1, 2, 4, 8, 16, 32}) {
            config.checkDivisible(ranks);
        }
    }

    /** Ranks compare the summaries of their models. */
    @Test
    void summariesDifferIfKeysAndValuesAreStoredInAnotherWay() throws IOException {
        String own = read(LLAMA_3_1).toString();
        ModelConfig fp8 = ModelConfig.read(directory, null, KvCacheDtype.FP8);
        assertTrue(own.contains("type BFLOAT16, KV cache auto"), own);
        assertEquals(own.replace("KV cache auto", "KV cache fp8"), fp8.toString());
    }

    @Test
    void oldFilesGetDefaults() throws IOException {
        ModelConfig config =
                read(
                        """
                        {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
                         "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100,
                         "eos_token_id": 2, "rope_scaling": null}
                        """);
        assertEquals(4, config.kvHeads());
        assertEquals(16, config.headSize());
        assertEquals(2048, config.maxLength());
        assertEquals(1e-6, config.epsilon());
        assertEquals(Rope.of(10000, 16), config.rope());
        assertFalse(config.tied());
        assertEquals(List.of(2), config.endTokens());
        assertEquals(ScalarType.FLOAT32, config.type());
    }

    @Test
    void readsTheNamesOfNewFiles() throws IOException {
        Files.writeString(
                directory.resolve("generation_config.json"), "{\"eos_token_id\": [5, 6]}");
        ModelConfig config =
                read(
                        """
                        {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
                         "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100,
                         "head_dim": 32, "dtype": "float16", "eos_token_id": 2,
                         "rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", "factor": 2},
                         "tie_word_embeddings": true}
                        """);
        assertEquals(1e6, config.rope().theta());
        assertEquals(Collections.nCopies(16, 2.0), config.rope().divisors());
        assertEquals(List.of(5, 6), config.endTokens());
        assertEquals(ScalarType.FLOAT16, config.type());
        assertEquals(32, config.headSize());
        assertTrue(config.tied());
    }

    /** The formula is that of transformers' {@code _compute_llama3_parameters}. */
    @Test
    void stretchesLongWavesOnly() throws IOException {
        double[] plain = Rope.of(500000, 128).frequencies(128, 0, 1);
        double[] scaled = read(LLAMA_3_1).rope().frequencies(128, 0, 1);
        assertEquals(64, scaled.length);
        assertEquals(1, scaled[0]);
        assertEquals(plain[20], scaled[20]); // a wave of 380 tokens
        assertEquals(plain[63] / 8, scaled[63], 1e-18); // one of 2.6 million
        double turns = 8192 * plain[32] / (2 * Math.PI); // 1.84, between 1 and 4
        double smooth = (turns - 1) / 3;
        assertEquals((1 - smooth) * plain[32] / 8 + smooth * plain[32], scaled[32], 1e-12);
    }

    @Test
    void turnsAsTheReferenceDoes() throws IOException {
        for (String kind : List.of("llama3", "linear", "default")) {
            String json =
                    LLAMA_3_1.replace(
                            "\"rope_type\": \"llama3\"", "\"rope_type\": \"" + kind + '"');
            double[] expected =
                    LlamaReference.frequencies(JsonParser.parseString(json).getAsJsonObject(), 128);
            double[] frequencies = read(json).rope().frequencies(128, 0, 1);
            for (int i = 0; i < 64; i++) {
                assertEquals(1, frequencies[i] / expected[i], 1e-12, kind + ", pair " + i);
            }
        }
    }

    @Test
    void namesTheEntryThatIsWrong() throws IOException {
        refuse("\"model_type\": \"llama\"", "\"model_type\": \"gpt2\"", "model_type");
        refuse("\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "hidden_act");
        refuse("\"mlp_bias\": false", "\"mlp_bias\": 7", "mlp_bias");
        refuse("\"hidden_size\": 4096,", "", "hidden_size is missing");
        refuse("\"hidden_size\": 4096", "\"hidden_size\": 4100.5", "must be a whole number");
        refuse("\"hidden_size\": 4096", "\"hidden_size\": \"4096\"", "must be a number");
        refuse("\"hidden_size\": 4096", "\"hidden_size\": 1e12", "hidden_size");
        refuse("\"hidden_size\": 4096", "\"hidden_size\": 4097", "head_dim");
        refuse("\"num_attention_heads\": 32", "\"num_attention_heads\": 0", "num_attention_heads");
        refuse("\"num_key_value_heads\": 8", "\"num_key_value_heads\": 7", "not a multiple");
        refuse("\"num_hidden_layers\": 32", "\"num_hidden_layers\": 10001", "num_hidden_layers");
        refuse("\"vocab_size\": 128256", "\"vocab_size\": -1", "vocab_size");
        refuse("\"vocab_size\": 128256", "\"vocab_size\": 1000", "eos_token_id 128001");
        refuse("\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": -1", "rms_norm_eps");
        refuse("\"rope_type\": \"llama3\"", "\"rope_type\": \"ntk\"", "'ntk'");
        refuse("\"low_freq_factor\": 1.0,", "", "low_freq_factor is missing");
        refuse("\"low_freq_factor\": 1.0", "\"low_freq_factor\": 5", "low_freq_factor");
        refuse("\"factor\": 8.0", "\"factor\": 0", "factor of rope_scaling");
        refuse("\"torch_dtype\": \"bfloat16\"", "\"torch_dtype\": \"int8\"", "'int8'");
        refuse("\"pretraining_tp\": 1", "\"quantization_config\": {}", "quantization");
        refuse("{", "[", "not JSON");
        assertThrows(IllegalArgumentException.class, () -> read("[]"));
        Files.delete(directory.resolve("config.json"));
        assertThrows(NoSuchFileException.class, () -> ModelConfig.read(directory));
    }

    private void refuse(String text, String instead, String problem) {
        assertTrue(LLAMA_3_1.contains(text), text);
        String json = LLAMA_3_1.replace(text, instead);
        String message =
                assertThrows(IllegalArgumentException.class, () -> read(json)).getMessage();
        assertTrue(message.contains(problem) && message.contains("config.json"), message);
    }

    @Test
    void saysWhatCannotBeDivided() throws IOException {
        refuse(read(LLAMA_3_1), 3, "num_attention_heads 32");
        refuse(read(LLAMA_3_1), 64, "num_attention_heads 32");
        refuse(read(LLAMA_3_1.replace("14336", "14337")), 2, "intermediate_size");
        refuse(
                read(
                        LLAMA_3_1
                                .replace(
                                        "\"num_key_value_heads\": 8", "\"num_key_value_heads\": 16")
                                .replace(
                                        "\"num_attention_heads\": 32",
                                        "\"num_attention_heads\": 48")
                                .replace("\"hidden_size\": 4096", "\"hidden_size\": 4800")),
                24,
                "num_key_value_heads");
        refuse(read(LLAMA_3_1), 0, "number of ranks");
    }

    private static void refuse(ModelConfig config, int ranks, String problem) {
        String message =
                assertThrows(IllegalArgumentException.class, () -> config.checkDivisible(ranks))
                        .getMessage();
        assertTrue(message.contains(problem), message);
    }
}

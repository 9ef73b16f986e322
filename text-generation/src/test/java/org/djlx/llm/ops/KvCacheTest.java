// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.Device;
import java.io.IOException;
import java.nio.file.Path;
import org.djlx.llm.model.KvCacheDtype;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.ModelConfig;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The memory of the KV cache; no GPU is needed. */
class KvCacheTest {

    private static final int SLOTS = 48;

    @TempDir private Path directory;

    /**
     * A head of 16 elements, and in fp8 a scale. Arrays follow each other, from the first layer.
     */
    @ParameterizedTest
    @CsvSource({
        "FLOAT32, AUTO, 1, 64, 0",
        "BFLOAT16, AUTO, 1, 32, 0",
        "BFLOAT16, FP8, 1, 16, 4",
        "FLOAT16, FP8, 2, 16, 4"
    })
    void arraysFillTheMemory(
            ScalarType type, KvCacheDtype dtype, int ranks, int headBytes, int scaleBytes)
            throws IOException {
        LlamaFiles.write(directory, LlamaFiles.decodable(type, true, 16), 1);
        ModelConfig config = ModelConfig.read(directory, null, dtype);
        long heads = (long) SLOTS * config.kvHeads() / ranks;
        long layer = 2 * heads * (headBytes + scaleBytes);
        assertEquals(config.layers() * layer, KvCache.byteSize(config, ranks, SLOTS));
        try (KvCache cache = new KvCache(config, ranks, SLOTS, Device.cpu())) {
            long begin = cache.addresses(0).keys();
            for (int i = 0; i < config.layers(); i++) {
                DecoderKernels.Cache of = cache.addresses(i);
                assertEquals(begin + i * layer, of.keys());
                assertEquals(of.keys() + heads * headBytes, of.values());
                long scales = of.values() + heads * headBytes;
                assertEquals(scaleBytes == 0 ? 0 : scales, of.keyScales());
                assertEquals(scaleBytes == 0 ? 0 : scales + heads * scaleBytes, of.valueScales());
            }
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import ai.djl.Device;
import ai.djl.ndarray.types.DataType;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.GpuTests;
import org.djlx.llm.EmbeddingModel;
import org.djlx.llm.model.EncoderFiles;
import org.djlx.llm.model.EncoderReference;
import org.djlx.nativeops.cuda.CudaDevice;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** Embeddings computed on GPUs equal those of a reference in float64. */
@Tag("gpu")
@Tag("beside")
class EmbeddingEngineGpuTest {

    private static final int[][] LENGTHS = {
        {1}, {5, 5, 5}, {3, 150, 1, 17, 64, 17, 2, 33, 150, 90}, IntStream.range(1, 130).toArray()
    };

    @TempDir private Path directory;

    static Stream<Arguments> models() {
        return EncoderFiles.MODEL_TYPES.stream()
                .flatMap(
                        type ->
                                Stream.of(
                                        Arguments.of(type, DataType.FLOAT32, 1e-5),
                                        Arguments.of(type, DataType.FLOAT16, 4e-3),
                                        Arguments.of(type, DataType.BFLOAT16, 3e-2)));
    }

    private void check(DataType type, double tolerance, List<Device> gpus, String pooling)
            throws IOException {
        EncoderReference reference = new EncoderReference(directory, "");
        try (EmbeddingModel model =
                EmbeddingEngine.builder()
                        .setDirectory(directory)
                        .optDevices(gpus)
                        .optDataType(type)
                        .build()) {
            for (int[] lengths : LENGTHS) {
                EmbeddingEngineTest.check(
                        model, reference, EmbeddingEngineTest.texts(lengths), pooling, tolerance);
            }
        }
    }

    @ParameterizedTest
    @MethodSource("models")
    void equalsTheReferenceForBatchesOfMixedLengths(String model, DataType type, double tolerance)
            throws IOException {
        GpuTests.require(1);
        EncoderFiles.write(directory, model, "", "mean_tokens");
        check(type, tolerance, List.of(Device.gpu(0)), "mean_tokens");
    }

    @Test
    void allGpusOfTheHostComputeBatches() throws IOException {
        GpuTests.require(2);
        EncoderFiles.write(directory, "bert", "", "max_tokens");
        List<Device> gpus = IntStream.range(0, CudaDevice.count()).mapToObj(Device::gpu).toList();
        check(DataType.FLOAT32, 1e-5, gpus, "max_tokens");
    }
}

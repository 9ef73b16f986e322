// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.SafetensorsWriter;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Tensors in MXFP4 whose parts fit together, and others. */
class GptOssWeightsTest {

    private static final String EXPERTS = "model.layers.0.mlp.experts.gate_up_proj";

    @TempDir private Path directory;

    private TensorFiles open(ScalarType blocks, ScalarType scales, long... scaleSizes)
            throws IOException {
        List<TensorSpec> specs = new ArrayList<>();
        specs.add(TensorSpec.of(EXPERTS + "_bias", ScalarType.BFLOAT16, new Shape(2, 4)));
        specs.add(TensorSpec.of(EXPERTS + "_blocks", blocks, new Shape(2, 4, 3, 16)));
        if (scaleSizes.length > 0) {
            specs.add(TensorSpec.of(EXPERTS + "_scales", scales, new Shape(scaleSizes)));
        }
        Path file = directory.resolve("model.safetensors");
        try (NDManager manager = NDManager.newBaseManager()) {
            SafetensorsWriter.write(
                    file, specs, spec -> Torch.empty(manager, spec.shape(), spec.type()));
        }
        Safetensors files = Safetensors.open(file);
        try {
            return GptOssWeights.of(files);
        } catch (RuntimeException e) {
            files.close();
            throw e;
        }
    }

    @Test
    void hasAMatrixForEachExpert() throws Exception {
        try (TensorFiles files = open(ScalarType.UINT8, ScalarType.UINT8, 2, 4, 3)) {
            String name = "model.layers.0.mlp.experts.1.up_proj.weight";
            assertEquals(new Shape(2, 96), files.spec(name).shape());
        }
    }

    @ParameterizedTest
    @CsvSource({"INT8, UINT8, 3", "UINT8, INT8, 3", "UINT8, UINT8, 1", "UINT8, FLOAT32, 3"})
    void partsThatDoNotFitTogetherAreRefusedByName(
            ScalarType blocks, ScalarType scales, long groups) {
        IllegalArgumentException e =
                assertThrows(
                        IllegalArgumentException.class, () -> open(blocks, scales, 2, 4, groups));
        assertTrue(e.getMessage().contains("model.safetensors"), e.getMessage());
        assertTrue(e.getMessage().contains(EXPERTS + "_scales of UINT8"), e.getMessage());
    }

    @Test
    void missingScalesAreRefusedByName() {
        IllegalArgumentException e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> open(ScalarType.UINT8, ScalarType.UINT8));
        assertTrue(e.getMessage().contains(EXPERTS + "_scales"), e.getMessage());
    }
}

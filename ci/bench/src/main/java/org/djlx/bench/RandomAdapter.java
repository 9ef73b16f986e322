// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.SafetensorsWriter;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.model.LoraConfig;
import org.djlx.nativeops.torch.ScalarType;

/**
 * A LoRA adapter of all projections of a model, with random values, in the JVM's temporary folder.
 * Closing it deletes it.
 */
record RandomAdapter(Path directory) implements AutoCloseable {

    private static final String PROJECTIONS =
            "model\\.layers\\.\\d+\\.(self_attn|mlp)\\.\\w+_proj\\.weight";
    private static final float DEVIATION = 0.01f;

    static RandomAdapter write(Path model, int rank) throws IOException {
        List<TensorSpec> specs = new ArrayList<>();
        try (Safetensors files = Safetensors.open(model)) {
            for (TensorSpec spec : files.specs()) {
                if (spec.name().matches(PROJECTIONS)) {
                    String module = LoraConfig.PREFIX + spec.name().replaceFirst("weight$", "");
                    specs.add(spec(module + "lora_A.weight", rank, spec.shape().get(1)));
                    specs.add(spec(module + "lora_B.weight", spec.shape().get(0), rank));
                }
            }
        }
        RandomAdapter adapter = new RandomAdapter(Files.createTempDirectory("djlx-adapter-"));
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            Path weights = adapter.directory.resolve(LoraConfig.WEIGHTS);
            SafetensorsWriter.write(
                    weights,
                    specs,
                    spec -> manager.randomNormal(0, DEVIATION, spec.shape(), DataType.FLOAT32));
            new LoraConfig(rank, rank, false, 0, List.of()).write(adapter.directory, model);
            return adapter;
        } catch (Throwable e) {
            adapter.close();
            throw e;
        }
    }

    private static TensorSpec spec(String name, long rows, long columns) {
        return TensorSpec.of(name, ScalarType.FLOAT32, new Shape(rows, columns));
    }

    @Override
    public void close() throws IOException {
        Files.deleteIfExists(directory.resolve(LoraConfig.WEIGHTS));
        Files.deleteIfExists(directory.resolve(LoraConfig.CONFIG));
        Files.deleteIfExists(directory);
    }
}

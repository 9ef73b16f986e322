// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.file.DirectoryNotEmptyException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.model.KvCacheDtype;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Rope;
import org.djlx.llm.model.WeightMap;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * A model directory of a Llama, or of a Qwen 3 with experts, with random weights, for benchmarks.
 * Closing it, or the end of the JVM, deletes it. All layers, and all experts of a layer, have the
 * same weights, because generating weights takes longer than writing them.
 */
public final class RandomLlama implements AutoCloseable {

    public enum Size {
        /** The defaults of {@code serve-model}, for CPUs. */
        TINY(
                "tiny",
                ScalarType.FLOAT32,
                t -> LlamaDirectory.config(512, 128, 256, 2, 8, 4, 8192, 10_000, false, t)),
        /** The sizes of llama2.c's 110 M, for CPUs. */
        LLAMA_110M(
                "110m",
                ScalarType.FLOAT32,
                t -> LlamaDirectory.config(32_000, 768, 2048, 12, 12, 12, 8192, 10_000, true, t)),
        /** The sizes of TinyLlama, for CPUs. */
        LLAMA_1B(
                "1b",
                ScalarType.BFLOAT16,
                t -> LlamaDirectory.config(32_000, 2048, 5632, 22, 32, 4, 8192, 10_000, false, t)),
        /** The sizes of Llama 3 8B. */
        LLAMA_8B(
                "8b",
                ScalarType.BFLOAT16,
                t ->
                        LlamaDirectory.config(
                                128_256, 4096, 14_336, 32, 32, 8, 8192, 500_000, false, t)),
        /** The sizes of Qwen 3 30B-A3B, a mixture of experts, with 12 of its 48 layers. */
        QWEN3_30B_A3B_12L("30b-a3b-12l", ScalarType.BFLOAT16, RandomLlama::qwen3Moe);

        private final String text;
        private final ScalarType type;
        private final Function<ScalarType, ModelConfig> config;

        Size(String text, ScalarType type, Function<ScalarType, ModelConfig> config) {
            this.text = text;
            this.type = type;
            this.config = config;
        }

        /** {@return the configuration, in the type in which such a model is written} */
        public ModelConfig config() {
            return config.apply(type);
        }

        @Override
        public String toString() {
            return text;
        }
    }

    private static final Path SHARED_MEMORY = Path.of("/dev/shm");
    private static final long OTHER_FILES = 64L << 20;
    private static final long FILE_BYTES = 5_000_000_000L;
    private static final int SEED = 1;

    private final Path directory;

    private RandomLlama(Path directory) {
        this.directory = directory;
    }

    private static ModelConfig qwen3Moe(ScalarType type) {
        int head = 128;
        Rope rope = Rope.of(1_000_000, head);
        LayerConfig.Attention attention =
                new LayerConfig.Attention(
                        rope,
                        0,
                        1 / Math.sqrt(head),
                        0,
                        false,
                        false,
                        LayerConfig.HeadNorms.EACH_HEAD,
                        false);
        LayerConfig dense = LayerConfig.llama(rope, head, 768);
        LayerConfig layer =
                new LayerConfig(attention, dense.mlp(), dense.norms())
                        .withExperts(768, new LayerConfig.Experts(128, 8, true));
        return new ModelConfig(
                "qwen3_moe",
                151_936,
                2048,
                32,
                4,
                head,
                8192,
                1e-6,
                false,
                List.of(),
                type,
                Collections.nCopies(12, layer),
                1,
                1,
                0,
                false,
                KvCacheDtype.AUTO);
    }

    /**
     * Writes a model; {@code type} is null for that of the size, {@code parent} for /dev/shm if
     * memory suffices, otherwise the JVM's temporary folder. If there is too little room or a file
     * cannot be written, no file remains.
     */
    public static RandomLlama write(Size size, ScalarType type, Path parent) throws IOException {
        return write(size.config.apply(type == null ? size.type : type), parent);
    }

    public static RandomLlama write(ModelConfig config, Path parent) throws IOException {
        List<TensorSpec> tensors = WeightMap.tensors(config);
        long bytes = tensors.stream().mapToLong(TensorSpec::byteSize).sum();
        Path place = parent == null ? place(bytes) : parent;
        if (!hasRoom(place, bytes)) {
            throw new IOException(
                    String.format(
                            "%s has no room for the %d bytes of a Llama, or is not a writable"
                                    + " folder; name another folder",
                            place, bytes));
        }
        RandomLlama model = new RandomLlama(Files.createTempDirectory(place, "djlx-llama-"));
        Runtime.getRuntime().addShutdownHook(new Thread(model::close, "random-llama-end"));
        try {
            try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
                manager.getEngine().setRandomSeed(SEED);
                Map<String, NDArray> drawn = new HashMap<>();
                LlamaDirectory.write(
                        model.directory,
                        config,
                        1,
                        FILE_BYTES,
                        tensor -> // a view, because the writer closes its arrays
                        drawn.computeIfAbsent(kind(tensor), kind -> draw(manager, tensor))
                                        .reshape(tensor.shape()));
            }
            return model;
        } catch (Throwable e) {
            model.close();
            throw e;
        }
    }

    private static Path place(long bytes) throws IOException {
        var system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        // Files in /dev/shm count as memory of the container, and loading needs memory too.
        return system.getTotalMemorySize() / 3 > bytes && hasRoom(SHARED_MEMORY, bytes)
                ? SHARED_MEMORY
                : Path.of(System.getProperty("java.io.tmpdir"));
    }

    private static boolean hasRoom(Path place, long bytes) throws IOException {
        return Files.isWritable(place)
                && Files.getFileStore(place).getUsableSpace() - OTHER_FILES > bytes;
    }

    private static NDArray draw(NDManager manager, TensorSpec tensor) {
        try (NDArray random = LlamaDirectory.random(manager, tensor)) {
            NDArray array = Torch.empty(manager, tensor.shape(), tensor.type());
            Torch.copy(array, random);
            return array;
        }
    }

    private static String kind(TensorSpec tensor) {
        return tensor.name().replaceFirst("layers\\.\\d+", "").replaceFirst("experts\\.\\d+", "");
    }

    public Path directory() {
        return directory;
    }

    @Override
    public void close() {
        try {
            while (Files.exists(directory)) {
                try (DirectoryStream<Path> files = Files.newDirectoryStream(directory)) {
                    for (Path file : files) {
                        Files.deleteIfExists(file);
                    }
                }
                deleteIfEmpty();
            }
        } catch (NoSuchFileException e) {
            // The shutdown hook has deleted it.
        } catch (IOException e) {
            throw new UncheckedIOException("cannot delete " + directory, e);
        }
    }

    private void deleteIfEmpty() throws IOException {
        try {
            Files.deleteIfExists(directory);
        } catch (DirectoryNotEmptyException e) {
            // Another thread still writes files while the JVM ends.
        }
    }
}

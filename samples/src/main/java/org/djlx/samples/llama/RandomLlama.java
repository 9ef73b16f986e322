/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.llama;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import com.google.gson.JsonObject;
import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.file.DirectoryNotEmptyException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.djlx.collectives.safetensors.SafetensorsWriter;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.fusedops.llama.LlamaConfig;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * A model directory of a Llama of random weights, to measure with. It is there until it is closed,
 * or the JVM ends. All layers have the same weights, as drawing them takes longer than writing.
 */
public final class RandomLlama implements AutoCloseable {

    /** The sizes that there are. */
    public enum Size {
        /** Those of {@code serve-model}, for CPUs. */
        TINY("tiny", config(512, 128, 256, 2, 8, 4, 10_000, ScalarType.FLOAT32)),
        /** Those of Llama 3's 8B. */
        LLAMA_8B("8b", config(128_256, 4096, 14_336, 32, 32, 8, 500_000, ScalarType.BFLOAT16));

        private final String text;
        private final LlamaConfig config;

        Size(String text, LlamaConfig config) {
            this.text = text;
            this.config = config;
        }

        private static LlamaConfig config(
                int vocabulary,
                int hidden,
                int intermediate,
                int layers,
                int heads,
                int kvHeads,
                double theta,
                ScalarType type) {
            return new LlamaConfig(
                    vocabulary,
                    hidden,
                    intermediate,
                    layers,
                    heads,
                    kvHeads,
                    hidden / heads,
                    8192,
                    1e-5,
                    new LlamaConfig.Rope(theta, 1, 0, 0, 0),
                    false,
                    List.of(),
                    type);
        }

        @Override
        public String toString() {
            return text;
        }
    }

    private static final Path SHARED_MEMORY = Path.of("/dev/shm");
    private static final long OTHER_FILES = 64L << 20;
    private static final int SEED = 1;

    private final Path directory;

    private RandomLlama(Path directory) {
        this.directory = directory;
    }

    /**
     * Writes one.
     *
     * @param size its sizes
     * @param parent where its directory is made; null for /dev/shm if the memory is large enough,
     *     and otherwise where the JVM has temporary files
     * @return the model, to be closed
     * @throws IOException if there is too little room, or files cannot be written; nothing is left
     *     then
     */
    public static RandomLlama write(Size size, Path parent) throws IOException {
        return write(size.config, parent);
    }

    static RandomLlama write(LlamaConfig config, Path parent) throws IOException {
        List<TensorSpec> tensors = LlamaDirectory.tensors(config);
        long bytes = tensors.stream().mapToLong(TensorSpec::byteSize).sum();
        Path place = parent == null ? place(bytes) : parent;
        if (!hasRoom(place, bytes)) {
            throw new IOException(
                    String.format(
                            "%s is no directory with room for the %d bytes of a Llama; name another"
                                    + " one",
                            place, bytes));
        }
        RandomLlama model = new RandomLlama(Files.createTempDirectory(place, "djlx-llama-"));
        Runtime.getRuntime().addShutdownHook(new Thread(model::delete, "random-llama-end"));
        boolean done = false;
        try {
            BytePairEncoding tokenizer =
                    BytePairEncoding.train("", BytePairEncoding.smallest())
                            .fillUp(config.vocabularySize());
            LlamaDirectory.writeAllButWeights(model.directory, config, tokenizer, 1);
            model.writeWeights(tensors);
            done = true;
            return model;
        } finally {
            if (!done) {
                model.close();
            }
        }
    }

    private static Path place(long bytes) throws IOException {
        var system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        // It counts as memory of this process's container; loading takes some, too.
        return system.getTotalMemorySize() / 3 > bytes && hasRoom(SHARED_MEMORY, bytes)
                ? SHARED_MEMORY
                : Path.of(System.getProperty("java.io.tmpdir"));
    }

    private static boolean hasRoom(Path place, long bytes) throws IOException {
        return Files.isWritable(place)
                && Files.getFileStore(place).getUsableSpace() - OTHER_FILES > bytes;
    }

    /** Writes a file for each layer, several at a time, and the index. */
    private void writeWeights(List<TensorSpec> tensors) throws IOException {
        Map<String, List<TensorSpec>> files = new LinkedHashMap<>();
        JsonObject map = new JsonObject();
        for (TensorSpec tensor : tensors) {
            String file = file(tensor);
            files.computeIfAbsent(file, name -> new ArrayList<>()).add(tensor);
            map.addProperty(tensor.name(), file);
        }
        JsonObject index = new JsonObject();
        index.add("weight_map", map);
        Files.writeString(directory.resolve("model.safetensors.index.json"), index.toString());
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
            Function<TensorSpec, NDArray> weights = draw(manager, tensors);
            files.entrySet().parallelStream()
                    .forEach(file -> write(file.getKey(), file.getValue(), weights));
        } catch (UncheckedIOException e) {
            throw e.getCause();
        }
    }

    /** Those of a layer have a file of their own, and so have all others. */
    private static String file(TensorSpec tensor) {
        String[] words = tensor.name().replace("model.", "").split("\\.");
        return (words[0].equals("layers") ? "layer-" + words[1] : words[0]) + ".safetensors";
    }

    private void write(
            String file, List<TensorSpec> tensors, Function<TensorSpec, NDArray> weights) {
        try {
            SafetensorsWriter.write(directory.resolve(file), tensors, weights);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Draws weights. */
    private static Function<TensorSpec, NDArray> draw(NDManager manager, List<TensorSpec> tensors) {
        manager.getEngine().setRandomSeed(SEED);
        Map<String, NDArray> drawn = new HashMap<>();
        for (TensorSpec tensor : tensors) {
            String kind = kind(tensor);
            if (!drawn.containsKey(kind)) {
                try (NDArray random = LlamaDirectory.random(manager, tensor)) {
                    NDArray array = Torch.empty(manager, tensor.shape(), tensor.type());
                    Torch.copy(array, random);
                    drawn.put(kind, array);
                }
            }
        }
        // Another array of the same memory, as the writer closes what it gets.
        return tensor -> drawn.get(kind(tensor)).reshape(tensor.shape());
    }

    /** The name without the layer. */
    private static String kind(TensorSpec tensor) {
        return tensor.name().replaceFirst("\\d+", "");
    }

    /**
     * Returns where it is.
     *
     * @return the directory
     */
    public Path directory() {
        return directory;
    }

    /** Deletes it. */
    @Override
    public void close() {
        delete();
    }

    private void delete() {
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
            // The JVM ends meanwhile, and another thread has deleted it.
        } catch (IOException e) {
            throw new UncheckedIOException("cannot delete " + directory, e);
        }
    }

    private void deleteIfEmpty() throws IOException {
        try {
            Files.deleteIfExists(directory);
        } catch (DirectoryNotEmptyException e) {
            // A thread still writes, while the JVM ends.
        }
    }
}

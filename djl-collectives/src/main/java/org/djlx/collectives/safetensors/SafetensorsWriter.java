// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.safetensors;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import com.google.gson.Gson;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import org.djlx.nativeops.host.AtomicFile;
import org.djlx.nativeops.torch.ArrayBytes;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;

/**
 * Writes safetensors files, one tensor at a time, so only one needs to be in memory.
 *
 * <p>A file is written under a temporary name and renamed when it is complete, replacing an
 * existing file. Tensors with larger elements come first. This aligns all tensors to their element
 * size.
 */
public final class SafetensorsWriter {

    private static final Gson GSON = new Gson();
    private static final String OF_MODEL = "model(-\\d{5,}-of-\\d{5,})?\\.safetensors";

    private SafetensorsWriter() {}

    /**
     * Writes one file.
     *
     * @param tensors the tensors; their names differ
     * @param values returns the values of a tensor, as an array of its shape on any device; other
     *     element types are converted. Called in the order of the file; the array is closed
     *     afterwards
     * @throws IOException if the file cannot be written, or another job is writing it
     * @throws IllegalArgumentException if names are equal, an element type cannot be written, or
     *     values have another shape
     */
    public static void write(
            Path file, List<TensorSpec> tensors, Function<TensorSpec, NDArray> values)
            throws IOException {
        if (file == null || tensors == null || values == null) {
            throw new IllegalArgumentException("file, tensors or values is null");
        }
        requireDifferent(tensors);
        List<TensorSpec> ordered = new ArrayList<>(tensors);
        ordered.sort((a, b) -> Integer.compare(b.type().itemSize(), a.type().itemSize()));
        // Hugging Face's loaders require this entry.
        byte[] header = SafetensorsHeader.encode(ordered, Map.of("format", "pt"));
        try (AtomicFile out = AtomicFile.create(file)) {
            out.write(ByteBuffer.wrap(header));
            for (TensorSpec spec : ordered) {
                try (NDArray array = values.apply(spec)) {
                    write(out, spec, array);
                }
            }
            out.commit();
        }
    }

    /**
     * Writes a model in Hugging Face's layout: to {@code model.safetensors}, or to several files
     * with an index. Afterwards, such files of an earlier model in the directory are deleted,
     * because some loaders prefer the single file to an index, or read all files if there is no
     * index.
     *
     * @param directory an existing directory
     * @param tensors the tensors, in the order of the files
     * @param maxFileBytes the maximum size of the data in a file, 1 or more; a larger tensor gets a
     *     separate file
     * @param values as for {@link #write}
     * @throws IOException if a file cannot be written, or another job is writing a model there
     * @throws IllegalArgumentException as for {@link #write}
     */
    public static void writeModel(
            Path directory,
            List<TensorSpec> tensors,
            long maxFileBytes,
            Function<TensorSpec, NDArray> values)
            throws IOException {
        if (directory == null || tensors == null || maxFileBytes < 1) {
            throw new IllegalArgumentException(
                    "the directory or the tensors are null, or files of "
                            + maxFileBytes
                            + " bytes too small");
        }
        requireDifferent(tensors);
        List<List<TensorSpec>> parts = new ArrayList<>();
        long total = 0;
        long used = 0;
        for (TensorSpec spec : tensors) {
            long bytes = spec.byteSize();
            if (parts.isEmpty() || (used > 0 && bytes > maxFileBytes - used)) {
                parts.add(new ArrayList<>());
                used = 0;
            }
            parts.get(parts.size() - 1).add(spec);
            used = Math.addExact(used, bytes);
            total = Math.addExact(total, bytes);
        }
        // Also for a single file: the lock on it keeps other jobs from writing a model there.
        try (AtomicFile index = AtomicFile.create(directory.resolve(Safetensors.INDEX))) {
            if (parts.size() <= 1) {
                write(directory.resolve(Safetensors.SINGLE_FILE), tensors, values);
                Files.deleteIfExists(directory.resolve(Safetensors.INDEX));
                deleteOthers(directory, Set.of(Safetensors.SINGLE_FILE));
            } else {
                writeParts(directory, parts, values, total, index);
            }
        }
    }

    private static void writeParts(
            Path directory,
            List<List<TensorSpec>> parts,
            Function<TensorSpec, NDArray> values,
            long total,
            AtomicFile file)
            throws IOException {
        Set<String> files = new HashSet<>();
        JsonObject map = new JsonObject();
        for (int i = 0; i < parts.size(); i++) {
            String name = String.format("model-%05d-of-%05d.safetensors", i + 1, parts.size());
            write(directory.resolve(name), parts.get(i), values);
            parts.get(i).forEach(spec -> map.addProperty(spec.name(), name));
            files.add(name);
        }
        JsonObject size = new JsonObject();
        size.addProperty("total_size", total);
        JsonObject index = new JsonObject();
        index.add("metadata", size);
        index.add("weight_map", map);
        file.write(StandardCharsets.UTF_8.encode(GSON.toJson(index)));
        file.commit();
        deleteOthers(directory, files);
    }

    private static void deleteOthers(Path directory, Set<String> written) throws IOException {
        try (DirectoryStream<Path> weights =
                Files.newDirectoryStream(directory, "model*.safetensors")) {
            for (Path file : weights) {
                String name = file.getFileName().toString();
                if (name.matches(OF_MODEL) && !written.contains(name)) {
                    Files.delete(file);
                }
            }
        }
    }

    private static void requireDifferent(List<TensorSpec> tensors) {
        Set<String> names = new HashSet<>();
        for (TensorSpec spec : tensors) {
            if (!names.add(spec.name())) {
                throw new IllegalArgumentException(spec.name() + " is there twice");
            }
        }
    }

    private static void write(AtomicFile out, TensorSpec spec, NDArray array) throws IOException {
        if (array == null || !spec.shape().equals(new Shape(Torch.sizes(array)))) {
            throw new IllegalArgumentException(
                    String.format(
                            "the values of %s have the shape %s",
                            spec, array == null ? null : array.getShape()));
        }
        try (NDManager manager = array.getManager().newSubManager(Device.cpu())) {
            NDArray stored = Torch.empty(manager, spec.shape(), spec.type());
            NoGradient.run(() -> Torch.copy(stored, array));
            ArrayBytes.read(manager, stored, out::write);
        }
    }
}

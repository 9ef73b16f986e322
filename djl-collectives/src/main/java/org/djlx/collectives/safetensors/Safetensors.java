// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.safetensors;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.MappedFile;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Reads tensors, or slices of them, from safetensors files.
 *
 * <p>Files are memory-mapped. {@link #open} checks the headers and allocates nothing for data;
 * reading a slice reads its own pages, and a few MiB around them into the page cache. A damaged
 * file (truncated, invalid header, overlapping tensors, overflowing sizes) is an {@link
 * IOException} of {@code open} that names file and tensor. While files are open, or {@linkplain
 * #view views} of them are, they must be neither overwritten nor truncated: reading a part that was
 * cut off ends the process. Files may be deleted, and replaced by renaming others.
 *
 * <p>Several threads may read at the same time.
 *
 * <pre>{@code
 * try (Safetensors weights = Safetensors.open(Path.of("model-directory"))) {
 *     long rows = weights.spec("lm_head.weight").shape().get(0) / ranks;
 *     weights.read("lm_head.weight", 0, rank * rows, (rank + 1) * rows, array);
 * }
 * }</pre>
 */
public final class Safetensors implements TensorFiles {

    /** The index of a model directory: the file of each tensor. */
    static final String INDEX = "model.safetensors.index.json";

    /** The file of a model without an index. */
    static final String SINGLE_FILE = "model.safetensors";

    private record Location(Path path, MappedFile file, SafetensorsHeader.Stored stored) {}

    private final Path source;
    private final List<MappedFile> files = new ArrayList<>();
    private final Map<String, Location> tensors = new LinkedHashMap<>();
    private final Map<Device, StagedCopy> staged = new HashMap<>(); // guarded by itself
    private boolean closed; // guarded by staged
    private final Map<String, String> metadata = new LinkedHashMap<>();
    private volatile boolean populated; // all pages are mapped, and are to stay

    private Safetensors(Path source) {
        this.source = source;
    }

    /**
     * Opens a file, or the files of a model.
     *
     * @param path a safetensors file; an index, whose name ends in .json; or a directory with
     *     model.safetensors.index.json or model.safetensors. Files named by an index are in its
     *     directory; tensors that the index does not name are ignored
     * @return the open files; the caller closes them
     * @throws IOException if a file cannot be read or is not a safetensors file
     */
    public static Safetensors open(Path path) throws IOException {
        Path file = Required.argument("the path of the safetensors file", path);
        if (Files.isDirectory(path)) {
            file = path.resolve(INDEX);
            if (!Files.exists(file)) {
                file = path.resolve(SINGLE_FILE);
            }
            if (!Files.exists(file)) {
                throw new NoSuchFileException(
                        path.toString(), null, "has neither " + INDEX + " nor " + SINGLE_FILE);
            }
        }
        Safetensors opened = new Safetensors(path);
        try {
            if (file.getFileName().toString().endsWith(".json")) {
                opened.addIndexed(file);
            } else {
                opened.add(file);
            }
        } catch (IOException | RuntimeException e) {
            opened.close();
            throw e;
        }
        return opened;
    }

    private void addIndexed(Path index) throws IOException {
        Map<String, String> fileOfTensor = readIndex(index);
        Map<String, Map<String, SafetensorsHeader.Stored>> headers = new LinkedHashMap<>();
        Map<String, MappedFile> mapped = new LinkedHashMap<>();
        for (Map.Entry<String, String> entry : fileOfTensor.entrySet()) {
            String name = entry.getValue();
            if (!mapped.containsKey(name)) {
                Path file = index.resolveSibling(name);
                if (!Files.exists(file)) {
                    throw new NoSuchFileException(
                            file.toString(),
                            null,
                            "it does not exist, but " + index + " lists it; download it again");
                }
                MappedFile map = map(file);
                mapped.put(name, map);
                headers.put(name, readHeader(file, map));
            }
            SafetensorsHeader.Stored stored = headers.get(name).get(entry.getKey());
            if (stored == null) {
                throw new IOException(
                        String.format(
                                "%s has no tensor '%s', but %s says that it has",
                                name, entry.getKey(), index));
            }
            Path file = index.resolveSibling(name);
            tensors.put(entry.getKey(), new Location(file, mapped.get(name), stored));
        }
    }

    private static Map<String, String> readIndex(Path index) throws IOException {
        if (Files.size(index) > SafetensorsHeader.MAX_BYTES) {
            throw new IOException(
                    index + " has more than " + SafetensorsHeader.MAX_BYTES + " bytes");
        }
        Map<String, String> files = new LinkedHashMap<>();
        boolean[] found = new boolean[1];
        try {
            StrictJson.read(
                    Files.readAllBytes(index),
                    (key, json) -> {
                        if (key.equals("weight_map")) {
                            found[0] = true;
                            StrictJson.object(
                                    json,
                                    (tensor, value) ->
                                            files.put(tensor, plainName(StrictJson.string(value))));
                        } else {
                            json.skipValue();
                        }
                    });
            if (!found[0]) {
                throw new IOException("it has no weight_map");
            }
        } catch (NoSuchFileException e) {
            throw e;
        } catch (IOException e) {
            throw new IOException(
                    String.format(
                            "cannot read the index of safetensors %s: %s; fetch or write it again",
                            index, e.getMessage()),
                    e);
        }
        return files;
    }

    private static String plainName(String name) throws IOException {
        if (!name.endsWith(".safetensors") || name.matches("(?s).*[/\\\\\\x00].*")) {
            throw new IOException(
                    "'" + name + "' is not the name of a safetensors file in its directory");
        }
        return name;
    }

    private void add(Path path) throws IOException {
        MappedFile file = map(path);
        readHeader(path, file)
                .forEach((name, stored) -> tensors.put(name, new Location(path, file, stored)));
    }

    private MappedFile map(Path path) throws IOException {
        if (!Files.exists(path)) {
            throw new NoSuchFileException(path.toString());
        }
        MappedFile file = MappedFile.open(path);
        files.add(file);
        return file;
    }

    private Map<String, SafetensorsHeader.Stored> readHeader(Path path, MappedFile file)
            throws IOException {
        try {
            SafetensorsHeader header = readHeader(file);
            metadata.putAll(header.metadata());
            return header.stored();
        } catch (IOException e) {
            throw new IOException(
                    String.format(
                            "cannot read the safetensors file %s: %s; fetch or write it again",
                            path, e.getMessage()),
                    e);
        }
    }

    private static SafetensorsHeader readHeader(MappedFile file) throws IOException {
        long available = file.memory().byteSize() - SafetensorsHeader.PREFIX;
        if (available < 2) {
            throw new IOException(
                    String.format(
                            "it has only %d bytes; a safetensors file has %d or more",
                            file.memory().byteSize(), SafetensorsHeader.PREFIX + 2));
        }
        byte[] prefix = new byte[SafetensorsHeader.PREFIX];
        file.read(0, prefix);
        long length = ByteBuffer.wrap(prefix).order(ByteOrder.LITTLE_ENDIAN).getLong();
        if (length < 2 || length > SafetensorsHeader.MAX_BYTES) {
            throw new IOException(
                    String.format(
                            "its header length is %s bytes, but must be 2 to %d bytes",
                            Long.toUnsignedString(length), SafetensorsHeader.MAX_BYTES));
        }
        if (length > available) {
            throw new IOException(
                    String.format(
                            "it is cut off: its header has %d bytes, but only %d follow",
                            length, available));
        }
        byte[] json = new byte[(int) length];
        file.read(SafetensorsHeader.PREFIX, json);
        return SafetensorsHeader.parse(json, available - length);
    }

    /**
     * {@return the type and shape of all tensors, an unmodifiable list in the order of the index or
     * of the file's data}
     */
    @Override
    public Collection<TensorSpec> specs() {
        return tensors.values().stream().map(location -> location.stored().spec()).toList();
    }

    @Override
    public boolean contains(String name) {
        return tensors.containsKey(name);
    }

    @Override
    public TensorSpec spec(String name) {
        return location(name).stored().spec();
    }

    @Override
    public Path file(String name) {
        return location(name).path();
    }

    /** {@return the metadata of all files, an unmodifiable map of strings by name} */
    public Map<String, String> metadata() {
        return Collections.unmodifiableMap(metadata);
    }

    private Location location(String name) {
        Location location = tensors.get(name);
        if (location == null) {
            throw new IllegalArgumentException(source + " has no tensor '" + name + "'");
        }
        return location;
    }

    /**
     * Reads a whole tensor.
     *
     * @param destination an array of its shape, on any device and of any element type; elements are
     *     converted as by {@link Torch#copy}. No gradient is recorded
     * @throws IllegalArgumentException if there is no such tensor, its type cannot be read, the
     *     shapes differ, or this is closed
     */
    public void read(String name, NDArray destination) {
        TensorSpec spec = spec(name);
        read(new Part(spec, spec.shape(), 0), destination);
    }

    @Override
    public void read(String name, int dimension, long from, long to, NDArray destination) {
        read(part(name, dimension, from, to), destination);
    }

    /** Empty if the file's elements are not at multiples of their size. */
    @Override
    public Optional<NDArray> view(
            String name, int dimension, long from, long to, NDManager manager) {
        return view(part(name, dimension, from, to), manager);
    }

    /**
     * Reads all files into memory, for {@linkplain #view views} that are used often. The pages stay
     * mapped until this and all views are closed: {@link #read} no longer gives them back.
     */
    @Override
    public void populate() {
        populated = true;
        files.forEach(file -> file.populate(0, file.memory().byteSize()));
    }

    /**
     * A slice of a tensor; {@code first} is the index of its first element in the flattened tensor.
     */
    private record Part(TensorSpec spec, Shape shape, long first) {}

    private Part part(String name, int dimension, long from, long to) {
        TensorSpec spec = spec(name);
        Shape shape = spec.part(dimension, from, to);
        return new Part(spec, shape, from * shape.slice(dimension + 1).size());
    }

    private void read(Part part, NDArray destination) {
        Location location = location(part.spec.name());
        if (location.file().memory().isClosed()) {
            throw new IllegalArgumentException("the safetensors of " + source + " are closed");
        }
        if (destination == null || !part.shape.equals(new Shape(Torch.sizes(destination)))) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s of %s cannot be read into an array of shape %s",
                            part.shape,
                            part.spec,
                            destination == null ? null : destination.getShape()));
        }
        if (part.shape.size() == 0) {
            return;
        }
        ScalarType type = part.spec.type();
        long offset = location.stored().offset() + part.first * type.itemSize();
        NativeMemory memory = location.file().memory();
        if (isPlainGpuMemory(destination, type)) {
            copyToGpu(location.file(), offset, part.spec, part.shape, destination);
            return;
        }
        NoGradient.run(
                () -> {
                    try (NDManager manager = destination.getManager().newSubManager(Device.cpu())) {
                        long span = type.itemSize();
                        long[] strides = strides(part.spec.shape());
                        for (int i = 0; i < strides.length; i++) {
                            span += (part.shape.get(i) - 1) * strides[i] * type.itemSize();
                        }
                        location.file().populate(offset, span);
                        NDArray stored =
                                view(part, manager)
                                        .orElseGet(
                                                () ->
                                                        aligned(
                                                                manager,
                                                                memory,
                                                                offset,
                                                                part.shape,
                                                                strides,
                                                                type));
                        Torch.copy(destination, stored);
                        if (!populated) {
                            // Otherwise the files take as much memory as what is read from them.
                            location.file().evict(offset, span);
                        }
                    }
                });
    }

    private Optional<NDArray> view(Part part, NDManager manager) {
        ScalarType type = part.spec.type();
        Location location = location(part.spec.name());
        NativeMemory memory = location.file().memory();
        long offset = location.stored().offset() + part.first * type.itemSize();
        if ((memory.address() + offset) % type.itemSize() != 0) {
            return Optional.empty();
        }
        long[] strides = strides(part.spec.shape());
        long[] sizes = part.shape.getShape();
        return Optional.of(Torch.view(manager, memory, offset, sizes, strides, type));
    }

    private static boolean isPlainGpuMemory(NDArray destination, ScalarType type) {
        return destination.getDevice().isGpu()
                && NativeLibrary.CUDA.isAvailable()
                && Torch.scalarType(destination) == type
                && Torch.isContiguous(destination)
                // libtorch must write arrays that require a gradient: autograd then detects the
                // change.
                && !Torch.requiresGradient(destination);
    }

    /** The part is cut along one dimension and has the full size in all later dimensions. */
    private void copyToGpu(
            MappedFile file, long offset, TensorSpec spec, Shape part, NDArray destination) {
        int cut = 0;
        for (int i = 0; i < part.dimension(); i++) {
            if (part.get(i) != spec.shape().get(i)) {
                cut = i;
            }
        }
        long itemSize = spec.type().itemSize();
        long rows = part.slice(0, cut).size();
        long rowBytes = part.slice(cut).size() * itemSize;
        long stride = spec.shape().slice(cut).size() * itemSize;
        long address = Torch.dataPointer(destination);
        file.memory().share(); // Keeps the file open during the copy.
        try {
            stagedCopy(destination.getDevice()).copy(file, offset, rows, rowBytes, stride, address);
        } finally {
            file.memory().release();
        }
    }

    private StagedCopy stagedCopy(Device device) {
        synchronized (staged) {
            if (closed) {
                throw new IllegalArgumentException("the safetensors of " + source + " are closed");
            }
            return staged.computeIfAbsent(device, StagedCopy::create);
        }
    }

    private static long[] strides(Shape shape) {
        long[] strides = new long[shape.dimension()];
        long stride = 1;
        for (int i = strides.length - 1; i >= 0; i--) {
            strides[i] = stride;
            stride *= shape.get(i);
        }
        return strides;
    }

    /** Copies to aligned memory: libtorch needs elements at multiples of their size. */
    private static NDArray aligned(
            NDManager manager,
            NativeMemory memory,
            long offset,
            Shape part,
            long[] strides,
            ScalarType type) {
        int dimensions = strides.length;
        long[] byteSizes = new long[dimensions + 1];
        long[] byteStrides = new long[dimensions + 1];
        for (int i = 0; i < dimensions; i++) {
            byteSizes[i] = part.get(i);
            byteStrides[i] = strides[i] * type.itemSize();
        }
        byteSizes[dimensions] = type.itemSize();
        byteStrides[dimensions] = 1;
        NDArray copy = Torch.empty(manager, part, type);
        long byteSize = part.size() * type.itemSize();
        try (NativeMemory target =
                        new NativeMemory(
                                Torch.dataPointer(copy), byteSize, Device.cpu(), () -> {});
                NDArray to =
                        Torch.view(manager, target, 0, new Shape(byteSizes), ScalarType.UINT8);
                NDArray from =
                        Torch.view(
                                manager,
                                memory,
                                offset,
                                byteSizes,
                                byteStrides,
                                ScalarType.UINT8)) {
            Torch.copy(to, from);
        }
        return copy;
    }

    /** Closes the files; they are unmapped after reads in progress. Idempotent. */
    @Override
    public void close() {
        files.forEach(MappedFile::close);
        synchronized (staged) {
            closed = true;
            staged.values().forEach(StagedCopy::close);
            staged.clear();
        }
    }
}

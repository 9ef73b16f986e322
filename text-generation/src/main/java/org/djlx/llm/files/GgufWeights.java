// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.stream.IntStream;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.model.BlockFiles;
import org.djlx.nativeops.host.CpuKernels;
import org.djlx.nativeops.host.MappedFile;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * The tensors of a model in GGUF under Hugging Face's names, as Hugging Face's files have them:
 * rows of queries and keys of Llamas in their order, and norms of Gemmas without the 1 that is
 * added. Quantized tensors are dequantized when they are read, and have the type F32; CPUs take
 * their blocks.
 */
final class GgufWeights implements BlockFiles {

    private static final int CHUNK = 1 << 20; // numbers that are dequantized at a time
    private static final int MAX_EXPERTS = 1 << 14;
    private static final long PARALLEL = 1 << 16; // numbers from which on threads share the work

    /**
     * A tensor, or rows of one, under another name.
     *
     * @param head the rows of each head whose halves are interleaved in the file; 0 if none are
     * @param added what was added to each number
     */
    private record Entry(
            TensorSpec spec, GgufFile.Tensor stored, long first, long head, int added) {

        /** Returns the row of the stored tensor that has a row of this one. */
        long row(long row) {
            if (head == 0) {
                return first + row;
            }
            long inHead = row % head;
            return row - inHead + inHead % (head / 2) * 2 + inHead / (head / 2);
        }
    }

    private final GgufFile file;
    private final Map<Path, MappedFile> mapped = new LinkedHashMap<>();
    private final Map<String, Entry> entries = new LinkedHashMap<>();

    private GgufWeights(GgufFile file) {
        this.file = file;
        GgufNames names = new GgufNames(file);
        for (GgufFile.Tensor tensor : file.tensors().values()) {
            names.of(tensor)
                    .ifPresent(
                            name ->
                                    add(
                                            name,
                                            tensor,
                                            names.headRows(tensor),
                                            names.addedTo(tensor)));
        }
    }

    static GgufWeights open(Path path) throws IOException {
        GgufWeights weights = new GgufWeights(GgufFile.read(path));
        try {
            weights.map();
        } catch (IOException e) {
            weights.close();
            throw e;
        }
        return weights;
    }

    private void map() throws IOException {
        mapped.put(file.path(), MappedFile.open(file.path()));
        for (Entry entry : entries.values()) {
            Path path = entry.stored.file();
            if (!mapped.containsKey(path)) {
                mapped.put(path, MappedFile.open(path));
            }
        }
    }

    /** Adds a tensor; if its name has a place for a number, each of its matrices. */
    private void add(String name, GgufFile.Tensor tensor, long head, int added) {
        long[] sizes = tensor.sizes();
        boolean isStack = name.contains("%d");
        long parts = isStack ? sizes[sizes.length - 1] : 1;
        Required.check(
                parts <= MAX_EXPERTS,
                "%s: %s has %d experts, more than %d",
                file.path(),
                tensor.name(),
                parts,
                MAX_EXPERTS);
        int dimensions = sizes.length - (isStack ? 1 : 0);
        long[] shape = new long[dimensions];
        for (int i = 0; i < dimensions; i++) {
            shape[dimensions - 1 - i] = sizes[i];
        }
        ScalarType type =
                switch (tensor.type()) {
                    case F16 -> ScalarType.FLOAT16;
                    case BF16 -> ScalarType.BFLOAT16;
                    default -> ScalarType.FLOAT32;
                };
        long rows = tensor.rows() / parts;
        for (long part = 0; part < parts; part++) {
            TensorSpec spec = TensorSpec.of(name.formatted(part), type, new Shape(shape));
            entries.put(spec.name(), new Entry(spec, tensor, part * rows, head, added));
        }
    }

    @Override
    public Collection<TensorSpec> specs() {
        return entries.values().stream().map(Entry::spec).toList();
    }

    @Override
    public boolean contains(String name) {
        return entries.containsKey(name);
    }

    @Override
    public TensorSpec spec(String name) {
        return entry(name).spec;
    }

    private Entry entry(String name) {
        Entry entry = entries.get(name);
        Required.check(entry != null, "%s has no tensor '%s'", file.path(), name);
        return entry;
    }

    @Override
    public Path file(String name) {
        return entry(name).stored.file();
    }

    @Override
    public void populate() {
        mapped.values().forEach(each -> each.populate(0, each.memory().byteSize()));
    }

    @Override
    public void close() {
        mapped.values().forEach(MappedFile::close);
    }

    /** Empty if numbers or rows are not stored as they are read. */
    @Override
    public Optional<NDArray> view(
            String name, int dimension, long from, long to, NDManager manager) {
        Entry entry = entry(name);
        Shape shape = part(entry, dimension, from, to);
        int itemSize = entry.spec.type().itemSize();
        GgufFile.Tensor stored = entry.stored;
        NativeMemory memory = mapped.get(stored.file()).memory();
        long columns = stored.columns();
        long start =
                stored.offset()
                        + itemSize * (entry.first * columns + from * stride(entry, dimension));
        if (stored.type().isQuantized()
                || entry.head != 0
                || entry.added != 0
                || (memory.address() + start) % itemSize != 0) {
            return Optional.empty();
        }
        long[] strides = shape.dimension() == 1 ? new long[] {1} : new long[] {columns, 1};
        return Optional.of(
                Torch.view(manager, memory, start, shape.getShape(), strides, entry.spec.type()));
    }

    @Override
    public Optional<Blocks> blocks(
            String name, long[] rows, long from, long to, NDManager manager) {
        Entry entry = entry(name);
        GgufFile.Tensor stored = entry.stored;
        GgufType type = stored.type();
        if (!type.isQuantized()
                || entry.spec.shape().dimension() != 2
                || entry.added != 0
                || from % type.blockSize != 0
                || to % type.blockSize != 0) {
            return Optional.empty();
        }
        long first =
                mapped.get(stored.file()).memory().address()
                        + stored.offset()
                        + from / type.blockSize * type.blockBytes;
        long[] addresses =
                Arrays.stream(rows)
                        .map(row -> row < 0 ? 0 : first + entry.row(row) * stored.rowBytes())
                        .toArray();
        return Optional.of(new Blocks(CpuKernels.GGML + type.code, addresses, null));
    }

    private static long stride(Entry entry, int dimension) {
        return entry.spec.shape().dimension() == 2 && dimension == 0 ? entry.stored.columns() : 1;
    }

    /** Returns the shape of a part; throws an IllegalArgumentException if it does not exist. */
    private static Shape part(Entry entry, int dimension, long from, long to) {
        Required.check(
                entry.spec.shape().dimension() <= 2, "%s has more than 2 dimensions", entry.spec);
        return entry.spec.part(dimension, from, to);
    }

    @Override
    public void read(String name, int dimension, long from, long to, NDArray destination) {
        Entry entry = entry(name);
        Shape shape = part(entry, dimension, from, to);
        Required.check(
                shape.equals(destination.getShape()),
                "%s of %s cannot be read into an array of shape %s",
                shape,
                entry.spec,
                destination.getShape());
        boolean isVector = shape.dimension() == 1;
        // A vector is a row; of norms of heads, rows of a head are interleaved, not columns.
        long count = isVector && entry.head == 0 ? 1 : shape.get(0);
        long firstRow = dimension == 0 && !(isVector && entry.head == 0) ? from : 0;
        long firstColumn = dimension == 1 || isVector && entry.head == 0 ? from : 0;
        long columns = shape.size() / Math.max(1, count);
        long step = Math.max(1, CHUNK / Math.max(1, entry.stored.columns()));
        try (NDManager manager = destination.getManager().newSubManager(Device.cpu())) {
            for (long done = 0; done < count; done += step) {
                long rows = Math.min(step, count - done);
                float[] numbers =
                        numbers(entry, firstRow + done, rows, (int) firstColumn, (int) columns);
                try (NDArray read =
                                manager.create(
                                        numbers,
                                        isVector
                                                ? new Shape(numbers.length)
                                                : new Shape(rows, columns));
                        NDArray part =
                                Torch.narrow(
                                        destination,
                                        0,
                                        isVector ? done * columns : done,
                                        isVector ? numbers.length : rows)) {
                    Torch.copy(part, read);
                }
            }
        }
    }

    /** Reads columns of rows; the rows of a vector whose rows are interleaved are its numbers. */
    private float[] numbers(Entry entry, long from, long rows, int column, int columns) {
        float[] numbers = new float[Math.toIntExact(rows * columns)];
        IntStream range = IntStream.range(0, (int) rows);
        (rows * columns > PARALLEL ? range.parallel() : range)
                .forEach(i -> read(entry, entry.row(from + i), column, columns, numbers, i));
        if (entry.added != 0) {
            for (int i = 0; i < numbers.length; i++) {
                numbers[i] -= entry.added;
            }
        }
        return numbers;
    }

    /** Reads columns of one row, in whole blocks. */
    private void read(Entry entry, long row, int column, int columns, float[] out, int index) {
        GgufFile.Tensor stored = entry.stored;
        GgufType type = stored.type();
        boolean isNumber = entry.spec.shape().dimension() == 1 && entry.head != 0;
        int first = isNumber ? (int) row : column;
        long rowStart = isNumber ? 0 : row * stored.rowBytes();
        int firstBlock = first / type.blockSize;
        int endBlock = (first + columns + type.blockSize - 1) / type.blockSize;
        byte[] bytes = new byte[(endBlock - firstBlock) * type.blockBytes];
        mapped.get(stored.file())
                .read(stored.offset() + rowStart + (long) firstBlock * type.blockBytes, bytes);
        ByteBuffer buffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
        int skipped = first - firstBlock * type.blockSize;
        int count = (endBlock - firstBlock) * type.blockSize;
        if (count == columns) {
            type.dequantize(buffer, 0, count, out, index * columns);
        } else {
            float[] whole = new float[count];
            type.dequantize(buffer, 0, count, whole, 0);
            System.arraycopy(whole, skipped, out, index * columns, columns);
        }
    }
}

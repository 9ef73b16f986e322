// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.CRC32C;
import org.djlx.collectives.safetensors.SafetensorsHeader;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.host.AtomicFile;
import org.djlx.nativeops.torch.ArrayBytes;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * A checkpoint on disk: named arrays and strings in <a
 * href="https://github.com/huggingface/safetensors">safetensors</a> format, with a checksum:
 *
 * <pre>
 * 8 bytes   length of the header, little-endian
 * header    JSON: {"__metadata__":{"crc32c":"…", …}, "name":{"dtype", "shape", "data_offsets"}, …}
 * data      the arrays, one after the other
 * </pre>
 *
 * <p>The checksum covers the whole file, with eight zeros in place of the checksum itself. A file
 * is written under a temporary name and renamed when it is complete and on disk.
 */
final class CheckpointFile implements AutoCloseable {

    private static final String BEGINNING = "{\"__metadata__\":{\"crc32c\":\"";
    private static final String NO_CHECKSUM = "00000000";
    private static final int MAX_EXCERPT = 100; // of a wrong value, in an error
    private static final Gson GSON = new Gson();

    private final Path path;
    private final FileChannel channel;
    private final Object key;
    private SafetensorsHeader header;
    private String checksum;

    private CheckpointFile(Path path) throws IOException {
        this.path = path;
        key = key(path);
        channel = FileChannel.open(path, StandardOpenOption.READ);
    }

    /** Returns what identifies a file: another one of the same name has another key. */
    static Object key(Path path) throws IOException {
        return Files.readAttributes(path, BasicFileAttributes.class).fileKey();
    }

    static TensorSpec describe(String name, NDArray array) throws IOException {
        TensorInfo info = Torch.info(array);
        try {
            return TensorSpec.of(name, info.type(), new Shape(info.sizes()));
        } catch (IllegalArgumentException e) {
            throw new IOException(e.getMessage(), e);
        }
    }

    /** Writes a file. On failure an existing file of that name stays as it is. */
    static void write(
            Path path, Map<String, String> metadata, Map<String, NDArray> arrays, NDManager manager)
            throws IOException {
        try (AtomicFile file = AtomicFile.create(path)) {
            writeAndForce(file, metadata, arrays, manager);
            file.commit();
            forceNames(path.getParent());
        }
    }

    private static void writeAndForce(
            AtomicFile file,
            Map<String, String> metadata,
            Map<String, NDArray> arrays,
            NDManager manager)
            throws IOException {
        Map<String, String> strings = new LinkedHashMap<>();
        strings.put("crc32c", NO_CHECKSUM);
        strings.putAll(metadata);
        List<TensorSpec> tensors = new ArrayList<>();
        for (Map.Entry<String, NDArray> named : arrays.entrySet()) {
            tensors.add(describe(named.getKey(), named.getValue()));
        }
        ByteBuffer start = ByteBuffer.wrap(SafetensorsHeader.encode(tensors, strings));
        CRC32C crc = new CRC32C();
        crc.update(start.duplicate());
        file.write(start);
        for (NDArray array : arrays.values()) {
            try (NDManager temporary = manager.newSubManager(array.getDevice())) {
                ArrayBytes.read(
                        temporary,
                        array,
                        bytes -> {
                            crc.update(bytes.duplicate());
                            file.write(bytes);
                        });
            }
        }
        file.channel().position(SafetensorsHeader.PREFIX + BEGINNING.length());
        String sum = String.format("%08x", crc.getValue());
        file.write(StandardCharsets.UTF_8.encode(sum));
        file.force();
    }

    private static void forceNames(Path directory) throws IOException {
        try (FileChannel names = FileChannel.open(directory, StandardOpenOption.READ)) {
            names.force(true);
        }
    }

    /**
     * Verifies the checksum. Throws if the file is not a checkpoint of this class, or is damaged.
     */
    static CheckpointFile open(Path path) throws IOException {
        CheckpointFile file = new CheckpointFile(path);
        try {
            file.check();
            return file;
        } catch (Throwable e) {
            file.close();
            throw e;
        }
    }

    private void check() throws IOException {
        long size = channel.size();
        ByteBuffer length =
                ByteBuffer.allocate(SafetensorsHeader.PREFIX).order(ByteOrder.LITTLE_ENDIAN);
        if (size < length.capacity()) {
            throw foreign();
        }
        readFully(length, 0);
        long headerSize = length.getLong(0);
        if (headerSize < BEGINNING.length() || headerSize > SafetensorsHeader.MAX_BYTES) {
            throw foreign();
        }
        long data = length.capacity() + headerSize;
        if (data > size) {
            throw damaged("has " + size + " bytes, but its header alone has " + headerSize);
        }
        ByteBuffer json = ByteBuffer.allocate((int) headerSize);
        readFully(json, length.capacity());
        int end = BEGINNING.length() + NO_CHECKSUM.length();
        String start =
                new String(json.array(), 0, Math.min(end, json.limit()), StandardCharsets.UTF_8);
        if (!start.startsWith(BEGINNING) || start.length() < end) {
            throw foreign();
        }
        checksum = start.substring(BEGINNING.length());
        json.put(BEGINNING.length(), NO_CHECKSUM.getBytes(StandardCharsets.UTF_8));
        CRC32C crc = new CRC32C();
        crc.update(length);
        crc.update(json);
        ByteBuffer piece = ByteBuffer.allocate(1 << 20);
        for (long at = data; at < size; at += piece.limit()) {
            piece.clear().limit((int) Math.min(piece.capacity(), size - at));
            readFully(piece, at);
            crc.update(piece);
        }
        String found = String.format("%08x", crc.getValue());
        if (!found.equals(checksum)) {
            throw damaged("has checksum " + found + ", but was written with checksum " + checksum);
        }
        json.put(BEGINNING.length(), checksum.getBytes(StandardCharsets.UTF_8));
        try {
            header = SafetensorsHeader.parse(json.array(), size - data);
        } catch (IOException e) {
            throw new IOException(
                    path + " has a header that CheckpointManager did not write: " + e.getMessage(),
                    e);
        }
    }

    private IOException foreign() {
        return new IOException(path + " is not a checkpoint written by CheckpointManager");
    }

    private IOException damaged(String what) {
        return new IOException(
                String.format(
                        "%s is truncated or damaged: it %s; delete it to resume from the previous"
                                + " checkpoint",
                        path, what));
    }

    /** Fills a buffer from a position in the file, then flips it. */
    private void readFully(ByteBuffer buffer, long position) throws IOException {
        for (long at = position; buffer.hasRemaining(); ) {
            int count = channel.read(buffer, at);
            if (count < 0) {
                throw new EOFException(path + " was truncated while it was read");
            }
            at += count;
        }
        buffer.flip();
    }

    Object key() {
        return key;
    }

    /** Returns the checksum as stored in the file: eight hexadecimal digits. */
    String checksum() {
        return checksum;
    }

    Map<String, String> metadata() {
        return header.metadata();
    }

    /** Returns a whole number of the metadata. Throws if it is missing or out of range. */
    long number(String key, long min, long max) throws IOException {
        return number(key, metadata().get(key), min, max);
    }

    private long number(String key, String text, long min, long max) throws IOException {
        try {
            long number = Long.parseLong(text);
            if (number >= min && number <= max) {
                return number;
            }
        } catch (NumberFormatException e) { // Also if it is missing.
            throw wrong(key, "a whole number", e);
        }
        throw wrong(key, "a whole number from " + min + " to " + max, null);
    }

    /** As {@link #number}, for a list of numbers, divided by commas. */
    int[] integers(String key) throws IOException {
        String[] parts = metadata().getOrDefault(key, "").split(",");
        int[] numbers = new int[parts.length];
        for (int i = 0; i < parts.length; i++) {
            numbers[i] = (int) number(key, parts[i], Integer.MIN_VALUE, Integer.MAX_VALUE);
        }
        return numbers;
    }

    /** As {@link #number}, for a number with a fraction. */
    double fraction(String key, double min, double max) throws IOException {
        String text = metadata().get(key);
        try {
            double number = text == null ? Double.NaN : Double.parseDouble(text);
            if (number >= min && number <= max) {
                return number;
            }
        } catch (NumberFormatException e) {
            throw wrong(key, "a number", e);
        }
        throw wrong(key, "a number from " + min + " to " + max, null);
    }

    /**
     * Returns values of the metadata by name. {@code otherwise} is the JSON if there is no such
     * entry; null throws.
     */
    <T> Map<String, T> map(String key, String otherwise, Class<T> type) throws IOException {
        Map<String, T> values = new LinkedHashMap<>();
        for (Map.Entry<String, JsonElement> entry :
                json(key, otherwise, JsonObject.class, "a JSON object").entrySet()) {
            values.put(entry.getKey(), value(key, entry.getValue(), type));
        }
        return values;
    }

    /** As {@link #map}, for texts without names. */
    List<String> texts(String key, String otherwise) throws IOException {
        List<String> values = new ArrayList<>();
        for (JsonElement value : json(key, otherwise, JsonArray.class, "a JSON array")) {
            values.add(value(key, value, String.class));
        }
        return values;
    }

    private <T> T value(String key, JsonElement json, Class<T> type) throws IOException {
        String must = "JSON with values of the type " + type.getSimpleName();
        try {
            T value = GSON.fromJson(json, type);
            if (value != null) {
                return value;
            }
        } catch (JsonParseException | IllegalArgumentException | IllegalStateException e) {
            throw wrong(key, must, e);
        }
        throw wrong(key, must, null);
    }

    private <T extends JsonElement> T json(String key, String otherwise, Class<T> type, String must)
            throws IOException {
        try {
            JsonElement json = JsonParser.parseString(metadata().getOrDefault(key, otherwise));
            return type.cast(json);
        } catch (JsonParseException | ClassCastException | NullPointerException e) {
            throw wrong(key, must, e);
        }
    }

    IOException wrong(String key, String must, Exception cause) {
        String value = metadata().get(key);
        return new IOException(
                String.format(
                        "%s: '%s' in its metadata %s, but must be %s; delete the file to resume"
                                + " from the previous checkpoint",
                        path, key, value == null ? "is missing" : "is " + excerpt(value), must),
                cause);
    }

    private static String excerpt(String value) {
        return value.length() <= MAX_EXCERPT ? value : value.substring(0, MAX_EXCERPT) + "…";
    }

    Path path() {
        return path;
    }

    /** Returns the arrays by name, in the order in which they were written. */
    Map<String, SafetensorsHeader.Stored> tensors() {
        return header.stored();
    }

    /** Reads an array, from an element on, into one of the same type. */
    void read(String name, long first, NDArray array) throws IOException {
        SafetensorsHeader.Stored stored = tensors().get(name);
        long[] position = {stored.offset() + stored.spec().type().byteSize(first)};
        try (NDManager temporary = array.getManager().newSubManager(array.getDevice())) {
            ArrayBytes.write(
                    temporary,
                    array,
                    bytes -> {
                        int size = bytes.remaining();
                        readFully(bytes, position[0]);
                        position[0] += size;
                    });
        }
    }

    @Override
    public void close() throws IOException {
        channel.close();
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.engine;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.CRC32C;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.TensorInfo;
import org.djlx.nativeops.Torch;

/**
 * Named arrays and strings in a file of the <a
 * href="https://github.com/huggingface/safetensors">safetensors</a> format, which others read too,
 * with a checksum over all of it:
 *
 * <pre>
 * 8 bytes   length of the header, little-endian
 * header    JSON: {"__metadata__":{"crc32c":"…", …}, "name":{"dtype", "shape", "data_offsets"}, …}
 * data      the arrays, one after the other
 * </pre>
 *
 * <p>The checksum is of the whole file with eight zeros in its place. A file gets its name when it
 * is complete and on disk, so that nobody finds half of one.
 */
final class CheckpointFile implements AutoCloseable {

    /** How the name of a file ends that is not complete. It begins with a dot. */
    static final String TEMPORARY = ".incomplete";

    private static final int MAX_HEADER = 100_000_000; // safetensors' own limit
    private static final String BEGINNING = "{\"__metadata__\":{\"crc32c\":\"";
    private static final String NO_CHECKSUM = "00000000";
    private static final Map<ScalarType, String> TYPES =
            Map.ofEntries(
                    Map.entry(ScalarType.UINT8, "U8"),
                    Map.entry(ScalarType.INT8, "I8"),
                    Map.entry(ScalarType.INT16, "I16"),
                    Map.entry(ScalarType.INT32, "I32"),
                    Map.entry(ScalarType.INT64, "I64"),
                    Map.entry(ScalarType.FLOAT16, "F16"),
                    Map.entry(ScalarType.BFLOAT16, "BF16"),
                    Map.entry(ScalarType.FLOAT32, "F32"),
                    Map.entry(ScalarType.FLOAT64, "F64"),
                    Map.entry(ScalarType.BOOL, "BOOL"));

    /** Where an array is in the data, and what it is. */
    record Entry(ScalarType type, List<Long> sizes, long begin, long end) {

        @Override
        public String toString() {
            return type + " of shape " + sizes;
        }
    }

    private final Path path;
    private final FileChannel channel;
    private final Map<String, String> metadata = new LinkedHashMap<>();
    private final Map<String, Entry> entries = new LinkedHashMap<>();
    private long data; // where it begins
    private String checksum;

    private CheckpointFile(Path path) throws IOException {
        this.path = path;
        channel = FileChannel.open(path, StandardOpenOption.READ);
    }

    /** Returns the entry that an array would have if it were alone. */
    static Entry describe(NDArray array) {
        TensorInfo info = Torch.info(array);
        List<Long> sizes = Arrays.stream(info.sizes()).boxed().toList();
        return new Entry(info.type(), sizes, 0, info.byteSize());
    }

    /**
     * Writes a file, or leaves what has its name as it is.
     *
     * @param manager a manager of arrays that are needed meanwhile
     */
    static void write(
            Path path, Map<String, String> metadata, Map<String, NDArray> arrays, NDManager manager)
            throws IOException {
        Path temporary = path.resolveSibling("." + path.getFileName() + TEMPORARY);
        try {
            writeAndForce(temporary, metadata, arrays, manager);
            Files.move(temporary, path, StandardCopyOption.ATOMIC_MOVE);
            forceNames(path.getParent());
        } finally {
            Files.deleteIfExists(temporary);
        }
    }

    private static void writeAndForce(
            Path file, Map<String, String> metadata, Map<String, NDArray> arrays, NDManager manager)
            throws IOException {
        String header = header(metadata, arrays);
        CRC32C crc = new CRC32C();
        try (FileChannel channel =
                FileChannel.open(
                        file,
                        StandardOpenOption.CREATE,
                        StandardOpenOption.TRUNCATE_EXISTING,
                        StandardOpenOption.WRITE)) {
            ByteBuffer start = encode(header);
            crc.update(start.duplicate());
            writeFully(channel, start);
            for (NDArray array : arrays.values()) {
                try (NDManager temporary = manager.newSubManager(array.getDevice())) {
                    ArrayBytes.read(
                            temporary,
                            array,
                            bytes -> {
                                crc.update(bytes.duplicate());
                                writeFully(channel, bytes);
                            });
                }
            }
            channel.position(0);
            String sum = String.format("%08x", crc.getValue());
            writeFully(
                    channel,
                    encode(BEGINNING + sum + header.substring(BEGINNING.length() + sum.length())));
            channel.force(true);
        }
    }

    private static void writeFully(FileChannel channel, ByteBuffer bytes) throws IOException {
        while (bytes.hasRemaining()) {
            channel.write(bytes);
        }
    }

    /** Has a directory's list of names on disk. */
    private static void forceNames(Path directory) throws IOException {
        try (FileChannel names = FileChannel.open(directory, StandardOpenOption.READ)) {
            names.force(true);
        }
    }

    private static String header(Map<String, String> metadata, Map<String, NDArray> arrays)
            throws IOException {
        Map<String, String> strings = new LinkedHashMap<>();
        strings.put("crc32c", NO_CHECKSUM);
        strings.putAll(metadata);
        Map<String, Object> header = new LinkedHashMap<>();
        header.put("__metadata__", strings);
        long begin = 0;
        for (Map.Entry<String, NDArray> named : arrays.entrySet()) {
            Entry entry = describe(named.getValue());
            String type = TYPES.get(entry.type);
            if (type == null) {
                throw new IOException(
                        "safetensors has no name for " + entry + ", as '" + named.getKey() + "'");
            }
            long end = begin + entry.end;
            Map<String, Object> tensor = new LinkedHashMap<>(); // One order in all JVMs.
            tensor.put("dtype", type);
            tensor.put("shape", entry.sizes);
            tensor.put("data_offsets", List.of(begin, end));
            header.put(named.getKey(), tensor);
            begin = end;
        }
        String json = new Gson().toJson(header);
        int length = json.getBytes(StandardCharsets.UTF_8).length;
        return json + " ".repeat((8 - length % 8) % 8); // The data is aligned.
    }

    private static ByteBuffer encode(String header) {
        byte[] json = header.getBytes(StandardCharsets.UTF_8);
        return ByteBuffer.allocate(Long.BYTES + json.length)
                .order(ByteOrder.LITTLE_ENDIAN)
                .putLong(json.length)
                .put(json)
                .rewind();
    }

    /**
     * Opens a file and checks all of it.
     *
     * @throws IOException if it is not one of ours, or not as it was written
     */
    static CheckpointFile open(Path path) throws IOException {
        CheckpointFile file = new CheckpointFile(path);
        boolean done = false;
        try {
            file.check();
            done = true;
            return file;
        } finally {
            if (!done) {
                file.close();
            }
        }
    }

    private void check() throws IOException {
        long size = channel.size();
        ByteBuffer length = ByteBuffer.allocate(Long.BYTES).order(ByteOrder.LITTLE_ENDIAN);
        if (size < Long.BYTES) {
            throw foreign();
        }
        readFully(length, 0);
        long headerSize = length.getLong(0);
        if (headerSize < BEGINNING.length() || headerSize > MAX_HEADER) {
            throw foreign();
        }
        data = Long.BYTES + headerSize;
        if (data > size) {
            throw damaged("has " + size + " bytes, and a header of " + headerSize);
        }
        ByteBuffer json = ByteBuffer.allocate((int) headerSize);
        readFully(json, Long.BYTES);
        String header = StandardCharsets.UTF_8.decode(json.duplicate()).toString();
        int end = BEGINNING.length() + NO_CHECKSUM.length();
        if (!header.startsWith(BEGINNING) || header.length() < end) {
            throw foreign();
        }
        checksum = header.substring(BEGINNING.length(), end);
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
            throw damaged("has the checksum " + found + ", and was written with " + checksum);
        }
        parse(header);
    }

    private IOException foreign() {
        return new IOException(path + " is not a checkpoint that this program has written");
    }

    private IOException damaged(String what) {
        return new IOException(
                String.format(
                        "%s is truncated or damaged: it %s; delete it to go on from the one before",
                        path, what));
    }

    /** Reads a header whose checksum is right. */
    private void parse(String header) throws IOException {
        Map<String, ScalarType> types = new HashMap<>();
        TYPES.forEach((type, name) -> types.put(name, type));
        try {
            for (var member : JsonParser.parseString(header).getAsJsonObject().entrySet()) {
                JsonObject value = member.getValue().getAsJsonObject();
                if (member.getKey().equals("__metadata__")) {
                    value.entrySet()
                            .forEach(e -> metadata.put(e.getKey(), e.getValue().getAsString()));
                    continue;
                }
                ScalarType type = types.get(value.get("dtype").getAsString());
                List<Long> offsets = numbers(value, "data_offsets");
                List<Long> sizes = numbers(value, "shape");
                entries.put(
                        member.getKey(), new Entry(type, sizes, offsets.get(0), offsets.get(1)));
            }
        } catch (RuntimeException e) { // Gson's, of JSON that is another
            throw new IOException(path + " has a header that this program has not written", e);
        }
    }

    private static List<Long> numbers(JsonObject object, String name) {
        return object.getAsJsonArray(name).asList().stream().map(JsonElement::getAsLong).toList();
    }

    /** Fills a buffer from a position on. It is then to be read. */
    private void readFully(ByteBuffer buffer, long position) throws IOException {
        for (long at = position; buffer.hasRemaining(); ) {
            int count = channel.read(buffer, at);
            if (count < 0) {
                throw new EOFException(path + " ends while it is read");
            }
            at += count;
        }
        buffer.flip();
    }

    /** Returns the checksum as it is in the file: eight hexadecimal digits. */
    String checksum() {
        return checksum;
    }

    Map<String, String> metadata() {
        return metadata;
    }

    Map<String, Entry> entries() {
        return entries;
    }

    /** Fills an array of the same type and shape. */
    void read(String name, NDArray array) throws IOException {
        long[] position = {data + entries.get(name).begin};
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

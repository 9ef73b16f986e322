// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.safetensors;

import ai.djl.ndarray.types.Shape;
import com.google.gson.Gson;
import com.google.gson.stream.JsonReader;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.nativeops.host.Required;

/**
 * The header of a safetensors file, fully checked: tensors follow each other without gap or
 * overlap, have the size that type and shape require, and end at the end of the file.
 *
 * <pre>
 * 8 bytes         n, the size of the header, little-endian
 * n bytes         JSON: {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets"}}
 * the rest        the tensors, at their offsets from here
 * </pre>
 *
 * @param stored the tensors by name, in the order of the file's data
 */
public record SafetensorsHeader(Map<String, Stored> stored, Map<String, String> metadata) {

    static final String METADATA = "__metadata__";

    /** The size of the length field before the JSON, in bytes. */
    public static final int PREFIX = 8;

    /** The maximum size of the JSON, the same as in Hugging Face's library. */
    public static final int MAX_BYTES = 100_000_000;

    private static final Gson GSON = new Gson();
    private static final int MAX_DIMENSIONS = 64; // of libtorch's arrays

    /** A tensor and the position of its first byte in the file. */
    public record Stored(TensorSpec spec, long offset) {

        /** Checks the arguments. */
        public Stored {
            Required.argument("the description of a stored tensor", spec);
        }
    }

    /** A tensor's entry in the JSON, not yet checked. */
    private record Entry(TensorSpec spec, long begin, long end) {}

    /** Checks the arguments. */
    public SafetensorsHeader {
        if (stored == null || metadata == null) {
            throw new IllegalArgumentException("the tensors of a header or its metadata are null");
        }
    }

    /**
     * Encodes a header with its length field, padded so that the data begins at a multiple of 8
     * bytes.
     *
     * @param tensors the tensors in the order of the data; their names differ
     * @param metadata strings by name; they come first in the JSON
     * @return the bytes up to the data
     * @throws IllegalArgumentException if an argument is null, or a tensor's element type is
     *     unknown
     */
    public static byte[] encode(List<TensorSpec> tensors, Map<String, String> metadata) {
        if (tensors == null || metadata == null) {
            throw new IllegalArgumentException("the tensors of a header or its metadata are null");
        }
        Map<String, Object> header = new LinkedHashMap<>();
        header.put(METADATA, metadata);
        long position = 0;
        for (TensorSpec spec : tensors) {
            long end = Math.addExact(position, spec.byteSize());
            Map<String, Object> tensor = new LinkedHashMap<>(); // Same order in all JVMs.
            tensor.put("dtype", spec.dtype());
            tensor.put("shape", spec.shape().getShape());
            tensor.put("data_offsets", new long[] {position, end});
            header.put(spec.name(), tensor);
            position = end;
        }
        byte[] json = GSON.toJson(header).getBytes(StandardCharsets.UTF_8);
        int length = (json.length + 7) / 8 * 8;
        byte[] bytes = new byte[PREFIX + length];
        Arrays.fill(bytes, (byte) ' ');
        ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).putLong(length).put(json);
        return bytes;
    }

    /**
     * Parses and checks a header.
     *
     * @param json the header, without its size
     * @param dataBytes the number of bytes after it
     * @throws IOException if the header is invalid; the message does not name the file
     */
    public static SafetensorsHeader parse(byte[] json, long dataBytes) throws IOException {
        Required.argument("the header", json);
        List<Entry> entries = new ArrayList<>();
        Map<String, String> metadata = new LinkedHashMap<>();
        StrictJson.read(
                json,
                (key, reader) -> {
                    if (key.equals(METADATA)) {
                        StrictJson.object(
                                reader, (k, value) -> metadata.put(k, StrictJson.string(value)));
                    } else {
                        entries.add(entry(key, reader));
                    }
                });
        entries.sort(Comparator.comparingLong(Entry::begin).thenComparingLong(Entry::end));
        Map<String, Stored> tensors = new LinkedHashMap<>();
        long position = 0;
        for (Entry entry : entries) {
            check(entry, position, dataBytes);
            position = entry.end;
            tensors.put(
                    entry.spec.name(), new Stored(entry.spec, PREFIX + json.length + entry.begin));
        }
        if (position != dataBytes) {
            throw new IOException(
                    "its tensors take %s bytes, but %s follow the header"
                            .formatted(position, dataBytes));
        }
        return new SafetensorsHeader(tensors, metadata);
    }

    private static Entry entry(String name, JsonReader json) throws IOException {
        String[] dtype = new String[1];
        List<Long> shape = new ArrayList<>();
        List<Long> offsets = new ArrayList<>();
        boolean[] hasShape = new boolean[1];
        StrictJson.object(
                json,
                (key, value) -> {
                    switch (key) {
                        case "dtype" -> dtype[0] = StrictJson.string(value);
                        case "shape" -> {
                            hasShape[0] = true;
                            counts(name, value, shape, MAX_DIMENSIONS);
                        }
                        case "data_offsets" -> counts(name, value, offsets, 2);
                        default -> value.skipValue();
                    }
                });
        if (dtype[0] == null || !hasShape[0] || offsets.size() != 2) {
            throw new IOException(name + " lacks its dtype, shape or two data_offsets");
        }
        long[] sizes = shape.stream().mapToLong(Long::longValue).toArray();
        return new Entry(
                new TensorSpec(name, dtype[0], new Shape(sizes)), offsets.get(0), offsets.get(1));
    }

    private static void counts(String name, JsonReader json, List<Long> numbers, int most)
            throws IOException {
        json.beginArray();
        while (json.hasNext()) {
            if (numbers.size() == most) {
                throw new IOException(name + " has more than " + most + " sizes or offsets");
            }
            numbers.add(StrictJson.count(json));
        }
        json.endArray();
    }

    private static void check(Entry entry, long position, long dataBytes) throws IOException {
        TensorSpec spec = entry.spec;
        if (entry.end < entry.begin) {
            throw new IOException(
                    spec + " ends at " + entry.end + ", before its start at " + entry.begin);
        }
        if (entry.end > dataBytes) {
            throw new IOException(
                    String.format(
                            "it is cut off: %s ends at byte %d, but the data has %d bytes",
                            spec, entry.end, dataBytes));
        }
        if (entry.begin != position) {
            throw new IOException(
                    String.format(
                            "%s starts at byte %d of the data, not at %d, where the previous tensor"
                                    + " ends",
                            spec, entry.begin, position));
        }
        if (spec.knownType().isPresent()) {
            long needed;
            try {
                needed = spec.byteSize();
            } catch (IllegalArgumentException e) {
                throw new IOException(e.getMessage(), e);
            }
            if (needed != entry.end - entry.begin) {
                throw new IOException(
                        String.format(
                                "%s needs %d bytes, but has %d",
                                spec, needed, entry.end - entry.begin));
            }
        }
    }
}

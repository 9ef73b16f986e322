/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.safetensors;

import ai.djl.ndarray.types.Shape;
import com.google.gson.stream.JsonReader;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The header of a file, every number of which is checked: tensors follow each other without a gap
 * or an overlap, have the size that type and shape ask for, and end where the file does.
 *
 * <pre>
 * 8 bytes         n, the size of the header, little-endian
 * n bytes         JSON: {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets"}}
 * the rest        the tensors, at their offsets from here
 * </pre>
 *
 * @param tensors the tensors by name, in the order of the file's data
 * @param metadata what else the file says, which nothing here needs
 */
record SafetensorsHeader(Map<String, Stored> tensors, Map<String, String> metadata) {

    static final String METADATA = "__metadata__";

    /** Bytes before the header. */
    static final int PREFIX = 8;

    /** As many as the format's own library takes. */
    static final int MAX_BYTES = 100_000_000;

    private static final int MAX_DIMENSIONS = 64; // of libtorch's arrays

    /**
     * A tensor and where it lies.
     *
     * @param spec what it is
     * @param offset where its first byte is in the file
     */
    record Stored(TensorSpec spec, long offset) {}

    /** A tensor as the header has it, not checked. */
    private record Entry(TensorSpec spec, long begin, long end) {}

    /**
     * Parses and checks a header.
     *
     * @param json the header
     * @param dataBytes how many bytes follow it
     * @throws IOException what is wrong, without the name of the file
     */
    static SafetensorsHeader parse(byte[] json, long dataBytes) throws IOException {
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
                    "its tensors take "
                            + position
                            + " bytes, but "
                            + dataBytes
                            + " follow the header");
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
                            "it is cut off: %s ends at byte %d of the data, of which there are %d",
                            spec, entry.end, dataBytes));
        }
        if (entry.begin != position) {
            throw new IOException(
                    String.format(
                            "%s starts at byte %d of the data, %s %d, where the tensor before it"
                                    + " ends",
                            spec,
                            entry.begin,
                            entry.begin < position ? "before" : "behind",
                            position));
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

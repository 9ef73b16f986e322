// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import static org.djlx.nativeops.host.Required.check;

import java.io.IOException;
import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.djlx.nativeops.host.Required;

/**
 * The checked header of a file in <a
 * href="https://github.com/ggml-org/ggml/blob/master/docs/gguf.md">GGUF</a> 2 or 3: metadata, and
 * where each tensor is. Values of metadata are Number, Boolean, String or List.
 *
 * <p>A model in several files, as llama-gguf-split writes them, is its first file, with the tensors
 * of all.
 */
record GgufFile(Path path, Map<String, Object> metadata, Map<String, Tensor> tensors) {

    /** The name of one of several files. */
    private static final Pattern PART = Pattern.compile("(.*)-(\\d{5})-of-(\\d{5})\\.gguf");

    private static final int MAX_ITEMS = 1 << 24; // of a list; larger ones would fill the heap
    private static final int MAGIC = 0x46554747; // GGUF, little-endian
    private static final int STRING = 8;
    private static final int ARRAY = 9;

    /** The sizes of the types of metadata, by code; of strings and arrays the least. */
    private static final int[] SIZES = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

    /**
     * A tensor: rows of {@code columns} numbers; {@code rows} counts those of all dimensions.
     *
     * @param sizes the sizes of dimensions, the last one, of neighbours, first
     * @param file that has the numbers
     * @param offset in the file
     */
    record Tensor(String name, GgufType type, long[] sizes, Path file, long offset) {

        long columns() {
            return sizes[0];
        }

        long rows() {
            long rows = 1;
            for (int i = 1; i < sizes.length; i++) {
                rows *= sizes[i];
            }
            return rows;
        }

        long rowBytes() {
            return columns() / type.blockSize * type.blockBytes;
        }
    }

    /** Returns whether a file is one of several of a model, and not the first. */
    static boolean isFurther(Path path) {
        Matcher name = PART.matcher(path.getFileName().toString());
        return name.matches() && !name.group(2).equals("00001");
    }

    /** Returns the name of a model: that of its file, or the common part of those of its files. */
    String name() {
        String name = path.getFileName().toString();
        Matcher part = PART.matcher(name);
        return part.matches() ? part.group(1) : name.replaceFirst("\\.gguf$", "");
    }

    /**
     * Reads and checks the header and, of the first of several files, those of the others.
     *
     * @throws IOException if a file cannot be read or is damaged; the message names it
     */
    static GgufFile read(Path path) throws IOException {
        GgufFile first = readOne(path);
        int count = first.number("split.count", 1);
        if (count == 1) {
            return first;
        }
        Matcher name = PART.matcher(path.getFileName().toString());
        if (first.number("split.no", -1) != 0
                || !name.matches()
                || !name.group(2).equals("00001")
                || Integer.parseInt(name.group(3)) != count) {
            throw new IOException(
                    "%s is one of %d files of a model: name the first, NAME-00001-of-%05d.gguf"
                            .formatted(path, count, count));
        }
        Map<String, Tensor> all = new LinkedHashMap<>(first.tensors);
        for (int i = 1; i < count; i++) {
            String file = "%s-%05d-of-%s.gguf".formatted(name.group(1), i + 1, name.group(3));
            GgufFile part = readOne(path.resolveSibling(file));
            for (Tensor tensor : part.tensors.values()) {
                if (all.put(tensor.name, tensor) != null) {
                    throw new IOException(part.path + " has " + tensor.name + " for a second time");
                }
            }
            if (part.number("split.no", -1) != i || part.number("split.count", 0) != count) {
                throw new IOException(
                        "%s is not the file %d of %d of a model"
                                .formatted(part.path, i + 1, count));
            }
        }
        int tensors = first.number("split.tensors.count", all.size());
        if (tensors != all.size()) {
            throw new IOException(
                    "%s and its further files have %d tensors instead of %d"
                            .formatted(path, all.size(), tensors));
        }
        return new GgufFile(path, first.metadata, all);
    }

    private int number(String key, int otherwise) {
        return metadata.get(key) instanceof Number number ? number.intValue() : otherwise;
    }

    private static GgufFile readOne(Path path) throws IOException {
        try (FileChannel channel = FileChannel.open(path)) {
            long size = channel.size();
            ByteBuffer bytes =
                    channel.map(
                            FileChannel.MapMode.READ_ONLY, 0, Math.min(size, Integer.MAX_VALUE));
            return new Reader(path, bytes.order(ByteOrder.LITTLE_ENDIAN), size).read();
        } catch (BufferUnderflowException e) {
            throw new IOException("%s is cut off: its header does not end".formatted(path), e);
        } catch (IllegalArgumentException | ArithmeticException e) {
            throw new IOException(
                    "%s is not a GGUF file that can be read: %s".formatted(path, e.getMessage()),
                    e);
        }
    }

    private record Reader(Path path, ByteBuffer bytes, long size) {

        GgufFile read() {
            check(bytes.getInt() == MAGIC, "it does not begin with GGUF");
            int version = bytes.getInt();
            check(
                    version == 2 || version == 3,
                    "its version is %d; versions 2 and 3, little-endian, are supported",
                    version);
            int tensorCount = count("tensors", 24);
            int entries = count("entries of metadata", 13);
            Map<String, Object> metadata = new LinkedHashMap<>();
            for (int i = 0; i < entries; i++) {
                String key = string();
                check(metadata.put(key, value(bytes.getInt())) == null, "%s is there twice", key);
            }
            long alignment =
                    metadata.get("general.alignment") instanceof Number number
                            ? number.longValue()
                            : 32;
            check(
                    alignment > 0 && alignment <= 1 << 20 && Long.bitCount(alignment) == 1,
                    "general.alignment must be a power of 2, not %d",
                    alignment);
            List<Tensor> relative = new ArrayList<>();
            for (int i = 0; i < tensorCount; i++) {
                relative.add(tensor(alignment));
            }
            long data = (bytes.position() + alignment - 1) / alignment * alignment;
            Map<String, Tensor> tensors = new LinkedHashMap<>();
            for (Tensor each : relative) {
                long length = Math.multiplyExact(each.rows(), each.rowBytes());
                check(
                        each.offset <= size - data && length <= size - data - each.offset,
                        "it is cut off: the tensor %s ends behind its %d bytes",
                        each.name,
                        size);
                Tensor placed =
                        new Tensor(each.name, each.type, each.sizes, path, data + each.offset);
                check(
                        tensors.put(each.name, placed) == null,
                        "the tensor %s is there twice",
                        each.name);
            }
            return new GgufFile(path, metadata, tensors);
        }

        private Tensor tensor(long alignment) {
            String name = string();
            int dimensions = bytes.getInt();
            check(
                    dimensions >= 1 && dimensions <= 4,
                    "the tensor %s has %d dimensions, not 1 to 4",
                    name,
                    dimensions);
            long[] sizes = new long[dimensions];
            long numbers = 1;
            for (int i = 0; i < dimensions; i++) {
                sizes[i] = bytes.getLong();
                check(sizes[i] > 0, "the tensor %s has a size of %d", name, sizes[i]);
                numbers = Math.multiplyExact(numbers, sizes[i]);
            }
            int code = bytes.getInt();
            GgufType type = Required.naming("the tensor " + name, () -> GgufType.of(code));
            long offset = bytes.getLong();
            check(
                    sizes[0] % type.blockSize == 0,
                    "the tensor %s has rows of %d numbers, not whole blocks of %s",
                    name,
                    sizes[0],
                    type);
            check(
                    offset >= 0 && offset % alignment == 0,
                    "the tensor %s is at %d, not at a multiple of %d",
                    name,
                    offset,
                    alignment);
            return new Tensor(name, type, sizes, path, offset);
        }

        /** Reads a number of items, each of some bytes or more, that still fit in the header. */
        private int count(String what, int leastBytes) {
            long count = bytes.getLong();
            check(
                    count >= 0 && count <= Math.min(MAX_ITEMS, bytes.remaining() / leastBytes),
                    "it has %s %s, more than fit in the file or than %,d",
                    Long.toUnsignedString(count),
                    what,
                    MAX_ITEMS);
            return (int) count;
        }

        private String string() {
            byte[] utf8 = new byte[count("bytes of a text", 1)];
            bytes.get(utf8);
            return new String(utf8, StandardCharsets.UTF_8);
        }

        private Object value(int type) {
            return switch (type) {
                case 0 -> bytes.get() & 255;
                case 1 -> (int) bytes.get();
                case 2 -> bytes.getShort() & 65535;
                case 3 -> (int) bytes.getShort();
                case 4 -> bytes.getInt() & 0xffffffffL;
                case 5 -> bytes.getInt();
                case 6 -> bytes.getFloat();
                case 7 -> bytes.get() != 0;
                case STRING -> string();
                case ARRAY -> array();
                case 10, 11 -> bytes.getLong();
                case 12 -> bytes.getDouble();
                default -> throw new IllegalArgumentException("metadata has the type " + type);
            };
        }

        private List<Object> array() {
            int type = bytes.getInt();
            check(
                    type >= 0 && type < SIZES.length && type != ARRAY,
                    "metadata has an array of the type %d",
                    type);
            int count = count("elements of an array", SIZES[type]);
            List<Object> values = new ArrayList<>(count);
            for (int i = 0; i < count; i++) {
                values.add(value(type));
            }
            return values;
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import java.io.InvalidObjectException;
import java.io.ObjectStreamConstants;
import java.io.StreamCorruptedException;
import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * Bounds the work of reading a serialised object, before it is read. Parses the <a
 * href="https://docs.oracle.com/en/java/javase/17/docs/specs/serialization/protocol.html">protocol</a>,
 * and creates no instances.
 *
 * <ul>
 *   <li>The size of an object is the number of its values, and theirs, and so on. A value that is
 *       referred to twice counts twice. So sizes can double with each level of nesting.
 *   <li>Reading an element of a set or a key of a map calls its {@code hashCode}, which visits as
 *       many values as its size. The work is the sum of these sizes.
 *   <li>Objects in which nothing is referred to twice always pass: their work is at most the number
 *       of values times the depth.
 * </ul>
 */
final class SerializedGraph implements ObjectStreamConstants {

    /** The work that any object may take; a fraction of a second. */
    private static final long FREE_WORK = 1 << 24;

    // Class descriptions are nested, too, but not counted by ObjectCodec.MAX_DEPTH.
    private static final int MAX_RECURSION = 4 * ObjectCodec.MAX_DEPTH;
    private static final int BYTES_PER_HASH = 8; // of an array of numbers

    private static final String IMMUTABLE = "java.util.CollSer"; // of List.of, Set.of and Map.of
    private static final List<String> SETS = List.of("java.util.HashSet");
    private static final List<String> MAPS =
            List.of(
                    "java.util.HashMap",
                    "java.util.Hashtable",
                    "java.util.concurrent.ConcurrentHashMap");

    private final ByteBuffer in;
    private final long maxWork;
    private final List<Object> handles = new ArrayList<>(); // descriptions, and sizes of objects
    private long work;

    private SerializedGraph(byte[] bytes) {
        in = ByteBuffer.wrap(bytes);
        maxWork = FREE_WORK + (long) ObjectCodec.MAX_DEPTH * bytes.length;
    }

    /**
     * Throws InvalidObjectException if reading a serialised object takes too much work, or it is
     * nested too deep, and StreamCorruptedException if it cannot be parsed.
     */
    static void check(byte[] bytes) throws InvalidObjectException, StreamCorruptedException {
        SerializedGraph graph = new SerializedGraph(bytes);
        try {
            graph.in.getInt(); // The protocol's magic number and version.
            graph.value(0);
        } catch (BufferUnderflowException e) {
            return; // It is cut off: reading it fails there, too.
        }
    }

    private static final class Description {
        private final String name;
        private final StringBuilder fields = new StringBuilder(); // their type codes
        private int flags;
        private Description parent; // null if none

        Description(String name) {
            this.name = name;
        }
    }

    /** A mutable size; that of an open object grows. */
    private static final class Size {
        private long values = 1;

        void add(long more) {
            values = Math.min(values + more, Long.MAX_VALUE / 2);
        }
    }

    private static StreamCorruptedException corrupted(String why) {
        return new StreamCorruptedException("not a serialised object: " + why);
    }

    private static void checkDepth(int depth, int max) throws InvalidObjectException {
        if (depth > max) {
            throw new InvalidObjectException(
                    "the object is nested more than "
                            + ObjectCodec.MAX_DEPTH
                            + " levels deep, or its classes are");
        }
    }

    /** Parses a value; returns its size. The outermost has the depth 0. */
    private long value(int depth) throws InvalidObjectException, StreamCorruptedException {
        byte code = in.get();
        return switch (code) {
            case TC_NULL -> 1;
            case TC_REFERENCE -> referred() instanceof Size size ? size.values : 1;
            case TC_STRING -> string(Short.toUnsignedInt(in.getShort()));
            case TC_LONGSTRING -> string(in.getLong());
            case TC_ENUM -> {
                description(depth + 1);
                open();
                yield value(depth + 1);
            }
            case TC_ARRAY -> array(depth);
            case TC_OBJECT -> object(depth);
            case TC_CLASS -> {
                description(depth + 1);
                yield open().values;
            }
            case TC_CLASSDESC -> {
                back();
                description(depth + 1);
                yield 1;
            }
            default -> throw corrupted("it has the type code " + Byte.toUnsignedInt(code));
        };
    }

    private void back() {
        in.position(in.position() - 1);
    }

    private Size open() {
        Size size = new Size();
        handles.add(size);
        return size;
    }

    private Object referred() throws StreamCorruptedException {
        int handle = in.getInt() - baseWireHandle;
        if (handle < 0 || handle >= handles.size()) {
            throw corrupted("it refers to an object that it does not have");
        }
        return handles.get(handle);
    }

    private long string(long bytes) {
        skip(bytes);
        return open().values;
    }

    private void skip(long bytes) {
        if (bytes < 0 || bytes > in.remaining()) {
            throw new BufferUnderflowException();
        }
        in.position(in.position() + (int) bytes);
    }

    private String text() {
        byte[] bytes = new byte[Math.min(Short.toUnsignedInt(in.getShort()), in.remaining())];
        in.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    /** Parses a class description; returns null if there is none. */
    private Description description(int depth)
            throws InvalidObjectException, StreamCorruptedException {
        checkDepth(depth, MAX_RECURSION);
        byte code = in.get();
        if (code == TC_NULL) {
            return null;
        }
        if (code == TC_REFERENCE && referred() instanceof Description known) {
            return known;
        }
        if (code != TC_CLASSDESC) {
            throw corrupted("it has no class, or that of a proxy");
        }
        Description description = new Description(text());
        in.getLong(); // The serial version.
        handles.add(description);
        description.flags = in.get();
        int fields = in.getShort();
        for (int i = 0; i < fields; i++) {
            char type = (char) in.get();
            description.fields.append(type);
            text();
            if (type == 'L' || type == '[') {
                value(depth + 1); // The name of its class.
            }
        }
        annotations(null, 0, new Size(), depth);
        description.parent = description(depth + 1);
        return description;
    }

    private long array(int depth) throws InvalidObjectException, StreamCorruptedException {
        checkDepth(depth + 1, ObjectCodec.MAX_DEPTH);
        Description type = requireClass(description(depth + 1));
        Size size = open();
        int length = in.getInt();
        char element = type.name.length() < 2 ? 0 : type.name.charAt(1);
        if (element != 'L' && element != '[') {
            long bytes = (long) length * width(element);
            skip(bytes);
            size.add(bytes / BYTES_PER_HASH);
        }
        for (int i = 0; i < length && (element == 'L' || element == '['); i++) {
            size.add(value(depth + 1));
        }
        return size.values;
    }

    private static Description requireClass(Description type) throws StreamCorruptedException {
        if (type == null) {
            throw corrupted("an object has no class");
        }
        return type;
    }

    private static int width(char type) throws StreamCorruptedException {
        return switch (type) {
            case 'B', 'Z' -> Byte.BYTES;
            case 'C', 'S' -> Short.BYTES;
            case 'I', 'F' -> Integer.BYTES;
            case 'J', 'D' -> Long.BYTES;
            default -> throw corrupted("it has the field type " + type);
        };
    }

    private long object(int depth) throws InvalidObjectException, StreamCorruptedException {
        checkDepth(depth + 1, ObjectCodec.MAX_DEPTH);
        Description type = requireClass(description(depth + 1));
        Size size = open();
        List<Description> parts = new ArrayList<>(); // superclasses first
        for (Description part = type; part != null; part = part.parent) {
            parts.add(0, part);
        }
        for (Description part : parts) {
            int tag = in.remaining() < Integer.BYTES ? 0 : in.getInt(in.position());
            if ((part.flags & SC_SERIALIZABLE) != 0) {
                for (int i = 0; i < part.fields.length(); i++) {
                    char field = part.fields.charAt(i);
                    if (field == 'L' || field == '[') {
                        size.add(value(depth + 1));
                    } else {
                        skip(width(field));
                    }
                }
            } else if ((part.flags & SC_BLOCK_DATA) == 0) {
                throw corrupted(part.name + " is written without marks");
            }
            if ((part.flags & (SC_WRITE_METHOD | SC_EXTERNALIZABLE)) != 0) {
                annotations(part.name, tag, size, depth);
            }
        }
        return size.values;
    }

    /**
     * Parses what a class (null: the annotations of a class description) has written by itself,
     * from the tag of its first field up to the mark of its end.
     */
    private void annotations(String owner, int tag, Size size, int depth)
            throws InvalidObjectException, StreamCorruptedException {
        for (int index = 0; ; ) {
            byte code = in.get();
            if (code == TC_ENDBLOCKDATA) {
                return;
            }
            if (code == TC_BLOCKDATA) {
                skip(Byte.toUnsignedInt(in.get()));
            } else if (code == TC_BLOCKDATALONG) {
                skip(in.getInt());
            } else {
                back();
                long values = value(depth + 1);
                size.add(values);
                hash(isHashed(owner, tag, index) ? values : 0);
                index++;
            }
        }
    }

    private static boolean isHashed(String owner, int tag, int index) {
        boolean key = index % 2 == 0;
        if (IMMUTABLE.equals(owner)) {
            int kind = tag & 0xff; // 1: list, 2: set, 3: map, 4: list with nulls
            return kind == 2 || kind == 3 && key;
        }
        return SETS.contains(owner) || MAPS.contains(owner) && key;
    }

    private void hash(long values) throws InvalidObjectException {
        work += values; // No overflow: values are at most half of the maximum, and work is bounded.
        if (work > maxWork) {
            throw new InvalidObjectException(
                    "reading the object takes too long, because it has sets or keys of maps that"
                            + " refer to the same objects on many levels");
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InvalidClassException;
import java.io.InvalidObjectException;
import java.io.NotSerializableException;
import java.io.ObjectInputFilter;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.io.ObjectStreamClass;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.AbstractMap;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Date;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import java.util.stream.Stream;

/**
 * Converts objects to bytes and back by Java serialisation. Reading creates instances of allowed
 * classes only. The memory and work of reading are bounded by the number of bytes, the nesting by
 * {@link #MAX_DEPTH}. Thread-safe.
 */
public final class ObjectCodec {

    /** The maximum nesting depth, because reading recurses. */
    public static final int MAX_DEPTH = 32;

    // Hash tables are sparse: an entry takes more than one byte and up to 8 array elements.
    private static final int ELEMENTS_PER_BYTE = 8;
    private static final int SMALL_TABLES = 1024;

    /** JDK values and collections, and the classes of their serialised forms. */
    private static final Set<String> COMMON = common();

    private static final String DATES = "java.time";

    private final Set<String> names = new HashSet<>(COMMON);
    private final Map<String, Class<?>> given = new HashMap<>();

    public ObjectCodec(List<Class<?>> allowed) {
        for (Class<?> type : allowed) {
            for (Class<?> part = type; part != null; part = part.getSuperclass()) {
                names.add(part.getName());
                given.put(part.getName(), part);
                given.put(part.arrayType().getName(), part.arrayType());
            }
        }
    }

    private static Set<String> common() {
        Stream<Class<?>> classes =
                Stream.of(
                        Object.class, // for arrays
                        Map.Entry.class, // for arrays
                        Number.class,
                        Enum.class,
                        Boolean.class,
                        Character.class,
                        Byte.class,
                        Short.class,
                        Integer.class,
                        Long.class,
                        Float.class,
                        Double.class,
                        String.class,
                        BigInteger.class,
                        BigDecimal.class,
                        UUID.class,
                        Date.class,
                        BitSet.class,
                        ArrayList.class,
                        LinkedList.class,
                        ArrayDeque.class,
                        HashMap.class,
                        LinkedHashMap.class,
                        TreeMap.class,
                        EnumMap.class,
                        HashSet.class,
                        LinkedHashSet.class,
                        TreeSet.class,
                        AbstractMap.SimpleEntry.class,
                        AbstractMap.SimpleImmutableEntry.class);
        Stream<String> hidden =
                Stream.of(
                        // Serialisation proxies, and the classes they are read as.
                        "java.util.CollSer",
                        "java.util.ImmutableCollections$ListN",
                        "java.util.ImmutableCollections$List12",
                        "java.util.ImmutableCollections$SetN",
                        "java.util.ImmutableCollections$Set12",
                        "java.util.ImmutableCollections$MapN",
                        "java.util.ImmutableCollections$Map1",
                        "java.util.Arrays$ArrayList",
                        "java.util.EnumSet$SerializationProxy",
                        "java.util.RegularEnumSet",
                        "java.util.JumboEnumSet",
                        "java.util.Collections$EmptyList",
                        "java.util.Collections$EmptyMap",
                        "java.util.Collections$EmptySet",
                        "java.util.Collections$SingletonList",
                        "java.util.Collections$SingletonMap",
                        "java.util.Collections$SingletonSet",
                        "java.util.Collections$UnmodifiableCollection",
                        "java.util.Collections$UnmodifiableList",
                        "java.util.Collections$UnmodifiableRandomAccessList",
                        "java.util.Collections$UnmodifiableMap",
                        "java.util.Collections$UnmodifiableSet");
        return Set.copyOf(Stream.concat(classes.map(Class::getName), hidden).toList());
    }

    /**
     * Serialises an object or null, and rejects it here if other ranks could not read it: with an
     * IOException if it is larger than {@code maxBytes}, where writing stops, not serialisable, or
     * not allowed, and a ClassNotFoundException if reading it does not find a class.
     */
    public byte[] write(Object object, int maxBytes) throws IOException, ClassNotFoundException {
        BoundedOutput bytes = new BoundedOutput(maxBytes);
        try {
            ObjectOutputStream out = new ObjectOutputStream(bytes);
            out.writeObject(object);
            out.flush();
        } catch (TooLargeException e) {
            throw refused(e.getMessage(), e);
        } catch (NotSerializableException e) {
            throw refused(e.getMessage() + " does not implement Serializable", e);
        }
        byte[] written = bytes.toByteArray();
        read(written);
        return written;
    }

    /**
     * Reads an object, and ignores trailing bytes. Throws an IOException if the bytes are not a
     * serialised object, contain a class that is not allowed, or take too much work to read, and a
     * ClassNotFoundException if a class is missing.
     */
    public Object read(byte[] bytes) throws IOException, ClassNotFoundException {
        SerializedGraph.check(bytes);
        Filter filter = new Filter(bytes.length);
        try (ObjectInputStream in = new FilteredInput(new ByteArrayInputStream(bytes), filter)) {
            return in.readObject();
        } catch (InvalidClassException e) {
            if (filter.refusal == null) {
                throw e;
            }
            throw refused(filter.refusal, e);
        }
    }

    private static InvalidObjectException refused(String why, Exception cause) {
        InvalidObjectException refused = new InvalidObjectException(why);
        refused.initCause(cause);
        return refused;
    }

    /** Collects bytes up to a limit. */
    private static final class BoundedOutput extends ByteArrayOutputStream {

        private final int maxBytes;

        BoundedOutput(int maxBytes) {
            this.maxBytes = maxBytes;
        }

        @Override
        public void write(int b) {
            check(1);
            super.write(b);
        }

        @Override
        public void write(byte[] bytes, int offset, int length) {
            check(length);
            super.write(bytes, offset, length);
        }

        private void check(int more) {
            if (more > maxBytes - size()) {
                throw new TooLargeException(
                        "the object takes more than "
                                + maxBytes
                                + " bytes; raise the limit with withMaxBytes");
            }
        }
    }

    /** Stops serialisation. Not an {@link IOException}, which the stream would write as well. */
    private static final class TooLargeException extends RuntimeException {

        private static final long serialVersionUID = 1L;

        TooLargeException(String message) {
            super(message);
        }
    }

    /** Resolves the names of given classes to these classes, whichever class loader they have. */
    private final class FilteredInput extends ObjectInputStream {

        FilteredInput(InputStream in, ObjectInputFilter filter) throws IOException {
            super(in);
            setObjectInputFilter(filter);
        }

        @Override
        protected Class<?> resolveClass(ObjectStreamClass description)
                throws IOException, ClassNotFoundException {
            Class<?> type = given.get(description.getName());
            return type == null ? super.resolveClass(description) : type;
        }
    }

    /** Accepts or rejects the classes and sizes of one stream. */
    private final class Filter implements ObjectInputFilter {

        private final long maxElements;
        private long elements; // of all arrays so far
        private String refusal; // why something was rejected, or null

        Filter(int bytes) {
            maxElements = (long) ELEMENTS_PER_BYTE * bytes + SMALL_TABLES;
        }

        @Override
        public Status checkInput(FilterInfo info) {
            if (info.depth() > MAX_DEPTH) {
                return refuse("the object is nested more than " + MAX_DEPTH + " levels deep");
            }
            if (info.arrayLength() >= 0) {
                elements += info.arrayLength();
                if (elements > maxElements) {
                    return refuse(
                            "the arrays have more elements than the serialised bytes can hold");
                }
            }
            Class<?> type = info.serialClass();
            while (type != null && type.isArray()) {
                type = type.getComponentType();
            }
            if (type == null
                    || type.isPrimitive()
                    || names.contains(type.getName())
                    || type.getPackageName().equals(DATES)) {
                return Status.ALLOWED;
            }
            return refuse(
                    type.getName()
                            + " is not an allowed class; pass it to the constructor of"
                            + " ObjectCollectives");
        }

        private Status refuse(String why) {
            refusal = why;
            return Status.REJECTED;
        }
    }
}

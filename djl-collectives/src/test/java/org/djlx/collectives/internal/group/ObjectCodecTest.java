// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InvalidObjectException;
import java.io.ObjectOutputStream;
import java.io.Serializable;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Collections;
import java.util.EnumMap;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Objects that can be read, and objects that are rejected. */
@Timeout(60)
class ObjectCodecTest {

    private static final int MAX_BYTES = 1 << 20;

    private enum Phase {
        WARM_UP,
        TRAIN {
            @Override
            public String toString() {
                return "body";
            }
        }
    }

    private static class Base implements Serializable {

        private static final long serialVersionUID = 1L;

        protected int number = 7;
    }

    private static final class Derived extends Base {

        private static final long serialVersionUID = 1L;

        private Derived[] others = new Derived[0];
    }

    private static Object copy(Object object, Class<?>... allowed)
            throws IOException, ClassNotFoundException {
        ObjectCodec codec = new ObjectCodec(List.of(allowed));
        return codec.read(codec.write(object, MAX_BYTES));
    }

    private static final class Plain implements Serializable {

        private static final long serialVersionUID = 1L;
    }

    private static byte[] serialised(Object object) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
            out.writeObject(object);
        }
        return bytes.toByteArray();
    }

    @Test
    void copiesCommonJdkClasses() throws Exception {
        Map<String, Integer> large =
                IntStream.range(0, 5000).boxed().collect(Collectors.toMap(i -> "" + i, i -> i));
        for (Object object :
                List.of(
                        true,
                        'x',
                        (byte) 1,
                        (short) 2,
                        3,
                        4L,
                        5f,
                        6.0,
                        "text",
                        BigInteger.TEN.pow(100),
                        new BigDecimal("1.5"),
                        new UUID(1, 2),
                        BitSet.valueOf(new long[] {5}),
                        LocalDate.of(2020, 2, 29),
                        Instant.EPOCH,
                        Duration.ofSeconds(3),
                        List.of(),
                        List.of(1, 2, 3),
                        Set.of("a", "b", "c"),
                        Map.of("a", List.of(1.5, 2.5), "b", List.of()),
                        Arrays.asList(1, null),
                        List.copyOf(new LinkedList<>(List.of(1))),
                        new LinkedList<>(List.of(1, 2)),
                        new TreeMap<>(Map.of(2, "b", 1, "a")),
                        new HashMap<>(),
                        new HashSet<>(),
                        large,
                        Set.copyOf(large.keySet()),
                        Map.entry("a", 1).getKey(),
                        Map.copyOf(large),
                        Collections.emptyList(),
                        Collections.emptyMap(),
                        Collections.emptySet(),
                        Collections.singletonList(1),
                        Collections.singletonMap(1, 2),
                        Collections.singleton(1),
                        Collections.unmodifiableList(new LinkedList<>(List.of(1))),
                        Collections.unmodifiableList(Arrays.asList(1, 2)),
                        Collections.unmodifiableMap(large),
                        Collections.unmodifiableSet(new HashSet<>(large.values())))) {
            assertEquals(object, copy(object), object.getClass().getName());
        }
        assertArrayEquals(new float[] {1, 2}, (float[]) copy(new float[] {1, 2}));
        assertArrayEquals(new long[2][3], (long[][]) copy(new long[2][3]));
        assertArrayEquals(new String[] {"a"}, (String[]) copy(new String[] {"a"}));
        assertEquals(
                List.of(1, 2), List.copyOf((ArrayDeque<?>) copy(new ArrayDeque<>(List.of(1, 2)))));
    }

    @Test
    void copiesAllowedClasses() throws Exception {
        assertSame(Phase.TRAIN, copy(Phase.TRAIN, Phase.class));
        assertEquals(EnumSet.of(Phase.TRAIN), copy(EnumSet.of(Phase.TRAIN), Phase.class));
        Map<Phase, Integer> map = new EnumMap<>(Map.of(Phase.WARM_UP, 1));
        assertEquals(map, copy(map, Phase.class));
        Derived derived = new Derived();
        derived.number = 8;
        derived.others = new Derived[] {derived}; // A cycle.
        Derived copy = (Derived) copy(derived, Derived.class);
        assertEquals(8, copy.number);
        assertSame(copy, copy.others[0]);
    }

    @Test
    void refusesOtherClasses() {
        for (Object object :
                List.of(
                        Phase.TRAIN,
                        EnumSet.of(Phase.TRAIN),
                        new Derived(),
                        new Derived[0],
                        Map.of("a", List.of(new Derived())),
                        Locale.ROOT,
                        Phase.class,
                        (Supplier<String> & Serializable) () -> "lambda")) {
            InvalidObjectException e =
                    assertThrows(InvalidObjectException.class, () -> copy(object));
            assertTrue(e.getMessage().contains("is not an allowed class"), e.getMessage());
        }
        // One class does not bring others.
        InvalidObjectException e =
                assertThrows(InvalidObjectException.class, () -> copy(new Derived(), Base.class));
        assertTrue(e.getMessage().contains("Derived"), e.getMessage());
    }

    /** A few bytes that claim an array of two billion places. */
    @Test
    void refusesArrayBombs() throws Exception {
        for (Object object : List.of(new long[] {7, 7, 7}, new Object[] {7, 7, 7})) {
            byte[] bytes = serialised(object);
            int length = find(bytes, new byte[] {0, 0, 0, 3});
            ByteBuffer.wrap(bytes).putInt(length, Integer.MAX_VALUE);
            InvalidObjectException e =
                    assertThrows(
                            InvalidObjectException.class,
                            () -> new ObjectCodec(List.of()).read(bytes));
            assertTrue(e.getMessage().contains("arrays have more elements"), e.getMessage());
        }
    }

    private static int find(byte[] bytes, byte[] part) {
        for (int at = bytes.length - part.length; at >= 0; at--) {
            if (Arrays.equals(bytes, at, at + part.length, part, 0, part.length)) {
                return at;
            }
        }
        throw new AssertionError("not found");
    }

    @Test
    void refusesNestingBombs() throws Exception {
        byte[] bytes = serialised(nestedSets(100));
        InvalidObjectException e =
                assertThrows(
                        InvalidObjectException.class, () -> new ObjectCodec(List.of()).read(bytes));
        assertTrue(e.getMessage().contains("nested more than 32 levels deep"), e.getMessage());
    }

    /** Two sets on each level that both refer to both sets of the next level: 2^30 hash codes. */
    private static Set<Object> nestedSets(int levels) {
        Set<Object> root = new HashSet<>();
        Set<Object> one = root;
        Set<Object> other = new HashSet<>();
        for (int i = 0; i < levels; i++) {
            Set<Object> next = new HashSet<>(Set.of("next")); // Unlike the other one.
            Set<Object> another = new HashSet<>();
            one.add(next);
            one.add(another);
            other.add(next);
            other.add(another);
            one = next;
            other = another;
        }
        return root;
    }

    @Test
    void refusesObjectsThatTakeLongToRead() throws Exception {
        ObjectCodec codec = new ObjectCodec(List.of());
        Set<?> read = (Set<?>) codec.read(codec.write(nestedSets(10), MAX_BYTES));
        assertEquals(2, read.size());
        for (Object object : List.of(nestedSets(30), List.of(Map.of(1, nestedSets(27))))) {
            String message =
                    assertThrows(InvalidObjectException.class, () -> codec.write(object, MAX_BYTES))
                            .getMessage();
            assertTrue(message.contains("takes too long"), message);
        }
    }

    /** Reading a list or a value of a map does not call hashCode, so it may be shared. */
    @Test
    void readsObjectsWithManySharedReferences() throws Exception {
        ObjectCodec codec = new ObjectCodec(List.of());
        List<Integer> large = new ArrayList<>(Collections.nCopies(10_000, 7));
        Map<Integer, Object> map = new HashMap<>();
        IntStream.range(0, 10_000).forEach(i -> map.put(i, large));
        Object shared = List.of(map, new ArrayList<>(map.values()), Map.of("values", map));
        List<?> read = (List<?>) codec.read(codec.write(shared, MAX_BYTES));
        Map<?, ?> copy = (Map<?, ?>) read.get(0);
        assertEquals(large, copy.get(9_999));
        assertSame(copy.get(0), copy.get(9_999));
    }

    @Test
    void refusesObjectsAboveTheLimit() throws Exception {
        ObjectCodec codec = new ObjectCodec(List.of());
        int size = serialised("text").length;
        assertEquals(size, codec.write("text", size).length);
        InvalidObjectException e =
                assertThrows(InvalidObjectException.class, () -> codec.write("text", size - 1));
        assertTrue(e.getMessage().contains("more than " + (size - 1) + " bytes"), e.getMessage());
    }

    /** Bytes that were changed or cut off are read or refused, and that is all. */
    @Test
    void randomBytesNeverCrashTheReader() throws Exception {
        Random random = new Random(5);
        ObjectCodec codec = new ObjectCodec(List.of(Derived.class, Phase.class));
        Map<String, Object> values = new HashMap<>();
        values.put("list", List.of(1, 2.5, "x"));
        values.put("map", new TreeMap<>(Map.of(1, LocalDate.EPOCH)));
        values.put("enum", EnumSet.allOf(Phase.class));
        values.put("derived", new Derived());
        values.put("array", new long[20]);
        byte[] whole = codec.write(values, MAX_BYTES);
        int refused = 0;
        for (int i = 0; i < 3000; i++) {
            byte[] bytes =
                    Arrays.copyOf(whole, i % 3 == 0 ? random.nextInt(whole.length) : whole.length);
            for (int j = 0; j < random.nextInt(4) && bytes.length > 0; j++) {
                bytes[random.nextInt(bytes.length)] = (byte) random.nextInt();
            }
            try {
                codec.read(bytes);
            } catch (IOException | ClassNotFoundException | RuntimeException e) {
                refused++;
            }
        }
        assertTrue(refused > 1000, "" + refused);
    }

    /** A container may have loaded the class; the loader of the libraries does not know it. */
    @Test
    void resolvesAllowedClassesOfAnyLoader() throws Exception {
        String name = Plain.class.getName();
        ClassLoader loader =
                new ClassLoader(ObjectCodecTest.class.getClassLoader()) {
                    @Override
                    protected Class<?> loadClass(String wanted, boolean resolve)
                            throws ClassNotFoundException {
                        if (!wanted.equals(name)) {
                            return super.loadClass(wanted, resolve);
                        }
                        Class<?> loaded = findLoadedClass(name);
                        return loaded == null ? define() : loaded;
                    }

                    private Class<?> define() {
                        String file = "/" + name.replace('.', '/') + ".class";
                        try (InputStream in = ObjectCodecTest.class.getResourceAsStream(file)) {
                            byte[] code = in.readAllBytes();
                            return defineClass(name, code, 0, code.length);
                        } catch (IOException e) {
                            throw new AssertionError(e);
                        }
                    }
                };
        Class<?> other = loader.loadClass(name);
        Object copy = new ObjectCodec(List.of(other)).read(serialised(new Plain()));
        assertSame(other, copy.getClass());
    }
}

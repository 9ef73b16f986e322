// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.RecordComponent;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.TreeSet;
import org.djlx.collectives.spi.BackendOptions;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Every option of every backend, found by reflection: each value that is set arrives. */
class OptionsTest {

    /** Two values of an option of each type. */
    private static final Map<Class<?>, List<?>> VALUES =
            Map.of(
                    boolean.class,
                    List.of(true, false),
                    int.class,
                    List.of(2, 3),
                    long.class,
                    List.of(8192L, 12288L),
                    String.class,
                    List.of("IB", "Socket"),
                    Duration.class,
                    List.of(Duration.ofSeconds(7), Duration.ofSeconds(9)),
                    Device[].class,
                    List.of(
                            new Device[] {Device.gpu(1)},
                            new Device[] {Device.gpu(2), Device.gpu(3)}),
                    NcclOptions.class,
                    List.of(
                            NcclOptions.builder().optDebug(DebugLevel.DETAIL).build(),
                            NcclOptions.builder().optHighPriorityStream(true).build()));

    private static List<?> values(Class<?> type) {
        return type.isEnum() ? List.of(type.getEnumConstants()).subList(0, 2) : VALUES.get(type);
    }

    /** What sets an option; optCommon sets two. */
    private static List<Method> setters(Class<?> builder) {
        List<Method> setters = new ArrayList<>();
        for (Method method : builder.getMethods()) {
            if (method.getName().startsWith("opt")
                    && !method.getName().equals("optCommon")
                    && !method.isBridge()) {
                setters.add(method);
            }
        }
        return setters;
    }

    /** The value of each getter, by name; those with parameters for 2 ranks, not recorded. */
    private static Map<String, Object> read(BackendOptions options) throws Exception {
        Map<String, Object> read = new TreeMap<>();
        for (Method method : options.getClass().getMethods()) {
            boolean own = BackendOptions.class.isAssignableFrom(method.getDeclaringClass());
            if (!own
                    || Modifier.isStatic(method.getModifiers())
                    || method.getName().equals("toString")) {
                continue;
            }
            Object[] arguments = {2, false};
            int count = method.getParameterCount();
            put(
                    read,
                    method.getName() + count,
                    method.invoke(options, Arrays.copyOf(arguments, count)));
        }
        return read;
    }

    private static void put(Map<String, Object> read, String name, Object value) throws Exception {
        if (value instanceof Optional<?> optional) {
            put(read, name, optional.orElse(null));
        } else if (value instanceof Record) {
            for (RecordComponent component : value.getClass().getRecordComponents()) {
                put(read, component.getName(), component.getAccessor().invoke(value));
            }
        } else if (value instanceof Map<?, ?> map) {
            map.forEach((key, number) -> read.put(name + "." + key, number));
        } else {
            read.put(name, comparable(value));
        }
    }

    private static Object comparable(Object value) throws Exception {
        if (value instanceof Boolean is) {
            return is ? 1 : 0; // As NCCL's configuration has it.
        }
        return value instanceof BackendOptions options
                ? read(options)
                : value instanceof Device[] devices ? List.of(devices) : value;
    }

    private static BackendOptions build(Object builder) throws Exception {
        return (BackendOptions) builder.getClass().getMethod("build").invoke(builder);
    }

    private static Object builder(Class<?> options) throws Exception {
        return options.getMethod("builder").invoke(null);
    }

    /** Options with the first or second value in each option. */
    private static BackendOptions withAll(Class<?> options, int which) throws Exception {
        Object builder = builder(options);
        for (Method setter : setters(builder.getClass())) {
            setter.invoke(builder, (Object) values(setter.getParameterTypes()[0]).get(which));
        }
        return build(builder);
    }

    /** Converts options as a backend does. */
    private static BackendOptions converted(String type, BackendOptions options) throws Exception {
        Method method =
                Class.forName("org.djlx.collectives.internal." + type)
                        .getDeclaredMethod("options", BackendOptions.class);
        method.setAccessible(true);
        return (BackendOptions) method.invoke(null, options);
    }

    @ParameterizedTest
    @ValueSource(classes = {ShmOptions.class, NcclOptions.class, CudaP2pOptions.class})
    void aGetterHasEachValueThatIsSet(Class<?> type) throws Exception {
        List<Method> setters = setters(builder(type).getClass());
        assertTrue(setters.size() >= 5, setters::toString);
        for (Method setter : setters) {
            TreeSet<String> having = new TreeSet<>(read(withAll(type, 0)).keySet());
            for (Object value : values(setter.getParameterTypes()[0])) {
                Object builder = builder(type);
                setter.invoke(builder, value);
                Map<String, Object> read = read(build(builder));
                Object expected = comparable(value);
                having.removeIf(name -> !expected.equals(read.get(name)));
            }
            assertFalse(having.isEmpty(), () -> "no getter has the value of " + setter);
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 1})
    void optionsMadeFromOthersHaveAllOfTheirValues(int which) throws Exception {
        BackendOptions plain =
                new BackendOptions(Duration.ofMinutes(2), Duration.ofSeconds(5 + which));
        Map<String, Object> common = read(plain);
        assertEquals(3, common.size());
        for (String backend :
                List.of(
                        "shm.ShmBackend",
                        "nccl.NcclBackendFactory",
                        "cudap2p.CudaP2pBackendFactory")) {
            Map<String, Object> read = read(converted(backend, plain));
            common.forEach((name, value) -> assertEquals(value, read.get(name), backend));
        }
        NcclOptions nccl = (NcclOptions) withAll(NcclOptions.class, which);
        CudaP2pOptions p2p = (CudaP2pOptions) converted("cudap2p.CudaP2pBackendFactory", nccl);
        assertEquals(read(nccl), read(p2p.ncclOptions()));
        assertEquals(nccl.timeout(), p2p.timeout());
        assertEquals(nccl.warnAfter(), p2p.warnAfter());
        // Its own timeouts replace those of the NCCL options, and nothing else does.
        CudaP2pOptions both =
                CudaP2pOptions.builder().optNcclOptions(nccl).optCommon(plain).build();
        Map<String, Object> expected = new HashMap<>(read(nccl));
        expected.putAll(common);
        assertEquals(expected, read(both.ncclOptions()));
        for (BackendOptions unchanged : List.of(nccl, withAll(CudaP2pOptions.class, which))) {
            String factory =
                    unchanged == nccl ? "nccl.NcclBackendFactory" : "cudap2p.CudaP2pBackendFactory";
            assertEquals(read(unchanged), read(converted(factory, unchanged)));
        }
    }

    /** A builder may be used again: options built before keep their values. */
    @ParameterizedTest
    @ValueSource(classes = {ShmOptions.class, NcclOptions.class, CudaP2pOptions.class})
    void builtOptionsDoNotFollowTheirBuilder(Class<?> type) throws Exception {
        Object builder = builder(type);
        BackendOptions built = build(builder);
        Map<String, Object> before = read(built);
        for (Method setter : setters(builder.getClass())) {
            setter.invoke(builder, (Object) values(setter.getParameterTypes()[0]).get(0));
        }
        assertEquals(before, read(built));
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm;

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.annotations.SerializedName;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.RecordComponent;
import java.lang.reflect.Type;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;

/** The JSON schema of a record, which Gson reads. All components are required. */
final class RecordSchema {

    static final Gson GSON = new Gson();

    private static final Map<Class<?>, String> TYPES =
            Map.ofEntries(
                    Map.entry(String.class, "string"),
                    Map.entry(boolean.class, "boolean"),
                    Map.entry(Boolean.class, "boolean"),
                    Map.entry(int.class, "integer"),
                    Map.entry(Integer.class, "integer"),
                    Map.entry(long.class, "integer"),
                    Map.entry(Long.class, "integer"),
                    Map.entry(float.class, "number"),
                    Map.entry(Float.class, "number"),
                    Map.entry(double.class, "number"),
                    Map.entry(Double.class, "number"));

    private RecordSchema() {}

    /**
     * Returns the schema of a record of texts, numbers, booleans, enums, lists and sets of these,
     * maps of texts to these, and such records.
     *
     * @throws IllegalArgumentException if a component has another type; the message names it
     */
    static JsonObject of(Class<? extends Record> type) {
        return of(type, type.getSimpleName(), List.of());
    }

    private static JsonObject of(Type type, String place, List<Type> around) {
        JsonObject schema = new JsonObject();
        if (type instanceof ParameterizedType generic
                && generic.getRawType() instanceof Class<?> raw) {
            Type[] of = generic.getActualTypeArguments();
            if (Collection.class.isAssignableFrom(raw)) {
                schema.addProperty("type", "array");
                schema.add("items", of(of[0], place, around));
                return schema;
            }
            if (Map.class.isAssignableFrom(raw) && of[0] == String.class) {
                schema.addProperty("type", "object");
                schema.add("additionalProperties", of(of[1], place, around));
                return schema;
            }
        }
        if (!(type instanceof Class<?> plain)
                || around.contains(type)
                || !plain.isRecord() && !plain.isEnum() && !TYPES.containsKey(plain)) {
            throw new IllegalArgumentException(
                    ("%s has the type %s; supported are String, int, long, double, float,"
                                    + " boolean, enums, records that do not contain themselves, and"
                                    + " List, Set or Map<String, ...> of these")
                            .formatted(place, type.getTypeName()));
        }
        if (plain.isEnum()) {
            schema.add("enum", GSON.toJsonTree(plain.getEnumConstants()));
            return schema;
        }
        if (!plain.isRecord()) {
            schema.addProperty("type", TYPES.get(plain));
            if (plain == int.class || plain == Integer.class) {
                schema.addProperty("minimum", Integer.MIN_VALUE);
                schema.addProperty("maximum", Integer.MAX_VALUE);
            }
            if (plain == long.class || plain == Long.class) {
                schema.addProperty("minimum", Long.MIN_VALUE);
                schema.addProperty("maximum", Long.MAX_VALUE);
            }
            return schema;
        }
        JsonObject properties = new JsonObject();
        JsonArray required = new JsonArray();
        List<Type> within = Stream.concat(around.stream(), Stream.of(type)).toList();
        for (RecordComponent component : plain.getRecordComponents()) {
            String name = name(component);
            String own = place + '.' + component.getName();
            properties.add(name, of(component.getGenericType(), own, within));
            required.add(name);
        }
        schema.addProperty("type", "object");
        schema.add("properties", properties);
        schema.add("required", required);
        schema.addProperty("additionalProperties", false);
        return schema;
    }

    private static String name(RecordComponent component) {
        String name = component.getName();
        try {
            SerializedName other =
                    component
                            .getDeclaringRecord()
                            .getDeclaredField(name)
                            .getAnnotation(SerializedName.class);
            return other == null ? name : other.value();
        } catch (NoSuchFieldException e) {
            throw new IllegalStateException("a record without the field of its component", e);
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;

/** The fields in which classes of DJL and of programs keep state without accessors. */
public final class PrivateFields {

    private PrivateFields() {}

    /** Returns the instance fields of an object's class and superclasses that can be accessed. */
    public static List<Field> of(Object owner) {
        List<Field> fields = new ArrayList<>();
        Class<?> type = owner.getClass();
        for (; type != Object.class; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (!Modifier.isStatic(field.getModifiers()) && field.trySetAccessible()) {
                    fields.add(field);
                }
            }
        }
        return fields;
    }

    /** Returns the value of a field of {@link #of}. */
    public static Object get(Field field, Object owner) {
        try {
            return field.get(owner);
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(field + " cannot be read", e);
        }
    }

    /** Sets a field of {@link #of} that is not final. */
    public static void set(Field field, Object owner, Object value) {
        try {
            field.set(owner, value);
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(field + " cannot be written", e);
        }
    }
}

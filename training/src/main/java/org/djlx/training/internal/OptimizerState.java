// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.training.optimizer.Optimizer;
import java.lang.reflect.Field;
import java.lang.reflect.InaccessibleObjectException;
import java.lang.reflect.Modifier;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The state of a DJL optimizer: the number of updates of each parameter, and arrays such as Adam's
 * means. DJL's optimizers keep this state in private fields without accessors; only this class
 * reads the fields, by reflection. Fields of type {@code Map<String, Map<Device, NDArray>>} hold
 * the arrays; the key is the parameter's id.
 */
public final class OptimizerState {

    private static final String ARRAYS =
            "java.util.Map<java.lang.String, java.util.Map<ai.djl.Device, ai.djl.ndarray.NDArray>>";

    private final Optimizer optimizer;
    private final Field updates;
    private final Field counts;
    private final Map<String, Field> slots = new TreeMap<>(); // sorted by field name

    /**
     * Throws an {@link IllegalStateException} if the optimizer has state in fields of other types,
     * which would be lost.
     */
    public OptimizerState(Optimizer optimizer) {
        this.optimizer = optimizer;
        updates = field(Optimizer.class, "numUpdate", int.class);
        counts = field(Optimizer.class, "updateCounts", Map.class);
        for (Class<?> type = optimizer.getClass();
                type != Optimizer.class;
                type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (!Modifier.isStatic(field.getModifiers())) {
                    addIfKept(field);
                }
            }
        }
    }

    private void addIfKept(Field field) {
        boolean arrays = ARRAYS.equals(field.getGenericType().getTypeName());
        Class<?> type = field.getType();
        boolean unknown =
                type.isArray()
                        || Map.class.isAssignableFrom(type)
                        || Collection.class.isAssignableFrom(type)
                        || NDArray.class.isAssignableFrom(type)
                        || NDList.class.isAssignableFrom(type);
        if (arrays && slots.put(field.getName(), field) == null) {
            open(field);
        } else if (arrays || unknown) {
            throw new IllegalStateException(
                    String.format(
                            "the state of %s in the field '%s' of type %s cannot be saved, so a"
                                    + " resumed job would lose it; keep arrays in fields of type"
                                    + " %s, as DJL's optimizers do",
                            optimizer.getClass().getName(),
                            field.getName(),
                            field.getGenericType().getTypeName(),
                            ARRAYS));
        }
    }

    private static Field field(Class<?> owner, String name, Class<?> type) {
        try {
            Field field = owner.getDeclaredField(name);
            if (field.getType() != type) {
                throw new NoSuchFieldException(name + " of the type " + type.getName());
            }
            open(field);
            return field;
        } catch (NoSuchFieldException e) {
            throw new IllegalStateException(
                    ("the state of optimizers cannot be saved with this version of DJL: %s has no"
                                    + " field %s; use DJL 0.35.1 or 0.36.0")
                            .formatted(owner.getName(), e.getMessage()),
                    e);
        }
    }

    private static void open(Field field) {
        try {
            field.setAccessible(true);
        } catch (InaccessibleObjectException e) {
            throw new IllegalStateException(
                    "the state of optimizers cannot be read: start Java with --add-opens for "
                            + field.getDeclaringClass().getPackageName(),
                    e);
        }
    }

    @SuppressWarnings("unchecked") // The constructor has checked the types.
    private Map<String, Map<Device, NDArray>> arraysOf(Field slot) {
        return (Map<String, Map<Device, NDArray>>) PrivateFields.get(slot, optimizer);
    }

    @SuppressWarnings("unchecked")
    private Map<String, Integer> counts() {
        return (Map<String, Integer>) PrivateFields.get(counts, optimizer);
    }

    /** {@return the greatest number of updates of a parameter; learning rates depend on it} */
    public int updates() {
        return (int) PrivateFields.get(updates, optimizer);
    }

    /** {@return the number of updates of a parameter; null if it was never updated} */
    public Integer count(String id) {
        return counts().get(id);
    }

    /** {@return the arrays of a parameter by the name of their field; the optimizer owns them} */
    public Map<String, NDArray> arrays(String id, Device device) {
        Map<String, NDArray> arrays = new LinkedHashMap<>();
        slots.forEach(
                (name, slot) -> {
                    Map<Device, NDArray> ofDevice = arraysOf(slot).get(id);
                    if (ofDevice != null && ofDevice.containsKey(device)) {
                        arrays.put(name, ofDevice.get(device));
                    }
                });
        return arrays;
    }

    /** {@return whether the optimizer has a field of this name for arrays} */
    public boolean hasSlot(String name) {
        return slots.containsKey(name);
    }

    /** Sets the greatest number of updates of a parameter. */
    public void setUpdates(int number) {
        PrivateFields.set(updates, optimizer, number);
    }

    /**
     * Replaces the state of a parameter and closes its former arrays. {@code arrays} are by the
     * name of their field, and become the optimizer's; {@code count} is null for none.
     */
    public void set(String id, Device device, Integer count, Map<String, NDArray> arrays) {
        if (count == null) {
            counts().remove(id);
        } else {
            counts().put(id, count);
        }
        slots.forEach(
                (name, slot) -> {
                    Map<Device, NDArray> before = arraysOf(slot).remove(id);
                    if (before != null) {
                        before.values().forEach(NDArray::close);
                    }
                    if (arrays.containsKey(name)) {
                        Map<Device, NDArray> ofDevice = new ConcurrentHashMap<>();
                        ofDevice.put(device, arrays.get(name));
                        arraysOf(slot).put(id, ofDevice);
                    }
                });
    }
}

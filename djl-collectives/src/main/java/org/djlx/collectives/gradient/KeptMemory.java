// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDScope;
import ai.djl.pytorch.engine.PtNDArray;
import java.lang.reflect.Field;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;

/**
 * Keeps the JVM memory of arrays that a thread creates. On CPUs an array of Java values, such as
 * the factor of {@code x.mul(0.5f)}, is an address of JVM memory. DJL (0.35.1 and 0.36.0) lets the
 * garbage collector free it once the array is closed, but autograd reads it in the backward pass.
 *
 * <p>Each new array registers with the last {@link NDScope} of its thread's stack. Between {@link
 * #enter} and {@link #exit} this object replaces that stack. It holds the scopes of the program,
 * but returns its observer as the last scope. The observer keeps the memory of each array, and
 * passes the array on to the program's last scope.
 */
@SuppressWarnings("serial") // is not serialized
final class KeptMemory extends ArrayDeque<NDScope> {

    private static final Field STACK = field(NDScope.class, "SCOPE_STACK");
    private static final Field ARRAYS = field(NDScope.class, "resources");
    private static final Field MEMORY = field(PtNDArray.class, "dataRef"); // null if libtorch's

    private final List<Object> memory = new ArrayList<>();
    private final NDScope observer = new NDScope();
    private Deque<NDScope> replaced; // the thread's stack between enter and exit; otherwise null

    KeptMemory() {
        observer.close(); // Removes it from the thread's stack; it has no arrays.
        set(
                observer,
                new IdentityHashMap<NDArray, NDArray>() {
                    @Override
                    public NDArray put(NDArray array, NDArray same) {
                        Object own = array instanceof PtNDArray ? value(MEMORY, array) : null;
                        if (own != null) {
                            memory.add(own);
                        }
                        return hasOuter() ? outer().put(array, same) : null;
                    }

                    @Override
                    public NDArray remove(Object array) {
                        return hasOuter() ? outer().remove(array) : null;
                    }
                });
    }

    private boolean hasOuter() {
        return size() > 0;
    }

    /** Returns the arrays of the program's last scope. */
    @SuppressWarnings("unchecked")
    private Map<NDArray, NDArray> outer() {
        return (Map<NDArray, NDArray>) value(ARRAYS, peekLast());
    }

    /** Returns whether this is the stack of a thread. */
    boolean isEntered() {
        return replaced != null;
    }

    /** Keeps the memory of arrays that this thread creates until {@link #exit}. */
    void enter() {
        replaced = stack().get();
        addAll(replaced);
        stack().set(this);
    }

    /** Restores the thread's stack. */
    void exit() {
        replaced.clear();
        replaced.addAll(this);
        clear();
        stack().set(replaced);
        replaced = null;
    }

    /** Lets the garbage collector free the memory. */
    void release() {
        memory.clear();
    }

    @Override
    public boolean isEmpty() {
        return false; // DJL then calls getLast.
    }

    @Override
    public NDScope getLast() {
        return observer;
    }

    @SuppressWarnings("unchecked")
    private static ThreadLocal<Deque<NDScope>> stack() {
        return (ThreadLocal<Deque<NDScope>>) value(STACK, null);
    }

    private static Field field(Class<?> type, String name) {
        try {
            Field field = type.getDeclaredField(name);
            field.setAccessible(true);
            return field;
        } catch (NoSuchFieldException e) {
            throw new IllegalStateException(
                    ("GradientScope does not support this version of DJL: %s has no field %s; use"
                                    + " DJL 0.35.1 or 0.36.0")
                            .formatted(type.getName(), name),
                    e);
        }
    }

    private static Object value(Field field, Object owner) {
        try {
            return field.get(owner);
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e); // Not thrown: the field is accessible.
        }
    }

    private static void set(NDScope scope, Map<NDArray, NDArray> arrays) {
        try {
            ARRAYS.set(scope, arrays);
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e); // Not thrown: the field is accessible.
        }
    }
}

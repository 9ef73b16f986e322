/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.torch;

import ai.djl.pytorch.engine.PtNDArray;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;

/**
 * Finds the Java buffer in which an array's elements lie. Arrays that DJL creates on the CPU from
 * Java data have one; libtorch does not know of it, so the elements live as long as the array holds
 * the buffer, however many tensors share them. DJL has no way to ask for it but its field.
 */
final class BufferOfArray {

    private static final Field DATA_REF = field();

    private BufferOfArray() {}

    private static Field field() {
        try {
            Field field = PtNDArray.class.getDeclaredField("dataRef");
            field.setAccessible(true);
            return field;
        } catch (ReflectiveOperationException | RuntimeException e) {
            return null; // Another DJL. A test checks that it is there in the one we build with.
        }
    }

    /** Returns the buffer, or null if libtorch owns the elements. */
    static ByteBuffer get(PtNDArray array) {
        try {
            return DATA_REF == null ? null : (ByteBuffer) DATA_REF.get(array);
        } catch (IllegalAccessException e) {
            throw new AssertionError("The field has been made accessible", e);
        }
    }
}

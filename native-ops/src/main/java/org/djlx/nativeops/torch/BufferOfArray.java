// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.pytorch.engine.PtNDArray;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;

/**
 * Finds the Java buffer that holds an array's elements. Arrays that DJL creates on the CPU from
 * Java data have one. libtorch does not own the buffer: the elements live only as long as the array
 * refers to the buffer, even if other tensors share them. DJL has no accessor, so this class reads
 * DJL's field.
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
            return null; // Another version of DJL. A test checks that our version has the field.
        }
    }

    /** Returns the buffer, or null if libtorch owns the elements. */
    static ByteBuffer get(PtNDArray array) {
        try {
            return DATA_REF == null ? null : (ByteBuffer) DATA_REF.get(array);
        } catch (IllegalAccessException e) {
            throw new AssertionError("the field has been made accessible", e);
        }
    }
}

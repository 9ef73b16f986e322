// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import java.util.Arrays;
import java.util.Locale;

/**
 * Properties of a tensor, read in one call. Each getter of {@link Torch} costs a native call and
 * argument checks.
 *
 * @param sizes the size of every dimension, not to be changed
 * @param strides the stride of every dimension, in elements, not to be changed
 * @param address the address of the first element, on the tensor's device; 0 if there are no
 *     elements
 * @param requiresGradient as {@link Torch#requiresGradient}
 */
public record TensorInfo(
        ScalarType type, long[] sizes, long[] strides, long address, boolean requiresGradient) {

    /** {@return the type and shape, such as {@code float32 (2, 3)}} */
    @Override
    public String toString() {
        return type.toString().toLowerCase(Locale.ROOT)
                + Arrays.toString(sizes).replace("[", " (").replace("]", ")");
    }

    public long count() {
        long count = 1;
        for (long size : sizes) {
            count *= size;
        }
        return count;
    }

    /**
     * {@return the number of elements of type {@link ScalarType#real}: two for a complex number}
     */
    public long realCount() {
        return byteSize() / type.real().itemSize();
    }

    /** {@return the size of all elements in bytes} */
    public long byteSize() {
        return count() * type.itemSize();
    }

    /**
     * {@return whether the elements are contiguous in row-major order, as {@link
     * Torch#isContiguous}}
     */
    public boolean isContiguous() {
        // libtorch conjugates lazily, so memory may hold the conjugates.
        return type.category() != ScalarType.Category.COMPLEX
                && Extents.isContiguous(sizes, strides);
    }

    /**
     * {@return whether the memory ranges of two arrays, from first to last element, overlap; false
     * if an array has no elements}
     */
    public boolean overlaps(TensorInfo other) {
        long span = Extents.byteSpan(sizes, strides, type.itemSize());
        long otherSpan = Extents.byteSpan(other.sizes, other.strides, other.type.itemSize());
        return span > 0
                && otherSpan > 0
                && address < other.address + otherSpan
                && other.address < address + span;
    }
}

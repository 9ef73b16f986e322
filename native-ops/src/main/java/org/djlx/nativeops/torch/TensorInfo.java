/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.torch;

/**
 * What libtorch says of a tensor, asked for at once: each question costs a call and its checks.
 *
 * @param type the element type
 * @param sizes the size of every dimension, not to be changed
 * @param strides the stride of every dimension, in elements, not to be changed
 * @param address the address of the first element, on the tensor's device; 0 if there is none
 */
public record TensorInfo(ScalarType type, long[] sizes, long[] strides, long address) {

    /**
     * Returns the number of elements.
     *
     * @return the number
     */
    public long count() {
        long count = 1;
        for (long size : sizes) {
            count *= size;
        }
        return count;
    }

    /**
     * Returns the size of all elements.
     *
     * @return the size in bytes
     */
    public long byteSize() {
        return count() * type.itemSize();
    }

    /**
     * Tells whether the elements lie one after the other in row-major order.
     *
     * @return as {@link Torch#isContiguous}
     */
    public boolean isContiguous() {
        // libtorch conjugates lazily: what is in memory may be the conjugate.
        return type.category() != ScalarType.Category.COMPLEX
                && Extents.isContiguous(sizes, strides);
    }

    /**
     * Tells whether some memory lies both between the first and the last element of this array and
     * between those of another.
     *
     * @param other the other array
     * @return whether it does; false if one of the two has no elements
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

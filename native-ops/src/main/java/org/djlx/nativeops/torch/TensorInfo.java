/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.torch;

/**
 * Properties of a tensor, read at once, because each getter of {@link Torch} costs a call and
 * checks.
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
     * Returns whether the elements are contiguous in row-major order.
     *
     * @return see {@link Torch#isContiguous}
     */
    public boolean isContiguous() {
        // libtorch conjugates lazily, so memory may hold the conjugates.
        return type.category() != ScalarType.Category.COMPLEX
                && Extents.isContiguous(sizes, strides);
    }

    /**
     * Returns whether the memory ranges from first to last element of two arrays overlap.
     *
     * @param other the other array
     * @return whether they overlap; false if one of the arrays has no elements
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

// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import java.util.Arrays;
import org.djlx.nativeops.host.Scratch;

/** Overflow-checked arithmetic on the sizes and strides of arrays, in elements. */
final class Extents {

    private Extents() {}

    static void requireSizes(long[] sizes) {
        if (sizes == null) {
            throw new IllegalArgumentException("the sizes are null");
        }
        if (sizes.length > Scratch.MAX_DIMENSIONS) {
            throw new IllegalArgumentException(
                    "%s dimensions are too many: the maximum is %s"
                            .formatted(sizes.length, Scratch.MAX_DIMENSIONS));
        }
        for (long size : sizes) {
            if (size < 0) {
                throw new IllegalArgumentException(
                        "a size is negative or unknown in the shape " + Arrays.toString(sizes));
            }
        }
    }

    static void requireStrides(long[] sizes, long[] strides) {
        if (strides == null) {
            throw new IllegalArgumentException("the strides are null");
        }
        if (strides.length != sizes.length) {
            throw new IllegalArgumentException(
                    strides.length + " strides do not match " + sizes.length + " sizes");
        }
        for (long stride : strides) {
            if (stride < 0) {
                throw new IllegalArgumentException(
                        "a stride is negative in " + Arrays.toString(strides));
            }
        }
    }

    /** Returns the strides of a contiguous array, as libtorch defines them, also if it is empty. */
    static long[] contiguousStrides(long[] sizes) {
        long[] strides = new long[sizes.length];
        long stride = 1;
        try {
            for (int i = sizes.length - 1; i >= 0; i--) {
                strides[i] = stride;
                stride = Math.multiplyExact(stride, Math.max(sizes[i], 1));
            }
        } catch (ArithmeticException e) {
            throw tooLarge(sizes, e);
        }
        return strides;
    }

    /** Returns the bytes from the first element of an array to the end of its last element. */
    static long byteSpan(long[] sizes, long[] strides, int itemSize) {
        for (long size : sizes) {
            if (size == 0) {
                return 0; // The strides do not matter.
            }
        }
        long last = 0;
        try {
            for (int i = 0; i < sizes.length; i++) {
                last = Math.addExact(last, Math.multiplyExact(sizes[i] - 1, strides[i]));
            }
            return Math.multiplyExact(Math.addExact(last, 1), (long) itemSize);
        } catch (ArithmeticException e) {
            throw tooLarge(sizes, e);
        }
    }

    static boolean isContiguous(long[] sizes, long[] strides) {
        long expected = 1;
        boolean contiguous = true;
        for (int i = sizes.length - 1; i >= 0; i--) {
            if (sizes[i] == 0) {
                return true;
            }
            if (sizes[i] != 1) {
                contiguous &= strides[i] == expected;
                expected *= sizes[i];
            }
        }
        return contiguous;
    }

    private static IllegalArgumentException tooLarge(long[] sizes, ArithmeticException cause) {
        return new IllegalArgumentException(
                "the shape " + Arrays.toString(sizes) + " needs more than 2^63 bytes", cause);
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import java.util.Arrays;

/**
 * The element types of libtorch's arrays ({@code c10::ScalarType}), including types that {@link
 * ai.djl.ndarray.types.DataType} does not have. Quantized types are left out, because their
 * elements have no meaning without the array's quantizer.
 */
public enum ScalarType {
    /** Unsigned 8-bit integer, {@code Byte}. */
    UINT8(0, 1, Category.INTEGER),
    /** Signed 8-bit integer, {@code Char}. */
    INT8(1, 1, Category.INTEGER),
    /** Signed 16-bit integer, {@code Short}. */
    INT16(2, 2, Category.INTEGER),
    /** Signed 32-bit integer, {@code Int}. */
    INT32(3, 4, Category.INTEGER),
    /** Signed 64-bit integer, {@code Long}. */
    INT64(4, 8, Category.INTEGER),
    /** IEEE 754 binary16, {@code Half}. */
    FLOAT16(5, 2, Category.FLOATING),
    /** IEEE 754 binary32, {@code Float}. */
    FLOAT32(6, 4, Category.FLOATING),
    /** IEEE 754 binary64, {@code Double}. */
    FLOAT64(7, 8, Category.FLOATING),
    /** Two {@link #FLOAT16}, real part first; {@code ComplexHalf}. */
    COMPLEX32(8, 4, Category.COMPLEX),
    /** Two {@link #FLOAT32}, real part first; {@code ComplexFloat}. */
    COMPLEX64(9, 8, Category.COMPLEX),
    /** Two {@link #FLOAT64}, real part first; {@code ComplexDouble}. */
    COMPLEX128(10, 16, Category.COMPLEX),
    /** One byte, 0 or 1. */
    BOOL(11, 1, Category.BOOLEAN),
    /** The upper half of a {@link #FLOAT32}: 8 exponent bits, 7 fraction bits. */
    BFLOAT16(15, 2, Category.FLOATING),
    /** 5 exponent bits, 2 fraction bits, with infinities. */
    FLOAT8_E5M2(23, 1, Category.FLOATING),
    /** 4 exponent bits, 3 fraction bits, no infinities; the largest value is 448. */
    FLOAT8_E4M3FN(24, 1, Category.FLOATING),
    /** 5 exponent bits, 2 fraction bits, no infinities, no negative zero. */
    FLOAT8_E5M2FNUZ(25, 1, Category.FLOATING),
    /** 4 exponent bits, 3 fraction bits, no infinities, no negative zero. */
    FLOAT8_E4M3FNUZ(26, 1, Category.FLOATING),
    /** Unsigned 16-bit integer; libtorch has few operators for it. */
    UINT16(27, 2, Category.INTEGER),
    /** Unsigned 32-bit integer; libtorch has few operators for it. */
    UINT32(28, 4, Category.INTEGER),
    /** Unsigned 64-bit integer; libtorch has few operators for it. */
    UINT64(29, 8, Category.INTEGER);

    /**
     * In the order of type promotion: a result can be stored in its own category or a later
     * category.
     */
    enum Category {
        BOOLEAN,
        INTEGER,
        FLOATING,
        COMPLEX
    }

    private static final ScalarType[] BY_CODE = new ScalarType[UINT64.code + 1];

    static {
        for (ScalarType type : values()) {
            BY_CODE[type.code] = type;
        }
    }

    private final int code;
    private final int itemSize;
    private final Category category;

    ScalarType(int code, int itemSize, Category category) {
        this.code = code;
        this.itemSize = itemSize;
        this.category = category;
    }

    /** {@return the value of {@code c10::ScalarType}, the same in every version of libtorch} */
    public int code() {
        return code;
    }

    /** {@return the size of an element in bytes} */
    public int itemSize() {
        return itemSize;
    }

    /**
     * {@return the size in bytes of a contiguous array of this type}
     *
     * @param sizes its sizes, not negative
     * @throws IllegalArgumentException if the size is 2^63 bytes or more, with sizes of 0 counted
     *     as 1
     */
    public long byteSize(long... sizes) {
        long bytes = itemSize;
        boolean empty = false;
        try {
            for (long size : sizes) {
                bytes = Math.multiplyExact(bytes, Math.max(size, 1));
                empty |= size == 0;
            }
        } catch (ArithmeticException e) {
            throw new IllegalArgumentException(
                    String.format(
                            "an array of type %s and shape %s would have more than 2^63 bytes",
                            this, Arrays.toString(sizes)),
                    e);
        }
        return empty ? 0 : bytes;
    }

    /**
     * {@return whether this is a real floating-point type: float8, float16, bfloat16, float32 or
     * float64}
     */
    public boolean isFloatingPoint() {
        return category == Category.FLOATING;
    }

    /**
     * {@return whether this is an integer type: int8 to int64 or uint8 to uint64} Booleans are not
     * integers.
     */
    public boolean isInteger() {
        return category == Category.INTEGER;
    }

    /**
     * {@return whether this is float16 or bfloat16, whose sums should be accumulated in float32}
     */
    public boolean isReducedFloatingPoint() {
        return this == FLOAT16 || this == BFLOAT16;
    }

    Category category() {
        return category;
    }

    /** {@return the type of the two parts of a complex number; for other types, the type itself} */
    public ScalarType real() {
        return switch (this) {
            case COMPLEX32 -> FLOAT16;
            case COMPLEX64 -> FLOAT32;
            case COMPLEX128 -> FLOAT64;
            default -> this;
        };
    }

    boolean isFloat8() {
        return isFloatingPoint() && itemSize == 1;
    }

    /** {@return the type with a given code, the value of {@code c10::ScalarType}} */
    public static ScalarType fromCode(int code) {
        ScalarType type = code >= 0 && code < BY_CODE.length ? BY_CODE[code] : null;
        if (type == null) {
            throw new IllegalArgumentException(
                    "no supported element type has the c10::ScalarType code " + code);
        }
        return type;
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.safetensors;

import ai.djl.ndarray.types.Shape;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Name, element type and shape of a tensor in a safetensors file, stored in row-major order.
 *
 * @param dtype the format's name of the element type, for example BF16; {@link #type} does not
 *     support all types
 * @param shape the shape; sizes may be 0, and a scalar has no dimensions
 */
public record TensorSpec(String name, String dtype, Shape shape) {

    private static final Map<String, ScalarType> TYPES =
            Map.ofEntries(
                    Map.entry("BOOL", ScalarType.BOOL),
                    Map.entry("U8", ScalarType.UINT8),
                    Map.entry("I8", ScalarType.INT8),
                    Map.entry("U16", ScalarType.UINT16),
                    Map.entry("I16", ScalarType.INT16),
                    Map.entry("U32", ScalarType.UINT32),
                    Map.entry("I32", ScalarType.INT32),
                    Map.entry("U64", ScalarType.UINT64),
                    Map.entry("I64", ScalarType.INT64),
                    Map.entry("F8_E4M3", ScalarType.FLOAT8_E4M3FN),
                    Map.entry("F8_E5M2", ScalarType.FLOAT8_E5M2),
                    Map.entry("F16", ScalarType.FLOAT16),
                    Map.entry("BF16", ScalarType.BFLOAT16),
                    Map.entry("F32", ScalarType.FLOAT32),
                    Map.entry("F64", ScalarType.FLOAT64),
                    Map.entry("C64", ScalarType.COMPLEX64));

    private static final Map<ScalarType, String> NAMES =
            TYPES.entrySet().stream()
                    .collect(Collectors.toMap(Map.Entry::getValue, Map.Entry::getKey));

    /**
     * Checks the arguments.
     *
     * @throws IllegalArgumentException if an argument is null, the name is {@code __metadata__}, or
     *     a size is negative
     */
    public TensorSpec {
        if (name == null || dtype == null || shape == null) {
            throw new IllegalArgumentException("a tensor's name, type or shape is null");
        }
        if (name.equals(SafetensorsHeader.METADATA)) {
            throw new IllegalArgumentException("no tensor can be called " + name);
        }
        for (long size : shape.getShape()) {
            if (size < 0) {
                throw new IllegalArgumentException(name + " has a negative size: " + shape);
            }
        }
    }

    /**
     * Describes a tensor to be written.
     *
     * @throws IllegalArgumentException if an argument is null, a size is negative, or the format
     *     does not have the element type
     */
    public static TensorSpec of(String name, ScalarType type, Shape shape) {
        String dtype = type == null ? null : NAMES.get(type);
        if (type != null && dtype == null) {
            throw new IllegalArgumentException(
                    name + " is of type " + type + ", which safetensors does not have");
        }
        return new TensorSpec(name, dtype, shape);
    }

    Optional<ScalarType> knownType() {
        return Optional.ofNullable(TYPES.get(dtype));
    }

    /**
     * {@return the element type}
     *
     * @throws IllegalArgumentException if libtorch does not have the type, for example a type
     *     smaller than a byte
     */
    public ScalarType type() {
        return knownType()
                .orElseThrow(
                        () ->
                                new IllegalArgumentException(
                                        ("%s has elements of type %s, which cannot be read."
                                                        + " Readable types are %s")
                                                .formatted(
                                                        name,
                                                        dtype,
                                                        TYPES.keySet().stream()
                                                                .sorted()
                                                                .toList())));
    }

    /**
     * {@return the tensor's size in the file in bytes}
     *
     * @throws IllegalArgumentException if the type is not known, or the size is 2^63 bytes or more;
     *     see {@link ScalarType#byteSize}
     */
    public long byteSize() {
        return type().byteSize(shape.getShape());
    }

    /**
     * {@return the shape of a part of the tensor, of the indices from {@code from} to {@code to -
     * 1} along a dimension}
     *
     * @throws IllegalArgumentException if the tensor does not have the dimension or the indices
     */
    public Shape part(int dimension, long from, long to) {
        long[] sizes = shape.getShape().clone();
        boolean exists = dimension >= 0 && dimension < sizes.length;
        Required.check(exists, "%s has no dimension %d", this, dimension);
        Required.check(
                from >= 0 && from <= to && to <= sizes[dimension],
                "%s has no indices %d to %d along dimension %d",
                this,
                from,
                to,
                dimension);
        sizes[dimension] = to - from;
        return new Shape(sizes);
    }

    @Override
    public String toString() {
        return name + " " + dtype + shape;
    }
}

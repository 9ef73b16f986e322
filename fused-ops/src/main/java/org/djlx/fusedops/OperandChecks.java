// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.EnumSet;
import java.util.Set;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/** Checks the arguments of one operator before communication starts. */
final class OperandChecks {

    private static final Set<ScalarType> TYPES =
            EnumSet.of(
                    ScalarType.FLOAT32,
                    ScalarType.FLOAT64,
                    ScalarType.FLOAT16,
                    ScalarType.BFLOAT16);

    private static final Set<ScalarType> NORMED =
            EnumSet.of(ScalarType.FLOAT32, ScalarType.FLOAT16, ScalarType.BFLOAT16);

    private final String operator;
    private GradientScope recording;

    OperandChecks(String operator) {
        this.operator = operator;
    }

    IllegalArgumentException wrong(String format, Object... values) {
        return new IllegalArgumentException(operator + ": " + String.format(format, values));
    }

    /** Names one of several Bs in messages. */
    static String roleOfB(int index, int count) {
        return count == 1 ? "B" : "B number " + index;
    }

    void checkNotNull(String role, Object value) {
        if (value == null) {
            throw wrong("%s is null", role);
        }
    }

    /** Returns the type, shape and address of an operand. Finding a plan needs no more. */
    TensorInfo operand(String role, NDArray array) {
        checkNotNull(role, array);
        TensorInfo info;
        try {
            info = Torch.info(array);
        } catch (IllegalArgumentException e) {
            throw wrong("%s cannot be used: %s", role, e.getMessage());
        }
        GradientScope scope = GradientScope.recording(operator, role, array).orElse(null);
        recording = scope == null ? recording : scope;
        return info;
    }

    /** Returns the scope that records a call with these operands; null if there is none. */
    GradientScope recording() {
        return recording;
    }

    /** Checks the left operand and returns its element type. */
    ScalarType checkA(String role, NDArray a, TensorInfo info, Device device) {
        checkFloating(role, info.type());
        if (info.sizes().length < 2) {
            throw wrong("%s has shape %s, but must have 2 or more dimensions", role, a.getShape());
        }
        if (!a.getDevice().equals(device)) {
            throw wrong(
                    "%s is on %s, but the group works on %s: copy it there",
                    role, a.getDevice(), device);
        }
        return info.type();
    }

    /**
     * Checks a right operand against the left one. {@code inner} is the number of rows that B must
     * have.
     */
    void checkB(String role, NDArray b, TensorInfo info, NDArray a, ScalarType type, long inner) {
        if (info.type() != type) {
            throw wrong("%s is %s, but A is %s: cast one of them", role, info.type(), type);
        }
        if (!b.getDevice().equals(a.getDevice())) {
            throw wrong(
                    "%s is on %s, but A is on %s: copy one of them",
                    role, b.getDevice(), a.getDevice());
        }
        Shape shape = b.getShape();
        if (shape.dimension() != 2) {
            throw wrong("%s has shape %s, but must be a matrix", role, shape);
        }
        if (shape.get(0) != inner) {
            throw wrong(
                    "%s has shape %s, but its first size must be %d, the last size of A",
                    role, shape, inner);
        }
    }

    /**
     * Checks an array that is normalised along its last dimension, and returns its element type.
     */
    ScalarType checkRows(String role, NDArray array, TensorInfo info, Device device) {
        if (!NORMED.contains(info.type())) {
            throw wrong("%s is %s, but must be one of %s", role, info.type(), NORMED);
        }
        int dimensions = info.sizes().length;
        if (dimensions == 0 || info.sizes()[dimensions - 1] == 0) {
            throw wrong(
                    "%s has shape %s, but must have a last dimension of 1 or more",
                    role, array.getShape());
        }
        if (!array.getDevice().equals(device)) {
            throw wrong(
                    "%s is on %s, but the group works on %s: copy it there",
                    role, array.getDevice(), device);
        }
        return info.type();
    }

    /** Checks an operand that must match the shape, type and device of the partial. */
    void checkLike(
            String role,
            NDArray array,
            TensorInfo info,
            Shape shape,
            NDArray partial,
            ScalarType type) {
        if (info.type() != type) {
            throw wrong("%s is %s, but partial is %s: cast one of them", role, info.type(), type);
        }
        if (!array.getShape().equals(shape)) {
            throw wrong(
                    "%s has shape %s, but must have %s, as partial has %s",
                    role, array.getShape(), shape, partial.getShape());
        }
        if (!array.getDevice().equals(partial.getDevice())) {
            throw wrong(
                    "%s is on %s, but partial is on %s: copy one of them",
                    role, array.getDevice(), partial.getDevice());
        }
    }

    void checkFloating(String role, ScalarType type) {
        if (!TYPES.contains(type)) {
            throw wrong("%s is %s, but must be one of %s", role, type, TYPES);
        }
    }

    void checkSum(ReduceOp op) {
        if (op != ReduceOp.SUM && op != ReduceOp.AVG) {
            throw wrong("the reduce op must be SUM or AVG, not %s", op);
        }
    }

    /** Returns a dimension counted from the front. A negative one counts from the back. */
    int dimension(String role, int dimension, int dimensions) {
        if (dimension < -dimensions || dimension >= dimensions) {
            throw wrong(
                    "%s %d is out of range for %d dimensions (%d to %d)",
                    role, dimension, dimensions, -dimensions, dimensions - 1);
        }
        return dimension < 0 ? dimension + dimensions : dimension;
    }
}

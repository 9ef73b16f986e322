// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/** Checks the arguments of one operator before communication starts. */
public final class OperandChecks {

    private static final Set<ScalarType> TYPES =
            EnumSet.of(
                    ScalarType.FLOAT32,
                    ScalarType.FLOAT64,
                    ScalarType.FLOAT16,
                    ScalarType.BFLOAT16);

    private static final Set<ScalarType> NORMED =
            EnumSet.of(ScalarType.FLOAT32, ScalarType.FLOAT16, ScalarType.BFLOAT16);

    private static final Set<ScalarType> SCALED = EnumSet.of(ScalarType.FLOAT8_E4M3FN);

    private final String operator;
    private final Set<ScalarType> types;
    private GradientScope recording;

    public OperandChecks(String operator) {
        this(operator, false);
    }

    /** Creates the checks of an operator, whose matrices are float8 if it is scaled. */
    public OperandChecks(String operator, boolean scaled) {
        this.operator = operator;
        types = scaled ? SCALED : TYPES;
    }

    public IllegalArgumentException wrong(String format, Object... values) {
        return new IllegalArgumentException(operator + ": " + String.format(format, values));
    }

    /** Names one of several Bs in messages. */
    public static String roleOfB(int index, int count) {
        return count == 1 ? "B" : "B number " + index;
    }

    public void checkNotNull(String role, Object value) {
        if (value == null) {
            throw wrong("%s is null", role);
        }
    }

    /**
     * Returns operands with their types, shapes and addresses. Finding a plan needs no more.
     *
     * @param arrays the operands, which may be null
     * @param roles the roles of the first operands; the others are Bs, from the second operand on
     */
    public Operands operands(List<NDArray> arrays, String... roles) {
        TensorInfo[] infos = null;
        String reason = null;
        try {
            infos = Torch.infos(arrays);
        } catch (IllegalArgumentException e) {
            reason = e.getMessage(); // The check of an operand below names it.
        }
        for (int i = 0; i < arrays.size(); i++) {
            String role = i < roles.length ? roles[i] : roleOfB(i - 1, arrays.size() - 1);
            if (infos == null || infos[i].requiresGradient()) {
                operand(role, arrays.get(i));
            }
        }
        if (infos == null) {
            throw wrong("%s", reason);
        }
        return new Operands(arrays, infos);
    }

    /** As {@link #operands}, for one operand. */
    public TensorInfo operand(String role, NDArray array) {
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
    public GradientScope recording() {
        return recording;
    }

    /** Checks the left operand and returns its element type. */
    public ScalarType checkA(String role, NDArray a, TensorInfo info, Device device) {
        checkFloating(role, info.type());
        checkLeft(role, new Shape(info.sizes()));
        checkDevice(role, a, device);
        return info.type();
    }

    /** Checks the shape of the left operand. */
    public void checkLeft(String role, Shape shape) {
        checkNotNull(role, shape);
        if (shape.dimension() < 2) {
            throw wrong("%s has shape %s, but must have 2 or more dimensions", role, shape);
        }
    }

    /** Checks the shape of a right operand, which must have {@code inner} rows. */
    public void checkRight(String role, Shape shape, long inner) {
        checkNotNull(role, shape);
        if (shape.dimension() != 2) {
            throw wrong("%s has shape %s, but must be a matrix", role, shape);
        }
        if (shape.get(0) != inner) {
            throw wrong(
                    "%s has shape %s, but its first size must be %d, the last size of A",
                    role, shape, inner);
        }
    }

    public void checkWorldSize(int worldSize) {
        if (worldSize < 1) {
            throw wrong("the world size is %d, but must be at least 1", worldSize);
        }
    }

    public void checkDevice(String role, NDArray array, Device device) {
        if (!array.getDevice().equals(device)) {
            throw wrong(
                    "%s is on %s, but the group works on %s: copy it there",
                    role, array.getDevice(), device);
        }
    }

    /**
     * Checks a right operand against the left one. {@code inner} is the number of rows that B must
     * have.
     */
    public void checkB(
            String role, NDArray b, TensorInfo info, NDArray a, ScalarType type, long inner) {
        if (info.type() != type) {
            throw wrong("%s is %s, but A is %s: cast one of them", role, info.type(), type);
        }
        if (!b.getDevice().equals(a.getDevice())) {
            throw wrong(
                    "%s is on %s, but A is on %s: copy one of them",
                    role, b.getDevice(), a.getDevice());
        }
        checkRight(role, b.getShape(), inner);
        if (types == SCALED && !Axes.layout(info).transposed().isRowMajor()) {
            throw wrong(
                    "%s has strides %s, but must be column-major: pass the transpose of a"
                            + " contiguous array of shape (N, K)",
                    role, Arrays.toString(info.strides()));
        }
    }

    /**
     * Checks an array that is normalised along its last dimension, and returns its element type.
     */
    public ScalarType checkRows(String role, NDArray array, TensorInfo info, Device device) {
        if (!NORMED.contains(info.type())) {
            throw wrong("%s is %s, but must be one of %s", role, info.type(), NORMED);
        }
        int dimensions = info.sizes().length;
        if (dimensions == 0 || info.sizes()[dimensions - 1] == 0) {
            throw wrong(
                    "%s has shape %s, but must have a last dimension of 1 or more",
                    role, array.getShape());
        }
        checkDevice(role, array, device);
        return info.type();
    }

    /** Checks an operand that must match the shape, type and device of the partial. */
    public void checkLike(
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

    /** Checks that a scaled operator gathers or scatters along the first dimension. */
    public void checkScaledDimension(String role, ScalarType type, int dimension) {
        if (SCALED.contains(type) && dimension != 0) {
            throw wrong("%s must be the first dimension, not %d: transpose A", role, dimension);
        }
    }

    /** Checks the scales of float8 operands, A's first: one each, or one for each row or column. */
    public void checkScales(Operands operands) {
        TensorInfo[] infos = operands.infos();
        boolean byRow = operands.isScaledByRow();
        for (int i = 0; i < infos.length; i++) {
            NDArray scale = operands.scales().get(i);
            String role = i == 0 ? "aScale" : "the scale of " + roleOfB(i - 1, infos.length - 1);
            TensorInfo info = operand(role, scale);
            if (info.type() != ScalarType.FLOAT32 || !info.isContiguous()) {
                throw wrong(
                        "%s is %s with strides %s, but must be FLOAT32 and contiguous",
                        role, info.type(), Arrays.toString(info.strides()));
            }
            if (!scale.getDevice().equals(operands.array(0).getDevice())) {
                throw wrong(
                        "%s is on %s, but A is on %s: copy one of them",
                        role, scale.getDevice(), operands.array(0).getDevice());
            }
            Shape shape = scale.getShape();
            long[] sizes = infos[i].sizes().clone();
            if (sizes.length < 2) {
                throw wrong("%s belongs to an array with %d dimensions", role, sizes.length);
            }
            sizes[i == 0 ? sizes.length - 1 : 0] = 1;
            boolean fits =
                    byRow
                            ? shape.equals(new Shape(sizes))
                            : shape.dimension() < 2 && shape.size() == 1;
            if (!fits) {
                throw wrong(
                        "%s has shape %s, but must be %s, as aScale has shape %s",
                        role,
                        shape,
                        byRow ? new Shape(sizes) : "one value of shape () or (1)",
                        operands.scales().get(0).getShape());
            }
        }
        if (recording != null) {
            throw wrong("an input requires a gradient, but the operator has none");
        }
    }

    public void checkFloating(String role, ScalarType type) {
        if (!types.contains(type)) {
            throw wrong("%s is %s, but must be one of %s", role, type, types);
        }
    }

    public void checkSum(ReduceOp op) {
        if (op != ReduceOp.SUM && op != ReduceOp.AVG) {
            throw wrong("the reduce op must be SUM or AVG, not %s", op);
        }
    }

    /** Returns a dimension counted from the front. A negative one counts from the back. */
    public int dimension(String role, int dimension, int dimensions) {
        if (dimension < -dimensions || dimension >= dimensions) {
            throw wrong(
                    "%s %d is out of range for %d dimensions (%d to %d)",
                    role, dimension, dimensions, -dimensions, dimensions - 1);
        }
        return dimension < 0 ? dimension + dimensions : dimension;
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import org.djlx.nativeops.host.Scratch;

/**
 * In-place operators, such as PyTorch's {@code add_}. Two arrays have the same shape and are on the
 * same device; the result is computed in the wider of their types and rounded to the type of {@code
 * acc}. Nothing is allocated unless the types differ. Operators of two arrays refuse types as
 * {@link #add} does. For errors, threads and gradients see {@link Torch}.
 */
public final class TorchInPlace {

    private TorchInPlace() {}

    /**
     * Adds an array to another: {@code acc += other}, as PyTorch's {@code add_}.
     *
     * @throws IllegalArgumentException also if {@code acc} cannot store the result (complex in
     *     real, floating-point in integer, any number in bool), or if a type is a float8
     * @throws EngineException also if libtorch does not support the types: version 2.7 does not add
     *     or multiply uint16, uint32 and uint64, nor promote them to another type
     */
    public static void add(NDArray acc, NDArray other) {
        Tensors.requireArithmetic(
                TorchChecks.tensor(acc, "acc"), TorchChecks.tensor(other, "other"));
        try {
            acc.addi(other);
        } catch (EngineException e) {
            throw failure("TorchInPlace.add", e);
        }
    }

    /** Multiplies an array by another, element by element: {@code acc *= other}. */
    public static void mul(NDArray acc, NDArray other) {
        Tensors.requireArithmetic(
                TorchChecks.tensor(acc, "acc"), TorchChecks.tensor(other, "other"));
        try {
            acc.muli(other);
        } catch (EngineException e) {
            throw failure("TorchInPlace.mul", e);
        }
    }

    private static EngineException failure(String operation, EngineException cause) {
        // The first line is libtorch's message; a native stack trace follows.
        String reason = String.valueOf(cause.getMessage()).lines().findFirst().orElse("");
        return new EngineException(operation + " failed in libtorch: " + reason, cause);
    }

    /**
     * Computes the minimum of every two elements: {@code acc = min(acc, other)}. NaN is propagated.
     */
    public static void min(NDArray acc, NDArray other) {
        call(TorchDispatcher.Operator.MINIMUM_OUT, "TorchInPlace.min", acc, other, true);
    }

    /**
     * Computes the maximum of every two elements: {@code acc = max(acc, other)}, not of complex
     * types. NaN is propagated.
     */
    public static void max(NDArray acc, NDArray other) {
        call(TorchDispatcher.Operator.MAXIMUM_OUT, "TorchInPlace.max", acc, other, true);
    }

    /** Computes the bitwise AND of every two integers or booleans: {@code acc &= other}. */
    public static void bitAnd(NDArray acc, NDArray other) {
        call(TorchDispatcher.Operator.BITWISE_AND_, "TorchInPlace.bitAnd", acc, other, false);
    }

    /** Computes the bitwise OR of every two integers or booleans: {@code acc |= other}. */
    public static void bitOr(NDArray acc, NDArray other) {
        call(TorchDispatcher.Operator.BITWISE_OR_, "TorchInPlace.bitOr", acc, other, false);
    }

    /** Computes the bitwise XOR of every two integers or booleans: {@code acc ^= other}. */
    public static void bitXor(NDArray acc, NDArray other) {
        call(TorchDispatcher.Operator.BITWISE_XOR_, "TorchInPlace.bitXor", acc, other, false);
    }

    /**
     * Calls an operator with an output argument (real types), or an in-place one (integers, bool).
     */
    private static void call(
            TorchDispatcher.Operator operator,
            String operation,
            NDArray acc,
            NDArray other,
            boolean hasOutput) {
        long self = TorchChecks.tensor(acc, "acc");
        long operand = TorchChecks.tensor(other, "other");
        Tensors.requireArithmetic(self, operand);
        ScalarType type = Tensors.scalarType(self);
        ScalarType.Category last =
                hasOutput ? ScalarType.Category.FLOATING : ScalarType.Category.INTEGER;
        if (type.category().compareTo(last) > 0) {
            throw new IllegalArgumentException(
                    operation + " does not support the element type " + type);
        }
        long[] tensors = hasOutput ? new long[] {self, operand, self} : new long[] {self, operand};
        TorchDispatcher.inPlace(operator, operation, tensors);
    }

    /** Sets every element of an array of any type to zero. */
    public static void zero(NDArray array) {
        TorchDispatcher.inPlace(
                TorchDispatcher.Operator.ZERO_,
                "TorchInPlace.zero",
                TorchChecks.tensor(array, "the array"));
    }

    /**
     * Multiplies every element of an array of a floating-point type other than float8 by a number:
     * {@code acc *= factor}. The factor is rounded to float32 first unless the array is of float64.
     */
    public static void mul(NDArray acc, double factor) {
        scale(TorchDispatcher.Operator.MUL_, "TorchInPlace.mul", acc, factor, "multiplied");
    }

    /**
     * Divides every element of an array by a number: {@code acc /= divisor}, for averages.
     *
     * @param acc the array to change, of a floating-point type other than float8; 16-bit types are
     *     computed in float32. On a GPU libtorch multiplies by the reciprocal
     * @param divisor the divisor; with 0 the results are infinite or NaN
     */
    public static void div(NDArray acc, double divisor) {
        scale(TorchDispatcher.Operator.DIV_, "TorchInPlace.div", acc, divisor, "divided");
    }

    private static void scale(
            TorchDispatcher.Operator operator,
            String operation,
            NDArray acc,
            double number,
            String verb) {
        long self = TorchChecks.tensor(acc, "acc");
        ScalarType type = Tensors.scalarType(self);
        if (!type.isFloatingPoint() || type.isFloat8()) {
            throw new IllegalArgumentException(
                    "an array of " + type + " cannot be " + verb + "; use a floating-point type");
        }
        // A CPU scalar, also for an array on a GPU: libtorch passes its value to the kernel. DJL's
        // divi would copy it to the GPU and block.
        Scratch scratch = Scratch.get();
        AotiTorch.check(
                AotiTorch.aoti_torch_scalar_to_tensor_float64(number, scratch.slot(0)), operation);
        long scalar = scratch.getLong(0);
        try {
            TorchDispatcher.inPlace(operator, operation, self, scalar);
        } finally {
            AotiTorch.check(AotiTensor.djlx_delete_handle(scalar), operation);
        }
    }
}

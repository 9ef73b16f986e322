// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.Device;
import ai.djl.pytorch.engine.PtDeviceType;
import java.util.Arrays;
import org.djlx.nativeops.NativeCalls;
import org.djlx.nativeops.host.Scratch;

/** Reads properties of tensors, given by their handles, and checks that tensors match. */
final class Tensors {

    private Tensors() {}

    /** Returns the size of every dimension. */
    static long[] sizes(long tensor) {
        Scratch scratch = Scratch.get();
        int dimensions = dimensions(tensor);
        AotiTorch.check(AotiTensor.aoti_torch_get_sizes(tensor, scratch.slot(0)), "Torch.sizes");
        return scratch.longsAt(scratch.getLong(0), dimensions);
    }

    private static int dimensions(long tensor) {
        Scratch scratch = Scratch.get();
        AotiTorch.check(AotiTensor.aoti_torch_get_dim(tensor, scratch.slot(0)), "Torch.sizes");
        return (int) scratch.getLong(0);
    }

    /**
     * Returns whether a tensor requires a gradient. The stable ABI has no function for this, and a
     * call of the dispatcher costs ten times as much. A handle is an {@code at::Tensor}, whose only
     * member points to the {@code c10::TensorImpl}.
     */
    static boolean requiresGradient(long tensor) {
        long implementation = Scratch.get().longsAt(tensor, 1)[0];
        NativeCalls.countOther();
        int result = AotiTensor._ZNK3c1010TensorImpl13requires_gradEv(implementation);
        return (byte) result != 0; // A C++ bool is in the lowest byte.
    }

    /** Returns type, sizes, strides and address. */
    static TensorInfo info(long tensor) {
        Scratch scratch = Scratch.get();
        AotiTorch.check(AotiTensor.aoti_torch_get_dim(tensor, scratch.slot(0)), "Torch.info");
        AotiTorch.check(AotiTensor.aoti_torch_get_sizes(tensor, scratch.slot(1)), "Torch.info");
        AotiTorch.check(AotiTensor.aoti_torch_get_strides(tensor, scratch.slot(2)), "Torch.info");
        AotiTorch.check(AotiTensor.aoti_torch_get_data_ptr(tensor, scratch.slot(3)), "Torch.info");
        AotiTorch.check(AotiTensor.aoti_torch_get_dtype(tensor, scratch.slot(4)), "Torch.info");
        long[] results = scratch.slots();
        int dimensions = (int) results[0];
        return new TensorInfo(
                ScalarType.fromCode((int) results[4]),
                scratch.longsAt(results[1], dimensions),
                scratch.longsAt(results[2], dimensions),
                results[3]);
    }

    /** Returns the element type; throws if the tensor is quantized. */
    static ScalarType scalarType(long tensor) {
        Scratch scratch = Scratch.get();
        AotiTorch.check(
                AotiTensor.aoti_torch_get_dtype(tensor, scratch.slot(0)), "Torch.scalarType");
        return ScalarType.fromCode(scratch.getInt(0));
    }

    /** Returns the device. */
    static Device device(long tensor) {
        long code = deviceCode(tensor);
        return Device.of(PtDeviceType.fromDeviceType((int) (code >> 32)), (int) code);
    }

    /** Returns the device: libtorch's type code in the upper half, the index in the lower half. */
    private static long deviceCode(long tensor) {
        Scratch scratch = Scratch.get();
        AotiTorch.check(
                AotiTensor.aoti_torch_get_device_type(tensor, scratch.slot(0)), "Torch.device");
        AotiTorch.check(
                AotiTensor.aoti_torch_get_device_index(tensor, scratch.slot(1)), "Torch.device");
        return (long) scratch.getInt(0) << 32 | scratch.getInt(1) & 0xffffffffL;
    }

    /** Checks the shapes of {@code out = a b}. */
    static void requireMatrices(long[] out, long[] a, long[] b) {
        boolean matrices = out.length == 2 && a.length == 2 && b.length == 2;
        if (!matrices || a[1] != b[0] || out[0] != a[0] || out[1] != b[1]) {
            throw new IllegalArgumentException(
                    String.format(
                            "out of shape %s is not the product of shapes %s and %s",
                            Arrays.toString(out), Arrays.toString(a), Arrays.toString(b)));
        }
    }

    /** Checks the additional requirements of {@link Torch#attentionOfLast}. */
    static void requireAttentionOfLast(long[] query, long[] key) {
        boolean empty = query[0] == 0 || query[1] == 0 || query[2] == 0;
        if (empty || query[2] > key[2] || query[3] == 0 || query[3] % 8 != 0 || query[3] > 256) {
            throw new IllegalArgumentException(
                    String.format(
                            "attentionOfLast requires at least one query, no fewer keys than"
                                    + " queries, and a head size that is a multiple of 8 up to 256,"
                                    + " not a query of shape %s and keys of shape %s",
                            Arrays.toString(query), Arrays.toString(key)));
        }
    }

    /** Checks that the rows of a 16-bit tensor can be read 16 bytes at a time. */
    static void requireAligned(String name, long tensor) {
        TensorInfo info = info(tensor);
        long[] sizes = info.sizes();
        long[] strides = info.strides();
        int last = sizes.length - 1;
        boolean aligned = strides[last] == 1 && info.address() % 16 == 0;
        for (int i = 0; i < last; i++) {
            aligned &= sizes[i] == 1 || strides[i] % 8 == 0;
        }
        if (!aligned) {
            throw new IllegalArgumentException(
                    String.format(
                            "the rows of %s must be contiguous and begin at multiples of 16 bytes;"
                                    + " copy it with Torch.cast: shape %s, strides %s",
                            name, Arrays.toString(sizes), Arrays.toString(strides)));
        }
    }

    /** Checks that a query, keys and values are (batch, heads, positions, size) of one type. */
    static void requireAttention(long query, long key, long value) {
        long[] q = sizes(query);
        long[] k = sizes(key);
        boolean fits =
                q.length == 4
                        && k.length == 4
                        && Arrays.equals(k, sizes(value))
                        && q[0] == k[0]
                        && (q[1] == k[1] || (k[1] > 0 && q[1] % k[1] == 0))
                        && q[3] == k[3];
        if (!fits) {
            throw new IllegalArgumentException(
                    String.format(
                            "attention requires a query, keys and values of shape (batch, heads,"
                                    + " positions, size); keys and values may have other positions"
                                    + " than the query, and fewer heads by a factor; not %s, %s and"
                                    + " %s",
                            Arrays.toString(q), Arrays.toString(k), Arrays.toString(sizes(value))));
        }
        ScalarType type = scalarType(query);
        if (type != scalarType(key) || type != scalarType(value)) {
            throw new IllegalArgumentException(
                    String.format(
                            "the element types differ: the query is %s, the key %s, the value %s",
                            type, scalarType(key), scalarType(value)));
        }
        if (!type.isFloatingPoint() || type.isFloat8()) {
            throw new IllegalArgumentException(
                    "attention does not support the element type " + type);
        }
        requireSameDevice("the query", query, "the key", key);
        requireSameDevice("the query", query, "the value", value);
    }

    /** Checks that {@code acc op= other} is defined, and that acc can store the result. */
    static void requireArithmetic(long self, long operand) {
        ScalarType selfType = scalarType(self);
        ScalarType otherType = scalarType(operand);
        if (selfType.isFloat8() || otherType.isFloat8()) {
            throw new IllegalArgumentException(
                    "arithmetic does not support the element type "
                            + (selfType.isFloat8() ? selfType : otherType));
        }
        if (otherType.category().compareTo(selfType.category()) > 0) {
            throw new IllegalArgumentException(
                    "a result of type " + otherType + " cannot be stored in acc of " + selfType);
        }
        requireSameShape("acc", self, "other", operand);
        requireSameDevice("acc", self, "other", operand);
    }

    static void requireSameShape(String name1, long tensor1, String name2, long tensor2) {
        Scratch scratch = Scratch.get();
        int dimensions = dimensions(tensor1);
        boolean same = dimensions == dimensions(tensor2);
        AotiTorch.check(AotiTensor.aoti_torch_get_sizes(tensor1, scratch.slot(0)), "Torch.sizes");
        AotiTorch.check(AotiTensor.aoti_torch_get_sizes(tensor2, scratch.slot(1)), "Torch.sizes");
        if (!same || !scratch.sameLongs(scratch.getLong(0), scratch.getLong(1), dimensions)) {
            throw new IllegalArgumentException(
                    String.format(
                            "the shapes differ: %s is %s, %s is %s",
                            name1,
                            Arrays.toString(sizes(tensor1)),
                            name2,
                            Arrays.toString(sizes(tensor2))));
        }
    }

    static void requireSameDevice(String name1, long tensor1, String name2, long tensor2) {
        if (deviceCode(tensor1) != deviceCode(tensor2)) {
            throw new IllegalArgumentException(
                    String.format(
                            "the devices differ: %s is on %s, %s on %s",
                            name1, device(tensor1), name2, device(tensor2)));
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.Device;
import ai.djl.pytorch.engine.PtDeviceType;
import java.util.Arrays;
import org.djlx.nativeops.host.Scratch;

/** Reads properties of tensors, given by their handles, and checks that tensors match. */
final class Tensors {

    // Offsets of a tensor's words. Word 0 is the element type.
    private static final int ADDRESS = 1;
    private static final int GRADIENT = 2;
    private static final int DEVICE = 3; // type and index
    private static final int DIMENSIONS = 5;
    private static final int HEADER = 6; // before sizes and strides

    private static final int CUDA = 1; // libtorch's number of the device type

    private Tensors() {}

    /** Returns the properties of tensors, which one native call reads for 16 tensors. */
    static TensorInfo[] infos(long... tensors) {
        TensorInfo[] infos = new TensorInfo[tensors.length];
        for (int i = 0; i < infos.length; ) {
            int end = Math.min(infos.length, i + Scratch.SLOTS);
            long[] words = read(Arrays.copyOfRange(tensors, i, end));
            for (int next = 0; i < end; i++) {
                int sizes = next + HEADER;
                int strides = sizes + (int) words[next + DIMENSIONS];
                int first = next;
                next = strides + (int) words[next + DIMENSIONS];
                infos[i] =
                        new TensorInfo(
                                ScalarType.fromCode((int) words[first]),
                                Arrays.copyOfRange(words, sizes, strides),
                                Arrays.copyOfRange(words, strides, next),
                                words[first + ADDRESS],
                                words[first + GRADIENT] != 0);
            }
        }
        return infos;
    }

    /**
     * Reads up to 16 tensors; see {@code djlx_read_tensors}. The next call overwrites the result.
     */
    private static long[] read(long... tensors) {
        Scratch scratch = Scratch.get();
        long handles = scratch.put(0, tensors);
        int words =
                AotiTensor.djlx_read_tensors(tensors.length, handles, scratch.slot(Scratch.SLOTS));
        if (words == -2) {
            throw new IllegalArgumentException(
                    tensors.length + " tensors have more dimensions in all than can be read");
        }
        AotiTorch.check(words < 0 ? 1 : 0, "Torch.info");
        return scratch.read(Scratch.SLOTS, words);
    }

    static long address(long tensor) {
        return read(tensor)[ADDRESS];
    }

    static long[] sizes(long tensor) {
        long[] words = read(tensor);
        return Arrays.copyOfRange(words, HEADER, HEADER + (int) words[DIMENSIONS]);
    }

    static boolean requiresGradient(long tensor) {
        return read(tensor)[GRADIENT] != 0;
    }

    /** Returns the element type; throws if the tensor is quantized. */
    static ScalarType scalarType(long tensor) {
        return ScalarType.fromCode((int) read(tensor)[0]);
    }

    static Device device(long tensor) {
        long[] words = read(tensor);
        return Device.of(PtDeviceType.fromDeviceType((int) words[DEVICE]), (int) words[DEVICE + 1]);
    }

    /**
     * Checks that tensors have a {@link ScalarType} and the same shape. Returns whether they are on
     * two GPUs.
     */
    static boolean checkCopy(long to, long from) {
        long[] words = read(to, from);
        int next = HEADER + 2 * (int) words[DIMENSIONS];
        ScalarType.fromCode((int) words[0]);
        ScalarType.fromCode((int) words[next]);
        boolean gpus = words[DEVICE] == CUDA && words[next + DEVICE] == CUDA;
        boolean two = gpus && words[DEVICE + 1] != words[next + DEVICE + 1];
        requireSameShape("the destination", to, "the source", from);
        return two;
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

    /** Checks the additional requirements of an operation on packed sequences. */
    static void requirePacked(String name, long[] query, long[] key, PackedSequences packed) {
        boolean fits = query[0] == 1 && query[1] > 0 && query[2] == packed.queryRows;
        fits &= key[2] == packed.keyRows;
        if (!fits || query[3] == 0 || query[3] % 8 != 0 || query[3] > 256) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s requires a batch of 1, the %d queries and %d keys of its packed"
                                    + " sequences, and a head size that is a multiple of 8 up to"
                                    + " 256, not a query of shape %s and keys of shape %s",
                            name,
                            packed.queryRows,
                            packed.keyRows,
                            Arrays.toString(query),
                            Arrays.toString(key)));
        }
    }

    /** Checks that the rows of a 16-bit tensor can be read 16 bytes at a time. */
    static void requireAligned(String name, long tensor) {
        TensorInfo info = infos(tensor)[0];
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

    /** Checks that a mask can be added to the scores of attention. */
    static void requireMask(long query, long key, long mask) {
        long[] of = sizes(mask);
        long[] scores = {sizes(query)[0], sizes(query)[1], sizes(query)[2], sizes(key)[2]};
        boolean fits = of.length == 4 && scalarType(mask) == scalarType(query);
        for (int i = 0; fits && i < 4; i++) {
            fits = of[i] == 1 || of[i] == scores[i];
        }
        if (!fits) {
            throw new IllegalArgumentException(
                    String.format(
                            "attention requires a mask of %s that broadcasts to the shape %s, not"
                                    + " one of %s of shape %s",
                            scalarType(query),
                            Arrays.toString(scores),
                            scalarType(mask),
                            Arrays.toString(of)));
        }
        requireSameDevice("the query", query, "the mask", mask);
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
        if (!Arrays.equals(sizes(tensor1), sizes(tensor2))) {
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
        if (!device(tensor1).equals(device(tensor2))) {
            throw new IllegalArgumentException(
                    String.format(
                            "the devices differ: %s is on %s, %s on %s",
                            name1, device(tensor1), name2, device(tensor2)));
        }
    }
}

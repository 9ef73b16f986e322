// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import java.util.Arrays;
import org.bytedeco.cuda.cudart.CUtensorMap;
import org.bytedeco.cuda.global.cudart;
import org.djlx.nativeops.torch.ScalarType;

/**
 * A tensor map in a {@link KernelStruct}, for a GPU's bulk copy engine (TMA; compute capability 9.0
 * and later). It describes the memory layout of a tensor, and the box that one copy moves. Boxes
 * have the 128-byte swizzle in shared memory, or, for words, lie there row by row. Elements outside
 * the tensor are read as zeros and not written. Changing the address allocates nothing. Not
 * thread-safe.
 */
public final class TensorMap {

    /**
     * The size of a tensor map in bytes. Its offset in the struct must be a multiple of half this
     * size.
     */
    public static final int BYTES = 128;

    /** The alignment of addresses and strides, in bytes. */
    public static final int ALIGNMENT = 16;

    private final KernelStruct struct; // keeps the memory alive
    private final CUtensorMap map;
    private final CudaDriver.Address pointer = new CudaDriver.Address(0);
    private final int type;
    private final long[] sizes;
    private final long[] strides;
    private final int[] box;
    private final int[] steps;
    private long address; // 0 until set

    /**
     * Creates a tensor map without an address; {@link #place} sets it. Dimensions are in the
     * engine's order: the contiguous dimension first.
     *
     * @param type {@link ScalarType#FLOAT16}, {@link ScalarType#BFLOAT16} or {@link
     *     ScalarType#FLOAT8_E4M3FN}, with swizzle; or {@link ScalarType#INT32}: raw words of 4
     *     bytes, without
     * @param sizes the size of each dimension, at least 1
     * @param strides the stride of each dimension except the first, in bytes; multiples of {@link
     *     #ALIGNMENT}
     * @param box the size of the box in each dimension, 1 to 256; with swizzle at most 128 bytes in
     *     the first
     */
    public TensorMap(
            KernelStruct struct,
            int offset,
            ScalarType type,
            long[] sizes,
            long[] strides,
            int... box) {
        this.type = code(type);
        if (strides.length != sizes.length - 1 || box.length != sizes.length) {
            throw new IllegalArgumentException(
                    String.format(
                            "%d sizes, %d strides and %d box sizes do not match",
                            sizes.length, strides.length, box.length));
        }
        for (long stride : strides) {
            if (stride <= 0 || stride % ALIGNMENT != 0) {
                throw new IllegalArgumentException(
                        "strides must be multiples of " + ALIGNMENT + " bytes, not " + stride);
            }
        }
        if (offset % (BYTES / 2) != 0) {
            throw new IllegalArgumentException(
                    "the offset of a tensor map must be a multiple of %s, not %s"
                            .formatted(BYTES / 2, offset));
        }
        this.struct = struct;
        this.sizes = sizes.clone();
        this.strides = strides.clone();
        this.box = box.clone();
        steps = new int[sizes.length];
        Arrays.fill(steps, 1);
        map = new CUtensorMap(CudaDriver.pointer(struct.address(offset, BYTES)));
    }

    private static int code(ScalarType type) {
        return switch (type) {
            case FLOAT16 -> cudart.CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
            case BFLOAT16 -> cudart.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
            case FLOAT8_E4M3FN -> cudart.CU_TENSOR_MAP_DATA_TYPE_UINT8;
            case INT32 -> cudart.CU_TENSOR_MAP_DATA_TYPE_INT32;
            default ->
                    throw new IllegalArgumentException(
                            "a tensor map does not support the element type " + type);
        };
    }

    /**
     * Sets the address of the tensor. Cheap if it has not changed.
     *
     * @param address the address of the first element, a multiple of {@link #ALIGNMENT}
     * @throws IllegalArgumentException if the address is 0 or not aligned
     */
    public void place(long address) {
        if (address == this.address) {
            return;
        }
        if (address == 0 || address % ALIGNMENT != 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "the address of a tensor map must be a multiple of %2$d and not 0, not"
                                    + " 0x%1$x",
                            address, ALIGNMENT));
        }
        pointer.to(address);
        if (this.address == 0) {
            CudaDriver.check(
                    cudart.cuTensorMapEncodeTiled(
                            map,
                            type,
                            sizes.length,
                            pointer,
                            sizes,
                            strides,
                            box,
                            steps,
                            cudart.CU_TENSOR_MAP_INTERLEAVE_NONE,
                            type == cudart.CU_TENSOR_MAP_DATA_TYPE_INT32
                                    ? cudart.CU_TENSOR_MAP_SWIZZLE_NONE
                                    : cudart.CU_TENSOR_MAP_SWIZZLE_128B,
                            cudart.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            cudart.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
                    "cuTensorMapEncodeTiled");
        } else {
            CudaDriver.check(
                    cudart.cuTensorMapReplaceAddress(map, pointer), "cuTensorMapReplaceAddress");
        }
        this.address = address;
    }

    @Override
    public String toString() {
        return String.format(
                "a tensor of %s with strides of %s bytes in a struct of %d bytes",
                Arrays.toString(sizes), Arrays.toString(strides), struct.byteSize());
    }
}

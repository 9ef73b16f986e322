/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

import java.util.Arrays;
import org.bytedeco.cuda.cudart.CUtensorMap;
import org.bytedeco.cuda.global.cudart;
import org.djlx.nativeops.torch.ScalarType;

/**
 * A member of a {@link KernelStruct} that tells a GPU's bulk copy engine (TMA; compute capability
 * 9.0 and later) how a tensor of 16-bit elements lies in memory, and which box a copy moves. Boxes
 * are swizzled by 128 bytes in shared memory; what lies outside the tensor is read as zeros and not
 * written. Nothing is allocated when the address changes. For one thread at a time.
 */
public final class TensorMap {

    /** The size of the member, in bytes; its offset is a multiple of half of it. */
    public static final int BYTES = 128;

    /** What addresses and strides are multiples of, in bytes. */
    public static final int ALIGNMENT = 16;

    private final KernelStruct struct; // keeps the memory alive
    private final CUtensorMap map;
    private final CudaDriver.Address pointer = new CudaDriver.Address(0);
    private final int type;
    private final long[] sizes;
    private final long[] strides;
    private final int[] box;
    private final int[] steps;
    private long address; // 0 until there is one

    /**
     * Describes a tensor whose address comes {@linkplain #place later}. Dimensions are in the
     * engine's order, the innermost first, whose elements lie together.
     *
     * @param struct the struct
     * @param offset the member's offset
     * @param type {@link ScalarType#FLOAT16} or {@link ScalarType#BFLOAT16}
     * @param sizes the size of each dimension, at least 1
     * @param strides of each dimension but the first, in bytes; multiples of {@link #ALIGNMENT}
     * @param box the box's size in each dimension, 1 to 256, of at most 128 bytes in the first
     * @throws IllegalArgumentException if an argument is wrong
     * @throws IndexOutOfBoundsException if the member lies outside the struct
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
                            "%d sizes, %d strides and %d sizes of a box do not belong together",
                            sizes.length, strides.length, box.length));
        }
        for (long stride : strides) {
            if (stride <= 0 || stride % ALIGNMENT != 0) {
                throw new IllegalArgumentException(
                        "strides are multiples of " + ALIGNMENT + " bytes, not " + stride);
            }
        }
        if (offset % (BYTES / 2) != 0) {
            throw new IllegalArgumentException("a tensor map at " + offset + " bytes");
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
            default -> throw new IllegalArgumentException("a tensor map of " + type);
        };
    }

    /**
     * Says where the tensor is; costs little if it is where it was.
     *
     * @param address the address of its first element, a multiple of {@link #ALIGNMENT}
     * @throws IllegalArgumentException if it is not
     */
    public void place(long address) {
        if (address == this.address) {
            return;
        }
        if (address == 0 || address % ALIGNMENT != 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "a tensor map at the address 0x%x, not a multiple of %d",
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
                            cudart.CU_TENSOR_MAP_SWIZZLE_128B,
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

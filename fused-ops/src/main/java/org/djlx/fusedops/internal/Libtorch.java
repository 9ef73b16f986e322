/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.internal;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Reductions;
import org.djlx.nativeops.MatrixLayout;
import org.djlx.nativeops.NativeMemory;
import org.djlx.nativeops.NoGradient;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/** Computes by libtorch on memory that is given by address. */
final class Libtorch {

    private Libtorch() {}

    private static NativeMemory memory(Device device, long address, long byteSize) {
        return new NativeMemory(address, byteSize, device, () -> {});
    }

    /** A view of a matrix, which is not empty. */
    static NDArray view(
            NDManager manager, Device device, ScalarType type, long address, MatrixLayout layout) {
        long elements =
                (layout.rows() - 1) * layout.rowStride()
                        + (layout.columns() - 1) * layout.columnStride()
                        + 1;
        return Torch.view(
                manager,
                memory(device, address, elements * type.itemSize()),
                0,
                new long[] {layout.rows(), layout.columns()},
                new long[] {layout.rowStride(), layout.columnStride()},
                type);
    }

    /** Sets bytes of the host's memory to 0. */
    static void clear(long address, long byteSize) {
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
            Shape shape = new Shape(byteSize);
            NativeMemory memory = memory(Device.cpu(), address, byteSize);
            NDArray bytes = Torch.view(manager, memory, 0, shape, ScalarType.UINT8);
            NDArray zeros = manager.zeros(shape, DataType.UINT8);
            NoGradient.run(() -> Torch.copy(bytes, zeros));
        }
    }

    /** Sums parts that lie at equal distances, in rank order. */
    static void reduce(
            Device device,
            ScalarType type,
            long out,
            long first,
            long distance,
            long count,
            int parts,
            boolean average) {
        if (count == 0) {
            return; // There may be no address.
        }
        try (NDManager manager = NDManager.newBaseManager(device, "PyTorch")) {
            Shape shape = new Shape(count);
            long byteSize = count * type.itemSize();
            List<NDArray> views = new ArrayList<>();
            for (int part = 0; part < parts; part++) {
                NativeMemory memory = memory(device, first + part * distance, byteSize);
                views.add(Torch.view(manager, memory, 0, shape, type));
            }
            NDArray result = Torch.view(manager, memory(device, out, byteSize), 0, shape, type);
            ReduceOp op = average ? ReduceOp.AVG : ReduceOp.SUM;
            NoGradient.run(() -> Reductions.reduce(result, views, op));
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.spi.Reductions;
import org.djlx.nativeops.cuda.MatrixLayout;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;

/** Runs libtorch's operators on memory given by address, on one device. */
final class Libtorch {

    private final Device device;
    private final NDManager
            manager; // shared by all calls: creating one takes longer than a small matmul

    Libtorch(Device device, NDManager manager) {
        this.device = device;
        this.manager = manager;
    }

    private NativeMemory memory(long address, long byteSize) {
        return new NativeMemory(address, byteSize, device, () -> {});
    }

    /** Returns a view of a non-empty matrix. */
    private NDArray view(ScalarType type, long address, MatrixLayout layout) {
        long elements =
                (layout.rows() - 1) * layout.rowStride()
                        + (layout.columns() - 1) * layout.columnStride()
                        + 1;
        return Torch.view(
                manager,
                memory(address, elements * type.itemSize()),
                0,
                new long[] {layout.rows(), layout.columns()},
                new long[] {layout.rowStride(), layout.columnStride()},
                type);
    }

    private NDArray view(ScalarType type, long address, Shape shape) {
        NativeMemory memory = memory(address, shape.size() * type.itemSize());
        return Torch.view(manager, memory, 0, shape, type);
    }

    /** Multiplies non-empty matrices. */
    void multiply(
            ScalarType type,
            long out,
            MatrixLayout outLayout,
            long a,
            MatrixLayout aLayout,
            long b,
            MatrixLayout bLayout) {
        try (NDArray result = view(type, out, outLayout);
                NDArray left = view(type, a, aLayout);
                NDArray right = view(type, b, bLayout)) {
            NoGradient.run(() -> Torch.mmOut(result, left, right));
        }
    }

    /**
     * Multiplies non-empty float8 matrices and rounds the scaled product to bfloat16.
     *
     * @param kernel whether libtorch has a kernel for the layouts. Otherwise the operands are
     *     converted to float32, which is exact.
     */
    void multiplyScaled(
            long out,
            MatrixLayout outLayout,
            long a,
            MatrixLayout aLayout,
            long b,
            MatrixLayout bLayout,
            Product.Scales scales,
            boolean kernel) {
        long m = outLayout.rows();
        long n = outLayout.columns();
        long step = scales.byRow() ? 1 : 0;
        MatrixLayout ofRows = new MatrixLayout(scales.byRow() ? m : 1, 1, 1, 1);
        MatrixLayout ofColumns = new MatrixLayout(1, scales.byRow() ? n : 1, n, 1);
        try (NDArray result = view(ScalarType.BFLOAT16, out, outLayout);
                NDArray left = view(ScalarType.FLOAT8_E4M3FN, a, aLayout);
                NDArray right = view(ScalarType.FLOAT8_E4M3FN, b, bLayout)) {
            if (kernel) {
                try (NDArray ofA = view(ScalarType.FLOAT32, scales.a(), ofRows);
                        NDArray ofB = view(ScalarType.FLOAT32, scales.b(), ofColumns)) {
                    NoGradient.run(() -> Torch.scaledMmOut(result, left, right, ofA, ofB));
                }
                return;
            }
            // A stride of 0 repeats a scale.
            MatrixLayout allRows = new MatrixLayout(m, n, step, 0);
            MatrixLayout allColumns = new MatrixLayout(m, n, 0, step);
            try (NDArray product = Torch.empty(manager, new Shape(m, n), ScalarType.FLOAT32);
                    NDArray wideLeft = NoGradient.get(() -> Torch.cast(left, ScalarType.FLOAT32));
                    NDArray wideRight =
                            NoGradient.get(() -> Torch.cast(right, ScalarType.FLOAT32));
                    NDArray ofA = view(ScalarType.FLOAT32, scales.a(), allRows);
                    NDArray ofB = view(ScalarType.FLOAT32, scales.b(), allColumns)) {
                NoGradient.run(
                        () -> {
                            Torch.mmOut(product, wideLeft, wideRight);
                            TorchInPlace.mul(product, ofA);
                            TorchInPlace.mul(product, ofB);
                            Torch.copy(result, product);
                        });
            }
        }
    }

    /** Sets bytes to 0. */
    void clear(long address, long byteSize) {
        Shape shape = new Shape(byteSize);
        try (NDArray bytes = view(ScalarType.UINT8, address, shape);
                NDArray zeros = manager.zeros(shape, DataType.UINT8)) {
            NoGradient.run(() -> Torch.copy(bytes, zeros));
        }
    }

    /** Reduces parts that are {@code distance} bytes apart, in rank order. */
    void reduce(
            ScalarType type,
            long out,
            long first,
            long distance,
            long count,
            int parts,
            ReduceOp op) {
        if (count == 0) {
            return; // The address may be 0.
        }
        Shape shape = new Shape(count);
        List<NDArray> views = new ArrayList<>();
        try (NDArray result = view(type, out, shape)) {
            for (int part = 0; part < parts; part++) {
                views.add(view(type, first + part * distance, shape));
            }
            NoGradient.run(() -> Reductions.reduce(result, views, op));
        } finally {
            views.forEach(NDArray::close);
        }
    }
}

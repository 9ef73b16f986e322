// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.kernel;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
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

    private static final int ALIGNMENT = 16; // of scales, in bytes

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

    /** Multiplies contiguous matrices, the right one given as its transpose. */
    @FunctionalInterface
    interface Matmul {
        void run(NDArray out, NDArray a, NDArray b);
    }

    /**
     * Multiplies non-empty float8 matrices, and rounds the scaled product to bfloat16. The operands
     * are converted first, which is exact.
     *
     * @param type the type to convert to: float32, or float16 for {@code half}
     * @param half multiplies float16 matrices into float32
     */
    void multiplyScaled(
            long out,
            MatrixLayout outLayout,
            long a,
            MatrixLayout aLayout,
            long b,
            MatrixLayout bLayout,
            Product.Scales scales,
            ScalarType type,
            Matmul half) {
        long m = outLayout.rows();
        long n = outLayout.columns();
        long step = scales.byRow() ? 1 : 0; // a stride of 0 repeats a scale
        MatrixLayout rows = new MatrixLayout(m, n, step, 0);
        MatrixLayout columns = new MatrixLayout(m, n, 0, step);
        try (NDArray result = view(ScalarType.BFLOAT16, out, outLayout);
                NDArray left = converted(a, aLayout, type);
                NDArray right = converted(b, bLayout.transposed(), type);
                NDArray sums = Torch.empty(manager, new Shape(m, n), ScalarType.FLOAT32);
                NDArray ofA = view(ScalarType.FLOAT32, scales.a(), rows);
                NDArray ofB = view(ScalarType.FLOAT32, scales.b(), columns)) {
            if (type == ScalarType.FLOAT16) {
                half.run(sums, left, right);
            } else {
                multiply(
                        type,
                        Torch.dataPointer(sums),
                        MatrixLayout.contiguous(m, n),
                        Torch.dataPointer(left),
                        MatrixLayout.contiguous(m, aLayout.columns()),
                        Torch.dataPointer(right),
                        MatrixLayout.contiguous(n, aLayout.columns()).transposed());
            }
            NoGradient.run(
                    () -> {
                        TorchInPlace.mul(sums, ofA);
                        TorchInPlace.mul(sums, ofB);
                        Torch.copy(result, sums);
                    });
        }
    }

    /** Returns a contiguous copy of a float8 matrix in another type. */
    private NDArray converted(long address, MatrixLayout layout, ScalarType type) {
        Shape shape = new Shape(layout.rows(), layout.columns());
        try (NDArray narrow = view(ScalarType.FLOAT8_E4M3FN, address, layout)) {
            NDArray copy = Torch.empty(manager, shape, type);
            NoGradient.run(() -> Torch.copy(copy, narrow));
            return copy;
        }
    }

    /**
     * Returns float32 values as a column at an address that is a multiple of 16: a view, or a copy.
     */
    NDArray aligned(long address, long count) {
        Shape shape = new Shape(count, 1);
        NDArray values = view(ScalarType.FLOAT32, address, shape);
        if (address % ALIGNMENT == 0) {
            return values;
        }
        try (values) {
            NDArray copy = Torch.empty(manager, shape, ScalarType.FLOAT32);
            NoGradient.run(() -> Torch.copy(copy, values));
            return copy;
        }
    }

    void clear(long address, long byteSize) {
        try (NDArray bytes = view(ScalarType.UINT8, address, new Shape(byteSize))) {
            TorchInPlace.zero(bytes);
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

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.lang.ref.Reference;
import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** Makes arrays of any element type and reads them back, as doubles. */
public final class TestArrays {

    private TestArrays() {}

    /**
     * Creates an array whose elements are the values, rounded to the type. A complex number is two
     * values: the real and the imaginary part.
     */
    public static NDArray of(NDManager manager, ScalarType type, Shape shape, double... values) {
        awaitStream(manager.getDevice());
        if (type.real() != type) {
            NDArray complex = Torch.empty(manager, shape, type);
            try (NDArray reals = of(manager, type.real(), new Shape(values.length), values);
                    NDArray view = view(manager, complex, type.real())) {
                Torch.copy(view, reals);
            }
            return complex;
        }
        try (NDArray doubles = manager.create(values, shape)) {
            return Torch.cast(doubles, type);
        }
    }

    /** Creates an array with random elements: normally distributed, small integers, or booleans. */
    public static NDArray random(NDManager manager, ScalarType type, Shape shape, long seed) {
        int parts = type.itemSize() / type.real().itemSize();
        int count = parts * (int) shape.size();
        return of(manager, type, shape, randomValues(type.real(), count, seed));
    }

    private static double[] randomValues(ScalarType type, int count, long seed) {
        SplittableRandom random = new SplittableRandom(seed);
        if (type.isFloatingPoint()) {
            return random.doubles(count).map(x -> 4 * x - 2).toArray();
        }
        int bound = type == ScalarType.BOOL ? 2 : 5;
        return random.ints(count, 0, bound).asDoubleStream().toArray();
    }

    /** Creates an array like {@link #random} that is not contiguous: a transposed one. */
    public static NDArray randomStrided(
            NDManager manager, ScalarType type, Shape shape, long seed) {
        if (shape.dimension() < 2) {
            // Every second element of a longer array.
            Shape twice = new Shape(shape.size(), 2);
            double[] wanted = randomValues(type, (int) shape.size(), seed);
            double[] values = new double[2 * wanted.length];
            for (int i = 0; i < wanted.length; i++) {
                values[2 * i] = wanted[i];
                values[2 * i + 1] = 1;
            }
            return of(manager, type, twice, values).get(":, 0").reshape(shape);
        }
        int last = shape.dimension() - 1;
        NDArray straight = random(manager, type, shape, seed);
        try (NDArray swapped = straight.swapAxes(0, last)) {
            NDArray copy = Torch.empty(manager, swapped.getShape(), type);
            Torch.copy(copy, swapped);
            straight.close();
            return copy.swapAxes(0, last);
        }
    }

    /** Returns the bytes of a contiguous array as one of int8, without a copy. */
    public static NDArray bytes(NDManager manager, NDArray array) {
        return view(manager, array, ScalarType.INT8);
    }

    private static NDArray view(NDManager manager, NDArray array, ScalarType type) {
        long[] sizes = Torch.sizes(array);
        long bytes =
                Arrays.stream(sizes).reduce(Torch.scalarType(array).itemSize(), (a, b) -> a * b);
        NativeMemory memory =
                new NativeMemory(Torch.dataPointer(array), bytes, Torch.device(array), () -> {});
        return Torch.view(manager, memory, 0, new Shape(bytes / type.itemSize()), type);
    }

    /** Returns the array when all that the current stream of its GPU has to do before is done. */
    public static NDArray awaited(NDArray array) {
        awaitStream(array.getDevice());
        return array;
    }

    /**
     * Waits for the current stream of a GPU, before a copy from or to memory that is not pinned.
     * Such a copy would wait for it as well, but meanwhile the driver takes no calls for that GPU,
     * not even those of a rank that shares it and is waited for.
     */
    private static void awaitStream(Device device) {
        if (!device.isGpu()) {
            return;
        }
        try (CudaDevice gpu = CudaDevice.open(device);
                CudaStream stream = CudaStream.wrap(gpu, Torch.currentCudaStream(device))) {
            stream.synchronize();
        }
    }

    /**
     * Reads an array's elements, a complex number as its real and its imaginary part; exact for all
     * types but large int64.
     */
    public static double[] values(NDArray array) {
        awaited(array);
        ScalarType type = Torch.scalarType(array);
        if (type.real() != type) {
            NDManager manager = array.getManager();
            Shape shape = new Shape(Torch.sizes(array));
            try (NDArray straight = Torch.empty(manager, shape, type)) {
                Torch.copy(straight, array); // Also conjugates, which libtorch does lazily.
                try (NDArray reals = view(manager, straight, type.real())) {
                    return values(reals);
                }
            }
        }
        try (NDArray doubles = Torch.cast(array, ScalarType.FLOAT64)) {
            return doubles.toType(DataType.FLOAT64, false).toDoubleArray();
        }
    }

    /** Has the garbage collector free JVM memory of closed arrays, and fills it with NaN. */
    public static void reuseFreedMemory() {
        WeakReference<Object> canary = new WeakReference<>(ByteBuffer.allocateDirect(Float.BYTES));
        for (int i = 0; i < 100 && canary.get() != null; i++) {
            System.gc();
        }
        List<ByteBuffer> reused = new ArrayList<>();
        for (int i = 0; i < 2000; i++) {
            reused.add(ByteBuffer.allocateDirect(Float.BYTES).putFloat(0, Float.NaN));
        }
        Reference.reachabilityFence(reused);
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.Set;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.DebugLevel;
import org.djlx.collectives.spi.OpType;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/** Finds NaN in the inputs of calls, with {@link DebugLevel#DETAIL}. */
final class InputCheck {

    private static final Set<ScalarType> CHECKED =
            EnumSet.of(
                    ScalarType.FLOAT64,
                    ScalarType.FLOAT32,
                    ScalarType.FLOAT16,
                    ScalarType.BFLOAT16,
                    ScalarType.COMPLEX64,
                    ScalarType.COMPLEX128,
                    ScalarType.FLOAT8_E4M3FN,
                    ScalarType.FLOAT8_E5M2);

    private InputCheck() {}

    /** Breaks the group and throws if an input contains NaN. Waits for the GPU. */
    static void check(GroupState state, OpType type, NDArray input, TensorInfo info) {
        boolean checked = CHECKED.contains(info.type()) && info.count() > 0;
        if (!checked || isCapturing(input.getDevice())) {
            return;
        }
        long count;
        long first;
        boolean wide = info.type().itemSize() > 1; // libtorch has no isnan of float8
        try (NDArray cast = wide ? null : Torch.cast(input, ScalarType.FLOAT32);
                NDArray nan = (wide ? input : cast).isNaN();
                NDArray counts = nan.toType(DataType.INT64, false);
                NDArray ones = counts.flatten();
                NDArray sum = ones.sum();
                NDArray place = ones.argMax()) {
            CurrentStreams.await(input.getDevice());
            count = sum.getLong();
            first = place.getLong();
        }
        if (count > 0) {
            CollectiveException failure =
                    new CollectiveException(
                            ("%s of group '%s': the input of rank %s, %s, contains %s NaN, the"
                                 + " first at %s; find the computation that makes it (%s=DETAIL"
                                 + " looks for it in the inputs of calls)")
                                    .formatted(
                                            type,
                                            state.name(),
                                            state.rank(),
                                            info,
                                            count,
                                            Arrays.toString(index(first, info.sizes())),
                                            DebugLevel.VARIABLE));
            state.abort(failure); // Otherwise the other ranks wait for this one.
            throw failure;
        }
    }

    private static boolean isCapturing(Device device) {
        if (!device.isGpu()) {
            return false;
        }
        try (CudaDevice cuda = CudaDevice.open(device);
                CudaStream stream = CudaStream.wrap(cuda, Torch.currentCudaStream(device))) {
            return stream.isCapturing();
        }
    }

    private static long[] index(long element, long[] sizes) {
        long[] index = new long[sizes.length];
        long rest = element;
        for (int dimension = sizes.length - 1; dimension >= 0; dimension--) {
            index[dimension] = rest % sizes[dimension];
            rest /= sizes[dimension];
        }
        return index;
    }
}

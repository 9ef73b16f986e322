// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.engine.PtNDManager;
import java.util.Arrays;
import org.djlx.nativeops.host.Scratch;

/**
 * Creates arrays of one shape, type and device, as {@link Torch#empty} does, with prepared
 * arguments: an array takes one native call. Thread-safe.
 */
public final class TensorTemplate {

    private final long[] arguments; // of djlx_empty

    /**
     * Prepares arrays.
     *
     * @param device the device of the arrays
     * @param shape their shape
     * @param type their element type
     * @throws IllegalArgumentException if an argument is invalid, as for {@link Torch#empty}
     */
    public TensorTemplate(Device device, Shape shape, ScalarType type) {
        TorchChecks.type(type);
        long[] sizes = Torch.sizes(shape);
        long[] strides = Extents.contiguousStrides(sizes);
        Extents.byteSpan(sizes, strides, type.itemSize());
        long deviceType = TorchChecks.usableDeviceType(device);
        long[] header = {type.code(), deviceType, device.getDeviceId(), sizes.length};
        arguments = Arrays.copyOf(header, header.length + 2 * sizes.length);
        System.arraycopy(sizes, 0, arguments, header.length, sizes.length);
        System.arraycopy(strides, 0, arguments, header.length + sizes.length, sizes.length);
    }

    /**
     * A new array.
     *
     * @param array the array, not initialised
     * @param address the address of its first element; 0 if it has none
     */
    public record Created(NDArray array, long address) {}

    /**
     * Creates an array.
     *
     * @param manager owns the array; its device does not matter
     * @return the array, and its address
     * @throws IllegalArgumentException if the manager is null, closed, or of another engine
     */
    public Created create(NDManager manager) {
        PtNDManager owner = TorchChecks.manager(manager);
        Scratch scratch = Scratch.get();
        long words = scratch.put(Scratch.SLOTS, arguments);
        AotiTorch.check(AotiTensor.djlx_empty(words, scratch.slot(0)), "Torch.empty");
        long address = scratch.getLong(1);
        return new Created(Torch.adopt(owner, scratch.getLong(0), null, null), address);
    }
}

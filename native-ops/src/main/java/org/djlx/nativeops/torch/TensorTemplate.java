// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.engine.PtNDManager;
import java.util.Arrays;
import java.util.Locale;
import org.djlx.nativeops.host.Scratch;

/**
 * Creates arrays of one shape, type and device, as {@link Torch#empty} does, with prepared
 * arguments: an array takes one native call. Thread-safe.
 */
public final class TensorTemplate {

    private static final int HEADER = 4; // words before the sizes

    private final long[] arguments; // of djlx_empty

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

    /** {@return what {@link #create} does, for messages} */
    @Override
    public String toString() {
        long[] sizes = Arrays.copyOfRange(arguments, HEADER, HEADER + (int) arguments[HEADER - 1]);
        ScalarType type = ScalarType.fromCode((int) arguments[0]);
        return String.format(
                "Torch.empty of %s %s, %d bytes,",
                type.name().toLowerCase(Locale.ROOT), Arrays.toString(sizes), type.byteSize(sizes));
    }

    /** A new array, not initialised, and the address of its first element; 0 if it has none. */
    public record Created(NDArray array, long address) {}

    /** Creates an array that the manager, whose device does not matter, owns. */
    public Created create(NDManager manager) {
        PtNDManager owner = TorchChecks.manager(manager);
        Scratch scratch = Scratch.get();
        long words = scratch.put(Scratch.SLOTS, arguments);
        int status = AotiTensor.djlx_empty(words, scratch.slot(0));
        AotiTorch.check(status, status == 0 ? null : toString());
        long address = scratch.getLong(1);
        return new Created(Torch.adopt(owner, scratch.getLong(0), null, null), address);
    }
}

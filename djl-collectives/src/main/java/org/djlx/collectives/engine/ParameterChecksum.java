/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.engine;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.zip.CRC32C;
import org.djlx.nativeops.NativeMemory;
import org.djlx.nativeops.NoGradient;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.TensorInfo;
import org.djlx.nativeops.Torch;

/** A checksum over the bytes of arrays, wherever they are and of whichever type. */
final class ParameterChecksum {

    private final CRC32C crc = new CRC32C();

    /**
     * Adds an array's bytes.
     *
     * @param temporary a manager on the array's device
     */
    void add(NDManager temporary, NDArray array) {
        NoGradient.run(
                () -> {
                    // DJL can read bytes, which a view of a contiguous copy are.
                    try (NDArray copy = Torch.cast(array, Torch.scalarType(array))) {
                        TensorInfo info = Torch.info(copy);
                        NativeMemory memory =
                                new NativeMemory(
                                        info.address(),
                                        info.byteSize(),
                                        array.getDevice(),
                                        () -> {});
                        Shape shape = new Shape(info.byteSize());
                        try (NDArray bytes =
                                Torch.view(temporary, memory, 0, shape, ScalarType.INT8)) {
                            crc.update(bytes.toByteBuffer());
                        }
                    }
                });
    }

    long value() {
        return crc.getValue();
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

import java.util.Arrays;
import java.util.HexFormat;
import org.djlx.nativeops.host.NativeMemory;

/** The other process of {@link CudaPeerTest}: checks shared memory, and overwrites it. */
final class CudaIpcPeer {

    static final String DONE = "the memory was opened, read and written";

    private CudaIpcPeer() {}

    public static void main(String[] args) {
        int count = Integer.parseInt(args[1]);
        long bytes = (long) count * Integer.BYTES;
        try (CudaDevice device = Gpus.open(1);
                NativeMemory memory =
                        CudaMemory.openHandle(
                                device, HexFormat.of().parseHex(args[0]), bytes + 256);
                NativeMemory own = CudaMemory.allocate(device, bytes);
                CudaStream stream = CudaStream.create(device)) {
            stream.copyAsync(own.address(), memory.address(), bytes);
            stream.synchronize();
            if (!Arrays.equals(Gpus.range(11, count), Gpus.read(device, own.address(), count))) {
                throw new IllegalStateException("the content differs");
            }
            Gpus.write(device, own.address(), Gpus.range(-5, count));
            stream.copyAsync(memory.address(), own.address(), bytes);
            stream.writeValue32(memory.address() + bytes, 1);
            stream.synchronize();
            System.out.println(DONE);
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import ai.djl.Device;
import java.time.Duration;
import java.util.Arrays;
import java.util.HexFormat;
import org.djlx.nativeops.host.Descriptor;
import org.djlx.nativeops.host.DescriptorChannel;
import org.djlx.nativeops.host.NativeMemory;

/** The other process of {@link CudaVirtualMemoryTest}: checks its memory, and overwrites it. */
final class CudaVirtualMemoryPeer {

    static final String DONE = "the memory was mapped, read and written";

    private CudaVirtualMemoryPeer() {}

    /** Takes a token, the ordinal of the GPU to use, and how many ints there are before a flag. */
    public static void main(String[] args) {
        byte[] token = HexFormat.of().parseHex(args[0]);
        int ordinal = Integer.parseInt(args[1]);
        int count = Integer.parseInt(args[2]);
        long bytes = (long) count * Integer.BYTES;
        try (CudaDevice device = Gpus.open(ordinal);
                CudaVirtualMemory shared = receive(device, token, bytes + 256);
                NativeMemory own = CudaMemory.allocate(device, bytes);
                CudaStream stream = CudaStream.create(device)) {
            NativeMemory memory = shared.memory();
            require(Device.gpu(0).equals(memory.device()), "its device is " + memory.device());
            stream.copyAsync(own.address(), memory.address(), bytes);
            stream.synchronize();
            int[] content = Gpus.read(device, own.address(), count);
            require(Arrays.equals(Gpus.range(11, count), content), "its content differs");
            Gpus.write(device, own.address(), Gpus.range(-5, count));
            stream.copyAsync(memory.address(), own.address(), bytes);
            stream.writeValue32(memory.address() + bytes, 1);
            stream.synchronize();
            System.out.println(DONE);
        }
    }

    private static CudaVirtualMemory receive(CudaDevice device, byte[] token, long byteSize) {
        try (DescriptorChannel channel = DescriptorChannel.open()) {
            System.out.println(channel.name());
            var received = channel.receive(token, Duration.ofSeconds(60)).orElseThrow();
            try (Descriptor descriptor = received.descriptor()) {
                return CudaVirtualMemory.open(device, descriptor, byteSize);
            }
        }
    }

    private static void require(boolean condition, String problem) {
        if (!condition) {
            throw new IllegalStateException(problem);
        }
    }
}

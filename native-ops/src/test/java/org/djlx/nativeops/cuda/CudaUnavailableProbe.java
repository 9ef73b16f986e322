// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import ai.djl.Device;
import java.util.stream.Collectors;

/** Loads all classes for CUDA and prints why CUDA cannot be used, in a JVM of its own. */
final class CudaUnavailableProbe {

    private static final String PREFIX = "probe: ";

    private CudaUnavailableProbe() {}

    public static void main(String[] args) throws ReflectiveOperationException {
        for (Class<?> type :
                new Class<?>[] {
                    CudaAttribute.class,
                    CudaDevice.class,
                    CudaEvent.class,
                    CudaException.class,
                    CudaGraph.class,
                    CudaKernel.class,
                    CudaMemory.class,
                    CudaModule.class,
                    CudaStream.class,
                    CudaVirtualMemory.class,
                    GpuTopology.class,
                    KernelArguments.class,
                    KernelCompiler.class
                }) {
            Class.forName(type.getName());
        }
        new KernelArguments().add(1);
        try {
            CudaDevice.open(Device.gpu(0));
            System.out.println(PREFIX + "CUDA works");
        } catch (UnsatisfiedLinkError e) {
            System.out.println(PREFIX + e.getMessage());
        }
    }

    /** Returns what {@link #main} printed, out of all that the JVM did. */
    static String printed(String output) {
        return output.lines()
                .filter(line -> line.startsWith(PREFIX))
                .collect(Collectors.joining("\n"));
    }
}

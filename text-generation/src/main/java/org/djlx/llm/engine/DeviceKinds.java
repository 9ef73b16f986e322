// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import ai.djl.Device;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;

/**
 * The kinds of the ranks' devices. Each rank chooses the experts of a token by logits that it
 * computes itself; kernels for other devices add in another order, so ranks could choose other
 * experts and add up parts of different ones.
 */
final class DeviceKinds {

    private DeviceKinds() {}

    /** Checks that all ranks have devices of one kind. All ranks call this; it throws on all. */
    static void requireSame(ProcessGroup group) throws IOException {
        check(CacheSize.allGather(group, kind(group.device())));
    }

    static void check(List<String> kinds) {
        ModelRanks.checkSame(
                kinds,
                "the ranks of a model with experts need devices of one kind, because each chooses"
                        + " the experts itself");
    }

    private static String kind(Device device) throws IOException {
        if (device.isGpu()) {
            try (CudaDevice gpu = CudaDevice.open(device)) {
                int processors = gpu.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
                return "a GPU " + gpu.name() + " with " + processors + " SMs";
            }
        }
        try (Stream<String> lines = Files.lines(Path.of("/proc/cpuinfo"))) {
            return lines.filter(line -> line.startsWith("model name"))
                    .findFirst()
                    .map(line -> "a CPU " + line.replaceFirst(".*: *", ""))
                    .orElse("a CPU");
        } catch (UncheckedIOException e) {
            throw e.getCause();
        }
    }
}

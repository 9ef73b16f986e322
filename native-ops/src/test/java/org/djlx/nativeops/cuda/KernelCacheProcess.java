// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;

/**
 * A process of {@link KernelCacheTest} that asks for a kernel when it is told to. Arguments: the
 * cache's folder, and how many milliseconds compiling takes.
 */
final class KernelCacheProcess {

    static final KernelCache.Key KEY =
            new KernelCache.Key(
                    new KernelSource("k.cu", "of processes", Map.of()),
                    List.of("-O3"),
                    "sm_90a",
                    "NVRTC 13.0");

    private KernelCacheProcess() {}

    public static void main(String[] args) throws IOException {
        KernelCache cache = new KernelCache(Path.of(args[0]));
        long millis = Long.parseLong(args[1]);
        System.out.println("ready");
        System.in.read();
        byte[] compiled = cache.get(KEY, () -> compile(millis));
        System.out.println("has " + new String(compiled, StandardCharsets.UTF_8));
    }

    private static byte[] compile(long millis) {
        System.out.println("compiles");
        try {
            Thread.sleep(millis);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
        return ("what " + ProcessHandle.current().pid() + " made").getBytes(StandardCharsets.UTF_8);
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import ai.djl.engine.EngineException;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.Set;

/** A process of {@link GpuLeaseTest} that holds a lease, or a file's lock, until its input ends. */
public final class GpuLeaseMain {

    private GpuLeaseMain() {}

    /** Arguments: the folder, the GPU, the jobs; without a job, keeps byte 0 of the file locked. */
    public static void main(String[] args) throws IOException {
        Path folder = Path.of(args[0]);
        if (args.length == 2) {
            Path file = folder.resolve("djlx-gpu-" + args[1] + ".lock");
            try (FileChannel channel =
                    FileChannel.open(file, StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
                channel.lock(0, 1, false);
                hold();
            }
            return;
        }
        try {
            Duration patience = Duration.ofSeconds(10);
            GpuLease lease = GpuLease.acquire(folder, args[1], args[2], Set.of(args), patience);
            hold();
            lease.close();
        } catch (EngineException e) {
            System.out.println(e.getMessage());
        }
    }

    private static void hold() throws IOException {
        System.out.println("held");
        while (System.in.read() >= 0) {
            Thread.onSpinWait();
        }
    }
}

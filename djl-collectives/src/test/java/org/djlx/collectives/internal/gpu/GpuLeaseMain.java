// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import ai.djl.engine.EngineException;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Set;

/** A process of {@link GpuLeaseTest} that holds a lease until its input ends. */
public final class GpuLeaseMain {

    private GpuLeaseMain() {}

    public static void main(String[] args) throws IOException {
        try {
            GpuLease lease = GpuLease.acquire(Path.of(args[0]), args[1], args[2], Set.of(args));
            System.out.println("held");
            while (System.in.read() >= 0) {
                Thread.onSpinWait();
            }
            lease.close();
        } catch (EngineException e) {
            System.out.println(e.getMessage());
        }
    }
}

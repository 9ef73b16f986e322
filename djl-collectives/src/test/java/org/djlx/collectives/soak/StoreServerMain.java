// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.soak;

import java.io.IOException;
import org.djlx.collectives.store.TcpStore;

/**
 * A store's server in a small JVM, run by {@link StoreSoakTest}. It says where it listens, serves
 * until its input ends, and says how much heap is in use then.
 */
public final class StoreServerMain {

    private StoreServerMain() {}

    public static void main(String[] args) throws IOException {
        try (TcpStore store =
                TcpStore.builder().setHost("localhost").setPort(0).optServer(true).build()) {
            System.out.println("port " + store.port());
            while (System.in.read() >= 0) {
                // Until it ends.
            }
            System.gc();
            Runtime runtime = Runtime.getRuntime();
            System.out.println("heap " + (runtime.totalMemory() - runtime.freeMemory()));
        }
    }
}

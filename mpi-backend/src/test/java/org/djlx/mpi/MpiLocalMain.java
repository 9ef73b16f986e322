// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import java.time.Duration;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.spi.BackendOptions;

/** A process that tries to create a group of two ranks, and prints why it cannot. */
public final class MpiLocalMain {

    private MpiLocalMain() {}

    public static void main(String[] args) {
        try {
            ProcessGroups.local("mpi", 2, new BackendOptions(Duration.ofSeconds(60)));
        } catch (IllegalArgumentException e) {
            System.out.println(e.getMessage());
        }
    }
}

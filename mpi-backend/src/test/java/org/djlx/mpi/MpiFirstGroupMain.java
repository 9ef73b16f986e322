// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import java.time.Duration;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.spi.BackendOptions;

/** One rank of {@link MpiLaunchTest}: rank 1 cannot create its first group, with MPI begun. */
public final class MpiFirstGroupMain {

    private MpiFirstGroupMain() {}

    public static void main(String[] args) {
        boolean fails = MpiProcess.world().rank() == 1;
        BackendOptions options = new BackendOptions(Duration.ofSeconds(100));
        try {
            ProcessGroups.init("mpi", fails ? NcclOptions.builder().build() : options);
        } catch (CollectiveException e) {
            System.out.println("waited: " + e.getMessage());
        }
    }
}

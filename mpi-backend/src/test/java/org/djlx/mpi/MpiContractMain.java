// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.ContractCases;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.spi.BackendOptions;

/**
 * One rank of {@link MpiProcessesTest}: runs all cases of the contract, or those that the arguments
 * name, each on the same group.
 */
public final class MpiContractMain {

    private MpiContractMain() {}

    public static void main(String[] args) {
        List<String> names = List.of(args);
        try (ProcessGroup group =
                ProcessGroups.init("mpi", new BackendOptions(Duration.ofSeconds(60)))) {
            for (Map.Entry<String, ContractCases.Case> entry : ContractCases.all().entrySet()) {
                if (names.isEmpty() || names.contains(entry.getKey())) {
                    ContractCases.run(entry.getValue(), group);
                    System.out.println("rank " + group.rank() + " passed " + entry.getKey());
                }
            }
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.mpi;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.ContractCases;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.store.TcpStore;
import org.djlx.nativeops.mpi.MpiCommunicator;

/**
 * One rank of {@link MpiProcessesTest}: runs all cases of the contract, or those that the arguments
 * after the store's port name, each on the same group.
 */
public final class MpiContractMain {

    private MpiContractMain() {}

    public static void main(String[] args) {
        MpiCommunicator world = MpiProcess.world();
        try (TcpStore store =
                        TcpStore.builder()
                                .setHost("localhost")
                                .setPort(Integer.parseInt(args[0]))
                                .build();
                ProcessGroup group =
                        ProcessGroups.init(
                                "mpi",
                                store,
                                "default",
                                world.rank(),
                                world.size(),
                                new BackendOptions(Duration.ofSeconds(60)))) {
            for (Map.Entry<String, ContractCases.Case> entry : ContractCases.all().entrySet()) {
                if (args.length == 1 || List.of(args).contains(entry.getKey())) {
                    ContractCases.run(entry.getValue(), group);
                    System.out.println("rank " + world.rank() + " passed " + entry.getKey());
                }
            }
        }
    }
}

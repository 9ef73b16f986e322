// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import ai.djl.Device;
import java.time.Duration;
import java.util.Map;
import org.djlx.collectives.ContractCases;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.internal.gpu.Disposal;

/**
 * One rank of {@link NcclProcessesTest}: runs all cases on the same group, in their order. The
 * arguments are the backend, and whether the communicator is created with the group. If so, it
 * carries the messages, too.
 */
public final class NcclContractMain {

    private NcclContractMain() {}

    public static void main(String[] args) {
        NcclOptions.Builder options = NcclOptions.builder().optTimeout(Duration.ofSeconds(30));
        boolean eager = args[1].equals("eager");
        if (eager) {
            options.optDevices(Device.gpu(Integer.parseInt(System.getenv("LOCAL_RANK"))));
        }
        try (ProcessGroup group = ProcessGroups.init(args[0], options.build())) {
            cases(eager, group.worldSize())
                    .forEach(
                            (name, body) -> {
                                ContractCases.run(body, group);
                                System.out.println("passed " + name);
                            });
        }
        if (eager) { // Otherwise, the process exits while the communicator is being freed.
            long start = System.nanoTime();
            if (!Disposal.await(Duration.ofSeconds(60))) {
                throw new AssertionError("the groups' resources are not freed");
            }
            System.out.printf("freed within %.1f s%n", (System.nanoTime() - start) / 1e9);
        }
    }

    static Map<String, ContractCases.Case> cases(boolean eager, int worldSize) {
        return eager ? NcclCases.casesInTurn(worldSize) : NcclCases.cases(worldSize);
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import org.djlx.collectives.ContractCases;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;

/** One rank of {@link ShmProcessesTest}: runs all cases, each on the same group, in their order. */
public final class ContractMain {

    private ContractMain() {}

    public static void main(String[] args) {
        try (ProcessGroup group = ProcessGroups.init("shm", ShmThreadsTest.OPTIONS)) {
            ContractCases.all()
                    .forEach(
                            (name, body) -> {
                                ContractCases.run(body, group);
                                System.out.println("passed " + name);
                            });
        }
    }
}

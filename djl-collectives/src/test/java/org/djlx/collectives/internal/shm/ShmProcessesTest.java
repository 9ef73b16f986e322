// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import static org.junit.jupiter.api.Assertions.assertTrue;

import org.djlx.collectives.ContractCases;
import org.djlx.collectives.RankProcesses;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The contract on {@code shm}, with ranks that are processes. */
@Timeout(300)
@Tag("slow")
class ShmProcessesTest {

    @ParameterizedTest
    @ValueSource(ints = {2, 4})
    void contract(int worldSize) throws InterruptedException {
        try (RankProcesses ranks = new RankProcesses(worldSize, ContractMain.class)) {
            ranks.awaitSuccess();
            for (int rank = 0; rank < worldSize; rank++) {
                String output = ranks.output(rank);
                for (String name : ContractCases.all().keySet()) {
                    assertTrue(output.contains("passed " + name + "\n"), output);
                }
            }
        }
    }
}

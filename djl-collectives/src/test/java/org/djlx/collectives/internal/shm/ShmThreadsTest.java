// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import static org.junit.jupiter.api.DynamicContainer.dynamicContainer;

import java.time.Duration;
import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.ContractCases;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ShmOptions;
import org.junit.jupiter.api.DynamicContainer;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.Timeout;

/** The contract on {@code shm}, with ranks that are threads. */
@Timeout(300)
class ShmThreadsTest {

    /** Small staging halves, so that tensors of moderate size take several steps. */
    static final ShmOptions OPTIONS =
            ShmOptions.builder().optTimeout(Duration.ofSeconds(60)).optChunkSize(64 << 10).build();

    @TestFactory
    Stream<DynamicContainer> contract() {
        return IntStream.of(1, 2, 3, 4, 8)
                .mapToObj(
                        worldSize ->
                                dynamicContainer(
                                        worldSize + " ranks",
                                        ContractCases.testsOnOwnGroups(
                                                ContractCases.all(),
                                                () -> groups(worldSize),
                                                (group, body) -> body.run())));
    }

    @TestFactory
    Stream<DynamicTest> contractOnOneGroup() {
        return ContractCases.tests(
                ContractCases.all(), () -> groups(3), (group, body) -> body.run());
    }

    private static List<ProcessGroup> groups(int worldSize) {
        return ProcessGroups.local("shm", worldSize, OPTIONS);
    }
}

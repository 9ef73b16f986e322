// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import static org.junit.jupiter.api.DynamicTest.dynamicTest;

import java.time.Duration;
import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.ContractCases;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ShmOptions;
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
    Stream<DynamicTest> contract() {
        return IntStream.of(1, 2, 3, 4, 8).boxed().flatMap(ShmThreadsTest::contract);
    }

    private static Stream<DynamicTest> contract(int worldSize) {
        return ContractCases.all().entrySet().stream()
                .map(
                        entry ->
                                dynamicTest(
                                        worldSize + " ranks: " + entry.getKey(),
                                        () -> run(worldSize, entry.getValue())));
    }

    private static void run(int worldSize, ContractCases.Case body) {
        List<ProcessGroup> groups = ProcessGroups.local("shm", worldSize, OPTIONS);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        ContractCases.run(body, group);
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.junit.jupiter.api.Test;

class DeviceKindsTest {

    @Test
    void ranksOfOneHostHaveOneKind() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            assertDoesNotThrow(
                    () ->
                            ProcessGroups.run(
                                    groups,
                                    group -> {
                                        DeviceKinds.requireSame(group);
                                        return null;
                                    }));
        } finally {
            groups.forEach(ProcessGroup::close);
        }
    }

    @Test
    void namesTheFirstRankOfAnotherKind() {
        IllegalArgumentException e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> DeviceKinds.check(List.of("a CPU A", "a CPU A", "a CPU B")));
        assertEquals(
                "the ranks of a model with experts need devices of one kind, because each chooses"
                        + " the experts itself: rank 0 has a CPU A, rank 2 has a CPU B",
                e.getMessage());
    }
}

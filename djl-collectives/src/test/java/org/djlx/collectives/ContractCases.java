// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.DynamicTest.dynamicTest;

import ai.djl.ndarray.NDManager;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiConsumer;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.djlx.collectives.c10d.GroupExpectations;
import org.junit.jupiter.api.DynamicTest;

/**
 * The contract of all backends. Each case is the code of one rank and runs on all ranks of a group
 * concurrently, as threads or processes. Inputs have fixed seeds, so each rank knows the inputs of
 * all ranks.
 */
public final class ContractCases {

    private ContractCases() {}

    /** The code of one rank. */
    @FunctionalInterface
    public interface Case {

        /**
         * Runs on one rank.
         *
         * @param group the rank's handle
         * @param manager closed after the case
         */
        void run(ProcessGroup group, NDManager manager);
    }

    /** All cases by name. */
    public static Map<String, Case> all() {
        Map<String, Case> cases = new LinkedHashMap<>();
        cases.putAll(ReductionCases.all());
        cases.putAll(MovementCases.all());
        cases.putAll(PointToPointCases.all());
        cases.putAll(CoalescedCases.all());
        cases.putAll(ObjectCases.all());
        cases.putAll(GroupCases.all());
        cases.putAll(SupportCases.all());
        cases.putAll(WorkCases.all());
        cases.putAll(ErrorCases.all());
        cases.putAll(GroupExpectations.cases());
        return cases;
    }

    /**
     * Returns a test for each case, on ranks that are threads. All cases run on the same groups;
     * after a failed case, the next one gets new groups.
     *
     * @param create creates a group for each rank
     * @param rank runs the code of a rank
     */
    public static Stream<DynamicTest> tests(
            Map<String, Case> cases,
            Supplier<List<ProcessGroup>> create,
            BiConsumer<ProcessGroup, Runnable> rank) {
        List<ProcessGroup> groups = new ArrayList<>();
        return cases.entrySet().stream()
                .map(
                        entry ->
                                dynamicTest(
                                        entry.getKey(),
                                        () -> {
                                            if (groups.isEmpty()) {
                                                groups.addAll(create.get());
                                            }
                                            try {
                                                run(entry.getValue(), groups, rank);
                                            } catch (Throwable e) {
                                                groups.forEach(ProcessGroup::destroy);
                                                groups.clear();
                                                throw e;
                                            }
                                        }))
                .onClose(() -> groups.forEach(ProcessGroup::destroy));
    }

    /** As {@link #tests}, with new groups for each case. */
    public static Stream<DynamicTest> testsOnOwnGroups(
            Map<String, Case> cases,
            Supplier<List<ProcessGroup>> create,
            BiConsumer<ProcessGroup, Runnable> rank) {
        return cases.entrySet().stream()
                .map(
                        entry ->
                                dynamicTest(
                                        entry.getKey(),
                                        () -> {
                                            List<ProcessGroup> groups = create.get();
                                            try {
                                                run(entry.getValue(), groups, rank);
                                            } finally {
                                                groups.forEach(ProcessGroup::destroy);
                                            }
                                        }));
    }

    private static void run(
            Case body, List<ProcessGroup> groups, BiConsumer<ProcessGroup, Runnable> rank) {
        ProcessGroups.run(
                groups,
                group -> {
                    rank.accept(group, () -> run(body, group));
                    return null;
                });
    }

    /** Runs one case on one rank. */
    public static void run(Case body, ProcessGroup group) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            body.run(group, manager);
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import ai.djl.ndarray.NDManager;
import java.util.LinkedHashMap;
import java.util.Map;
import org.djlx.collectives.c10d.GroupExpectations;

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

    /** Runs one case on one rank. */
    public static void run(Case body, ProcessGroup group) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            body.run(group, manager);
        }
    }
}

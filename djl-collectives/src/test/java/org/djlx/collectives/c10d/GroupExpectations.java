// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.c10d;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.ContractCases.Case;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.c10d.Rank.Body;

/** What PyTorch's tests expect of groups: cases of the contract, each a table of expectations. */
public final class GroupExpectations {

    private static final Map<String, List<Expectation<Body>>> TABLES = new LinkedHashMap<>();

    static {
        TABLES.put("c10dReductions", Reductions.rows());
        TABLES.put("c10dMovements", Movements.rows());
        TABLES.put("c10dMessages", Messages.rows());
        TABLES.put("c10dRefusals", Refusals.rows());
        TABLES.put("c10dGroups", Subgroups.rows());
    }

    private GroupExpectations() {}

    /** Returns the tables as cases of the contract. */
    public static Map<String, Case> cases() {
        Map<String, Case> cases = new LinkedHashMap<>();
        TABLES.forEach(
                (name, rows) ->
                        cases.put(
                                name,
                                (group, manager) -> {
                                    Rank rank = new Rank(group, manager);
                                    rows.forEach(row -> run(row, rank));
                                    rank.scopes().values().forEach(ProcessGroup::destroy);
                                }));
        return cases;
    }

    static List<Expectation<Body>> rows() {
        List<Expectation<Body>> rows = new ArrayList<>();
        TABLES.values().forEach(rows::addAll);
        return rows;
    }

    private static void run(Expectation<Body> row, Rank rank) {
        try {
            row.body().run(rank);
        } catch (AssertionError | RuntimeException e) {
            throw new AssertionError(row.test() + ": " + row.says(), e);
        }
    }
}

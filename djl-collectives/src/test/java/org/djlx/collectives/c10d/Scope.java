// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.c10d;

import java.util.List;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;

/** The groups of distributed_test.py: the initial one, one of two ranks, and another of all. */
enum Scope {
    GLOBAL("", 2),
    GROUP("_group", 3),
    FULL_GROUP("_full_group", 2);

    private final String infix;
    private final int least;

    Scope(String infix, int least) {
        this.infix = infix;
        this.least = least;
    }

    /** The part of the names of PyTorch's tests that tells the group. */
    String infix() {
        return infix;
    }

    /** Runs a body on the members of the group. */
    Rank.Body on(Rank.Body body) {
        return Rank.least(
                least,
                rank -> {
                    ProcessGroup group = group(rank);
                    if (group.isMember()) {
                        body.run(new Rank(group, rank.manager()));
                    }
                });
    }

    private ProcessGroup group(Rank rank) {
        if (this == GLOBAL) {
            return rank.group();
        }
        int end = this == GROUP ? 3 : rank.n();
        List<Integer> ranks = IntStream.range(this == GROUP ? 1 : 0, end).boxed().toList();
        return rank.scopes().computeIfAbsent(this, scope -> rank.group().newGroup(ranks));
    }
}

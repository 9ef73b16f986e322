// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;

/** One rank of {@link FusedSoakTest} that is a process. The argument is the seed. */
public final class FusedSoakMain {

    /** The number of calls of each kind. */
    static final int TIMES = 60;

    private FusedSoakMain() {}

    public static void main(String[] args) {
        Random random = new Random(Long.parseLong(args[0]));
        try (ProcessGroup group = ProcessGroups.init("shm", FusedSoakTest.options(random))) {
            RandomOperators.ofAll(group, random.nextLong()).run(TIMES);
        }
    }
}

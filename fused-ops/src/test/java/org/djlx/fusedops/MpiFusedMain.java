// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;

/** One rank of {@link MpiFusedOpsTest}. */
public final class MpiFusedMain {

    private MpiFusedMain() {}

    public static void main(String[] args) {
        try (ProcessGroup group = ProcessGroups.init("mpi")) {
            FusedOpsTest.gatherGrid().forEach(one -> one.checkAllGatherMatmul(group, 1));
            FusedOpsTest.scatterGrid(group.worldSize())
                    .forEach(one -> one.checkMatmulReduceScatter(group, ReduceOp.SUM, 1));
            System.out.println("fused operators passed");
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import org.djlx.collectives.spi.cpu.JavaSumsTest;
import org.djlx.nativeops.mpi.MpiCommunicator;
import org.djlx.nativeops.torch.ScalarType;

/** Checks the sums of MPI, in one process, for {@link MpiProcessesTest}. */
public final class MpiSumsMain {

    private MpiSumsMain() {}

    public static void main(String[] args) {
        MpiProcess.world();
        MpiSums sums = new MpiSums(MpiCommunicator::add);
        for (ScalarType type : new ScalarType[] {ScalarType.FLOAT32, ScalarType.FLOAT64}) {
            for (int count : new int[] {1, 1000, 4097, 100_003}) {
                for (int place = -1; place < 3; place++) {
                    JavaSumsTest.addsToTheSameBitsAsLibtorch(sums, count, type, place);
                }
            }
        }
        if (sums.canAdd(1, ScalarType.FLOAT16) || sums.canAdd(1L << 31, ScalarType.FLOAT32)) {
            throw new AssertionError("adds what MPI cannot add");
        }
        System.out.println("equal sums");
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Optional;
import org.djlx.fusedops.cost.Machine;
import org.djlx.nativeops.cuda.GpuRates;
import org.junit.jupiter.api.Test;

class PathChooserTest {

    private static final GpuRates HALF = new GpuRates("NVIDIA X", 132, 344, 2050);

    @Test
    void measuredRatesCount() {
        Machine machine = PathChooser.machine(Optional.of(HALF), 132);
        assertEquals(Machine.H200.library().teraflops() / 2, machine.library().teraflops(), 1e-9);
        assertEquals(Machine.H200.library().memoryRate() / 2, machine.library().memoryRate(), 1e-9);
    }

    /** Two ranks share a GPU: each has half of its SMs. */
    @Test
    void sharedGpusMultiplyAtAPartOfTheRate() {
        Machine machine = PathChooser.machine(Optional.of(HALF), 66);
        assertEquals(Machine.H200.library().teraflops() / 4, machine.library().teraflops(), 1e-9);
        assertEquals(66, machine.multiprocessors());
    }

    @Test
    void unknownAndDifferentGpusCountAsH200s() {
        assertEquals(Machine.H200, PathChooser.machine(Optional.empty(), 132));
        assertEquals(Machine.H200, PathChooser.machine(Optional.of(HALF), 0));
    }
}

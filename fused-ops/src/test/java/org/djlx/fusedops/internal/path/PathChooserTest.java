// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Optional;
import java.util.OptionalDouble;
import org.djlx.fusedops.cost.Machine;
import org.djlx.nativeops.cuda.GpuRates;
import org.junit.jupiter.api.Test;

class PathChooserTest {

    private static final GpuRates HALF = new GpuRates("NVIDIA X", 132, 344, 2050);

    @Test
    void measuredRatesOfGpusAreUsed() {
        Machine machine = PathChooser.machine(Optional.of(HALF), OptionalDouble.empty(), 132);
        assertEquals(Machine.H200.library().teraflops() / 2, machine.library().teraflops(), 1e-9);
        assertEquals(Machine.H200.library().memoryRate() / 2, machine.library().memoryRate(), 1e-9);
    }

    /** Two ranks share a GPU: each has half of its SMs. */
    @Test
    void sharedGpusMultiplyAtAPartOfTheRate() {
        Machine machine = PathChooser.machine(Optional.of(HALF), OptionalDouble.empty(), 66);
        assertEquals(Machine.H200.library().teraflops() / 4, machine.library().teraflops(), 1e-9);
        assertEquals(66, machine.multiprocessors());
    }

    @Test
    void measuredRateOfLinksIsUsed() {
        OptionalDouble links = OptionalDouble.of(25);
        double rate = PathChooser.machine(Optional.of(HALF), links, 132).copies().rate();
        assertEquals(25, rate, 25 * 0.1);
        assertEquals(rate, PathChooser.machine(Optional.empty(), links, 0).copies().rate());
    }

    @Test
    void unknownAndDifferentGpusCountAsH200s() {
        assertEquals(
                Machine.H200, PathChooser.machine(Optional.empty(), OptionalDouble.empty(), 132));
        assertEquals(
                Machine.H200, PathChooser.machine(Optional.of(HALF), OptionalDouble.empty(), 0));
    }
}

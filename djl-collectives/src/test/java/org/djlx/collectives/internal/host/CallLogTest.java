// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import static org.junit.jupiter.api.Assertions.assertTrue;

import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.junit.jupiter.api.Test;

class CallLogTest {

    /** A kernel accepts the signals of a rank that is as far ahead as its host can be. */
    @Test
    void kernelsAcceptSignalsOfRanksThatAreAhead() {
        KernelSource source = KernelSource.ofResource(NativeLibrary.class, "signals/signals.cu");
        assertTrue(new KernelConstants(source).value("MAX_AHEAD") > 2 * CallLog.SLOTS);
    }
}

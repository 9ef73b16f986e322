// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.Duration;
import java.util.List;
import org.djlx.collectives.p2p.OneShotSlots;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.junit.jupiter.api.Test;

/** What Java repeats of the CUDA sources equals them; no GPU is needed. */
class KernelLayoutTest {

    private static final KernelConstants CONSTANTS =
            new KernelConstants(
                    KernelSource.ofResource(NativeLibrary.class, "all_reduce/all_reduce.cu"));

    @Test
    void kernelsAndLayoutAgreeOnMaxRanks() {
        assertEquals(CONSTANTS.value("MAX_RANKS"), RegionLayout.MAX_RANKS);
    }

    /** {@link OneShotSlots#launch} returns the struct Launch, word by word. */
    @Test
    void launchOfOneShotSlotsIsTheKernelsStruct() {
        OneShotSlots slots = new OneShotSlots(1, 21, new long[] {11, 12}, 23, 24, 25);
        long[] words = slots.launch(26, Duration.ofNanos(22));
        KernelConstants.Layout launch = CONSTANTS.struct("Launch");
        assertEquals(launch.byteSize(), words.length * Long.BYTES);
        assertEquals(11, words[launch.offset("peers") / Long.BYTES]);
        assertEquals(12, words[launch.offset("peers") / Long.BYTES + 1]);
        List<String> members =
                List.of("status", "timeout", "begin", "half_bytes", "slot_bytes", "rank");
        for (int i = 0; i < members.size(); i++) {
            assertEquals(21 + i, words[launch.offset(members.get(i)) / Long.BYTES], members.get(i));
        }
    }

    /** Initializing a launcher reads its constants, which must exist. */
    @Test
    void launchersFindTheirConstants() throws ClassNotFoundException {
        for (Class<?> launcher :
                List.of(
                        AllReduceKernels.class,
                        SignalKernels.class,
                        WaitStatus.class,
                        RegionLayout.class)) {
            Class.forName(launcher.getName());
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.kernel;

import java.time.Duration;
import org.djlx.collectives.p2p.OneShotSlots;
import org.djlx.nativeops.cuda.KernelStruct;

/**
 * The kernel argument that describes a group's one-shot slots ({@link OneShotSlots#launch}). Reused
 * between launches, because it changes only with the timeout. Not thread-safe.
 */
public final class OneShotLaunch {

    private OneShotSlots slots; // null before the first launch
    private Duration timeout;
    private KernelStruct struct;

    public KernelStruct of(OneShotSlots slots, int rank, Duration timeout) {
        if (slots != this.slots || !timeout.equals(this.timeout)) {
            long[] words = slots.launch(rank, timeout);
            KernelStruct made = new KernelStruct(words.length * Long.BYTES);
            for (int i = 0; i < words.length; i++) {
                made.put(i * Long.BYTES, words[i]);
            }
            this.slots = slots;
            this.timeout = timeout;
            struct = made;
        }
        return struct;
    }
}

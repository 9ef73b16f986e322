// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import org.djlx.nativeops.cuda.CudaStream;

/**
 * A stream with operations of one {@link StreamQueue}: the queue's own stream, or a {@link
 * SideStream}. The watchdog watches each lane separately: its operations end in the order of the
 * calls.
 */
public interface Lane extends Watchdog.Queue {

    /** Returns the queue that launches the operations. */
    StreamQueue launcher();

    CudaStream stream();
}

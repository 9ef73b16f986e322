// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import org.djlx.nativeops.cuda.CudaStream;

/**
 * A stream with operations of one {@link StreamQueue}, watched for itself: the queue's own stream,
 * or a {@link SideStream}. Operations of a lane end in the order of the calls.
 */
public interface Lane extends Watchdog.Queue {

    /** Returns the queue that launches the operations. */
    StreamQueue launcher();

    CudaStream stream();
}

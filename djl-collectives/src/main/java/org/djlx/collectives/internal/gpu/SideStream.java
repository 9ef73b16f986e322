// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import java.util.Optional;
import java.util.concurrent.atomic.AtomicBoolean;
import org.djlx.collectives.CollectiveException;
import org.djlx.nativeops.cuda.CudaStream;

/**
 * An additional stream of a {@link StreamQueue}, for example for the messages with one peer on the
 * group's communicator. The queue launches operations on all its streams in the order of the calls.
 * A side stream fails, aborts and closes with its queue.
 */
final class SideStream implements Lane {

    private final StreamQueue launcher;
    private final CudaStream stream;
    private final String hint;
    private final AtomicBoolean broken = new AtomicBoolean();

    SideStream(StreamQueue launcher, CudaStream stream, String hint) {
        this.launcher = launcher;
        this.stream = stream;
        this.hint = hint;
    }

    @Override
    public StreamQueue launcher() {
        return launcher;
    }

    @Override
    public CudaStream stream() {
        return stream;
    }

    @Override
    public Optional<String> error() {
        return launcher.error();
    }

    @Override
    public String hint() {
        return hint;
    }

    @Override
    public boolean breakWith(CollectiveException reason) {
        return broken.compareAndSet(false, true);
    }

    /** No-op: the queue aborts the connection, and waits for all its streams. */
    @Override
    public void abort() {}
}

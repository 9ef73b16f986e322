// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Queue;
import org.djlx.collectives.Work;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.internal.RankStore;
import org.djlx.training.internal.Replica;

/** What the stages of one rank share: its memory, and the operations that run. */
final class StageContext {

    private static final int MAX_RUNNING = 3; // a gather, a reduction, and one that has just ended

    private final NDManager manager;
    private final Device device;
    private final RankStore store;
    private final Queue<Work> running = new ArrayDeque<>(); // oldest first

    StageContext(Replica replica) {
        manager = replica.manager();
        device = replica.device();
        store = replica.store();
    }

    NDManager manager() {
        return manager;
    }

    Device device() {
        return device;
    }

    RankStore store() {
        return store;
    }

    /** Returns an array of this type on a device: the given one, or a copy in {@code owner}. */
    NDArray converted(NDManager owner, NDArray array, ScalarType type, Device to) {
        boolean isThere = array.getDevice().equals(to);
        if (isThere && Torch.scalarType(array) == type) {
            return array;
        }
        if (!isThere) {
            // A copy between host and GPU waits in the driver until the current stream is idle. The
            // stream may wait for a peer, and meanwhile the driver may block the peer's launches
            // on a GPU that the ranks share.
            CurrentStreams.await(device);
        }
        NDArray copy = Torch.empty(owner, array.getShape(), type);
        Torch.copy(copy, array);
        return copy;
    }

    /**
     * Waits for the oldest operation if too many are running, as PyTorch's {@code
     * limit_all_gathers}. An operation keeps its arrays until the GPU has ended it, so a host that
     * is far ahead would keep the gradients of all stages.
     */
    Work limited(Work work) {
        running.add(work);
        if (running.size() > MAX_RUNNING) {
            running.remove().await(Duration.ofDays(1)); // Its own timeout is shorter.
        }
        return work;
    }
}

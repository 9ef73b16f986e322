// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import org.djlx.collectives.Work;

/** An operation captured into a CUDA graph; it runs when the graph is launched. */
record CapturedWork(long sequence, List<NDArray> result) implements Work {

    @Override
    public boolean isCompleted() {
        return true;
    }

    @Override
    public Optional<Throwable> exception() {
        return Optional.empty();
    }

    @Override
    public void await() {}

    @Override
    public void await(Duration timeout) {}

    @Override
    public void blockCurrentStream() {}

    @Override
    public CompletionStage<List<NDArray>> getFuture() {
        return CompletableFuture.completedStage(result);
    }
}

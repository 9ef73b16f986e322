// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import java.time.Duration;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Makes calls that may never return, on a separate thread. The caller waits up to a timeout. After
 * the first timeout all further calls fail immediately. The thread ends when it is idle.
 */
final class BoundedCalls {

    private static final long KEEP_ALIVE_MILLIS = 100;

    private final Duration patience;
    private final ThreadPoolExecutor executor;
    private volatile boolean late;

    BoundedCalls(String name, Duration patience) {
        this.patience = patience;
        executor =
                new ThreadPoolExecutor(
                        1,
                        1,
                        KEEP_ALIVE_MILLIS,
                        TimeUnit.MILLISECONDS,
                        new LinkedBlockingQueue<>(),
                        body -> {
                            Thread thread = new Thread(body, name);
                            thread.setDaemon(true);
                            return thread;
                        });
        executor.allowCoreThreadTimeOut(true);
    }

    /**
     * Makes a call.
     *
     * @throws ExecutionException if the call throws
     * @throws TimeoutException if the call, or an earlier one, has not returned in time
     */
    <T> T call(Callable<T> call) throws ExecutionException, TimeoutException {
        if (late) {
            throw new TimeoutException("an earlier call has not returned in time");
        }
        Future<T> future = executor.submit(call);
        boolean interrupted = false;
        long end = System.nanoTime() + patience.toNanos();
        try {
            while (true) {
                try {
                    return future.get(end - System.nanoTime(), TimeUnit.NANOSECONDS);
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
        } catch (TimeoutException e) {
            late = true;
            throw e;
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.pool;

/**
 * One rank's part of a {@link RankPool}, for example its shard of a model. All methods are called
 * on the rank's own thread.
 */
public interface RankWorker<R, T> extends AutoCloseable {

    /**
     * Serves a request. All ranks serve the same requests in the same order, and may issue
     * operations on their group.
     *
     * @param request the request; do not modify it, because ranks that are threads share the object
     * @return the result; the caller of {@link RankPool#submit} gets the result of rank 0
     * @throws Exception if the request fails; the whole pool then fails
     */
    T serve(R request) throws Exception;

    /** Frees the worker's resources. A no-op by default. */
    @Override
    default void close() {}
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.pool;

/**
 * What one rank of a {@link RankPool} has, such as its part of a model, and does with requests. All
 * calls come from the rank's own thread.
 *
 * @param <R> what a request is
 * @param <T> what comes of it
 */
public interface RankWorker<R, T> extends AutoCloseable {

    /**
     * Serves a request. All ranks serve the same requests in the same order, and may call their
     * group.
     *
     * @param request the request, not to be changed: ranks that are threads get the same object
     * @return what comes of it; that of rank 0 goes to the caller
     * @throws Exception if it fails, and the pool with it
     */
    T serve(R request) throws Exception;

    /** Frees what the rank has; nothing unless overridden. */
    @Override
    default void close() {}
}

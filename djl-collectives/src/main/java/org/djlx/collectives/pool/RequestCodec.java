/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.pool;

/**
 * How the requests of a {@link RankPool} get to ranks that are other processes. Thread-safe.
 *
 * @param <R> what a request is
 */
public interface RequestCodec<R> {

    /**
     * Writes a request; by the thread that submits it, which gets what this throws.
     *
     * @param request the request
     * @return its bytes, which are not changed any more
     */
    byte[] encode(R request);

    /**
     * Reads a request, on the ranks other than 0.
     *
     * @param bytes what {@link #encode} returned on rank 0
     * @return the request, with all that those ranks need of it
     */
    R decode(byte[] bytes);
}

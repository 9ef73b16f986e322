// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.pool;

/**
 * Encodes the requests of a {@link RankPool} for ranks in other processes. Implementations must be
 * thread-safe.
 */
public interface RequestCodec<R> {

    /**
     * Encodes a request. Called on the thread that submits it; exceptions go to that thread.
     *
     * @return its bytes; must not be modified afterwards
     */
    byte[] encode(R request);

    /**
     * Decodes a request. Called on the ranks other than 0.
     *
     * @return the request, with everything that those ranks need
     */
    R decode(byte[] bytes);
}

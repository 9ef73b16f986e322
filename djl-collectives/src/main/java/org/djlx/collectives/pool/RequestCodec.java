// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.pool;

/**
 * Encodes the requests of a {@link RankPool} for ranks in other processes. Implementations must be
 * thread-safe.
 */
public interface RequestCodec<R> {

    /**
     * Encodes a request, to bytes that do not change afterwards. Called on the thread that submits
     * it; exceptions go to that thread.
     */
    byte[] encode(R request);

    /**
     * Decodes a request, with everything that the ranks other than 0 need. Called on these ranks.
     */
    R decode(byte[] bytes);
}

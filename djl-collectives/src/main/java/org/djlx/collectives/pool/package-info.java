// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * RequestChannel  carries requests and reports between the processes of a pool
 */
/**
 * Ranks, as threads or processes, that serve requests together. Start with {@link RankPool}.
 *
 * <ul>
 *   <li>{@link RankPool} - the ranks of a group, which serve requests
 *   <li>{@link RankWorker} - one rank's part, such as a shard of a model
 *   <li>{@link RequestCodec} - encodes requests for ranks in other processes
 * </ul>
 */
package org.djlx.collectives.pool;

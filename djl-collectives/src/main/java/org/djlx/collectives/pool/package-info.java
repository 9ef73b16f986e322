/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * RequestChannel  what processes of a pool tell each other
 */
/**
 * Ranks, as threads or processes, that serve requests together. Start with {@link
 * org.djlx.collectives.pool.RankPool}.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.pool.RankPool} - ranks that serve requests together
 *   <li>{@link org.djlx.collectives.pool.RankWorker} - what each of them has
 *   <li>{@link org.djlx.collectives.pool.RequestCodec} - how requests get to ranks that are other
 *       processes
 * </ul>
 */
package org.djlx.collectives.pool;

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Key-value stores through which ranks meet, as {@code torch.distributed.Store}. Start with {@link
 * org.djlx.collectives.store.TcpStore}.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.store.FileStore} - one in a file
 *   <li>{@link org.djlx.collectives.store.HashStore} - one in memory
 *   <li>{@link org.djlx.collectives.store.PrefixStore} - a part of another
 *   <li>{@link org.djlx.collectives.store.Store} - where ranks find each other
 *   <li>{@link org.djlx.collectives.store.StoreTimeoutException} - a store had no answer in time
 *   <li>{@link org.djlx.collectives.store.TcpStore} - one over the network, PyTorch's protocol
 * </ul>
 */
package org.djlx.collectives.store;

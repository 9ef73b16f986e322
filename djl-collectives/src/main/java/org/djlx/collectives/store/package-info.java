// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * MapStore - a store whose state is a map in memory: base of HashStore and FileStore
 */
/**
 * Key-value stores in which the ranks of a job meet; the counterpart of {@code
 * torch.distributed.Store}. Start with {@link TcpStore}.
 *
 * <ul>
 *   <li>{@link Store} - the interface
 *   <li>{@link TcpStore} - over TCP, with PyTorch's protocol
 *   <li>{@link FileStore} - in a file, for processes with a common file system
 *   <li>{@link HashStore} - in memory, for threads of one JVM
 *   <li>{@link PrefixStore} - adds a prefix to the keys of another store
 *   <li>{@link StoreTimeoutException} - keys were not set in time
 * </ul>
 */
package org.djlx.collectives.store;

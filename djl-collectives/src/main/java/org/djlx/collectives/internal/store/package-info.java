/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * Command           the protocol, which is PyTorch's
 * Hello             the start of a connection between two ends of this library
 * Introduction      what a rank says of itself with each value
 * MemoryBudget      what all of them together have been granted
 * Request           a command with what came with it
 * RequestParser     bytes to requests
 * RequestWriter     commands to bytes
 * ServerConnection  one client's connection: reads commands, answers them
 * ServerState       keys, and who waits for them; what all connections share
 * TcpConnection     one connection: connects, sends, reads answers
 * ValueRegion       a value on its way to a client
 * WaitConnections   the connections on which threads wait
 * Waits             who waits for which keys
 */
/**
 * What the stores are made of. Types here are public only for {@code org.djlx.collectives}.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.internal.store.FileLog} - the file: an append-only log of
 *       changes, read by every process
 *   <li>{@link org.djlx.collectives.internal.store.GroupExchange} - the exchange of values between
 *       the ranks of a group
 *   <li>{@link org.djlx.collectives.internal.store.KeyValueMap} - what set, add, compareSet and
 *       append do to a key
 *   <li>{@link org.djlx.collectives.internal.store.LogRecord} - one change
 *   <li>{@link org.djlx.collectives.internal.store.RankProcess} - the process that a rank runs in,
 *       and whether it has died
 *   <li>{@link org.djlx.collectives.internal.store.ServerAddress} - where the server is
 *   <li>{@link org.djlx.collectives.internal.store.ServerLimits} - what clients are granted
 *   <li>{@link org.djlx.collectives.internal.store.StoreChecks} - checks of what callers pass
 *   <li>{@link org.djlx.collectives.internal.store.StoreErrors} - the texts of what goes wrong
 *   <li>{@link org.djlx.collectives.internal.store.StoreToken} - the secret that both ends may have
 *       to know
 *   <li>{@link org.djlx.collectives.internal.store.TcpStoreClient} - calls to commands; which
 *       connection each goes to
 *   <li>{@link org.djlx.collectives.internal.store.TcpStoreServer} - the port and the thread
 * </ul>
 */
package org.djlx.collectives.internal.store;

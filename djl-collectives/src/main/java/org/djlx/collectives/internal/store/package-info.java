// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Hello             handshake between clients and servers of this library
 * MemoryBudget      memory limit of a server for all clients
 * RequestParser     parses requests
 * RequestWriter     writes requests
 * ServerConnection  one client's connection on the server
 * ServerState       keys and waits, shared by all connections
 * TcpConnection     one connection on the client
 * ValueRegion       sends a value to a client in pieces
 * WaitConnections   a client's connections for blocking waits
 * Waits             which waits depend on which keys
 */
/**
 * Implementation of the stores. Types are public only for other packages of this module.
 *
 * <ul>
 *   <li>{@link Command} - commands of the protocol, which is PyTorch's
 *   <li>{@link KeyValueMap} - keys and queues: executes requests
 *   <li>{@link Request} - a command with its arguments
 *   <li>{@link RequestLog} - keys and queues that the requests in a file have made
 *   <li>{@link RequestStore} - operations of a store as requests
 *   <li>{@link ServerAddress} - host, port and token of a server
 *   <li>{@link ServerLimits} - limits of a server
 *   <li>{@link StoreChecks} - argument checks
 *   <li>{@link StoreErrors} - exceptions
 *   <li>{@link StoreToken} - secret shared by clients and server
 *   <li>{@link TcpStoreClient} - client of a TcpStore
 *   <li>{@link TcpStoreServer} - server of a TcpStore
 * </ul>
 */
package org.djlx.collectives.internal.store;

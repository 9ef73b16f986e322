/**
 * What the stores are made of. Types here are public only for {@code org.djlx.collectives}.
 *
 * <pre>
 *   for all stores
 *     KeyValueMap         what set, add, compareSet and append do to a key
 *     StoreChecks         checks of what callers pass
 *     StoreErrors         the texts of what goes wrong
 *   groups that meet in a store
 *     GroupExchange       the exchange of values between the ranks of a group
 *     Introduction        what a rank says of itself with each value
 *     RankProcess         the process that a rank runs in, and whether it has died
 *   FileStore
 *     FileLog             the file: an append-only log of changes, read by every process
 *     LogRecord           one change
 *   both ends of TcpStore
 *     Command             the protocol, which is PyTorch's
 *     Hello               the start of a connection between two ends of this library
 *     StoreToken          the secret that both ends may have to know
 *   the server of TcpStore
 *     TcpStoreServer      the port and the thread
 *     ServerConnection    one client's connection: reads commands, answers them
 *     RequestParser       bytes to requests
 *     Request             a command with what came with it
 *     ServerState         keys, and who waits for them; what all connections share
 *     Waits               who waits for which keys
 *     ServerLimits        what clients are granted
 *     MemoryBudget        what all of them together have been granted
 *     ValueRegion         a value on its way to a client
 *   the client of TcpStore
 *     TcpStoreClient      calls to commands; which connection each goes to
 *     ServerAddress       where the server is
 *     TcpConnection       one connection: connects, sends, reads answers
 *     WaitConnections     the connections on which threads wait
 *     RequestWriter       commands to bytes
 * </pre>
 */
package org.djlx.collectives.internal.store;

/**
 * Backend {@code shm}: collectives and messages over memory that threads or processes of one host
 * share.
 *
 * <pre>
 *   ShmBackend       one rank: opens tensors, and hands operations and messages to their queues
 *   ShmBackendFactory  how the backend is found
 *   ShmSegment       the shared memory, and what lies where in it
 *   ShmP2pBuffers    the part of it that is the caller's
 *
 *   OpQueue          runs operations one after the other, on whatever thread waits for them
 *   OpWork           one of them
 *   Steps            their way through the staging memory
 *   ShmMoves         those that move data
 *   ShmReductions    those that reduce
 *   Reducer          adds up what the ranks have staged, by libtorch
 *   JavaSums         the same, where it is little
 *   ViewCache        arrays over addresses, for libtorch
 *
 *   MessageQueue     the messages under way, all at the same time
 *   Transfer         one of them
 *   MessageMatcher   which message a receive gets
 *   MessagePump      moves messages between two ranks
 *   MessageFailures  when a message has failed, and why
 *   MessageDriver    which thread does all that
 *   Mailbox          what goes from one rank to another, in shared memory
 *   TagQueues        queues by tag
 *
 *   PendingWork      how operations and messages end
 *   HostTensor       a tensor's elements, held until then
 *   HostTensors      the tensors of one operation
 *   Copies           copies bytes, and counts them
 * </pre>
 */
package org.djlx.collectives.internal.shm;

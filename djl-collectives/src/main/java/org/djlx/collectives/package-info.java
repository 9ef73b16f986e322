/**
 * Process groups over NDArrays, with pluggable backends; the counterpart of {@code
 * torch.distributed}. Whatever a user may name is here, in {@link org.djlx.collectives.trace}, in
 * {@link org.djlx.collectives.gradient}, or in {@link org.djlx.collectives.engine}; packages below
 * {@code internal} promise nothing.
 *
 * <pre>
 *   ProcessGroups               starts groups: from the environment, or for threads of this JVM
 *   RankPool, RankWorker        ranks that serve requests together, and what each of them has
 *   RequestCodec                how the requests get to ranks that are other processes
 *   ProcessGroup, Work          one rank's handle on a group, and what its operations return
 *   ReduceOp, P2pOp, OpType     what operations take
 *   ObjectCollectives           collectives on Java objects instead of tensors
 *   ShmOptions, NcclOptions, CudaP2pOptions, NcclBatch
 *                               what is particular to a backend
 *   Store: TcpStore, FileStore, HashStore, PrefixStore
 *                               where ranks find each other
 *   P2pBuffers, P2pAllocator    memory into which other ranks write
 *   P2pStream                   a stream that writes there, for operators of your own
 *   KernelSignals               where kernels of your own raise and await signals themselves
 *   OneShotSlots                where they exchange data as one-shot all-reduces do
 *   CollectiveException and its kin, StoreTimeoutException
 *                               what goes wrong
 *   Backend, BackendFactory, Backends, BackendOptions, Support, GroupContext, Operation, Reductions
 *                               for a backend of your own
 *   OperationTrace              who is told how operations go; {@code trace} has the one there is
 * </pre>
 */
package org.djlx.collectives;

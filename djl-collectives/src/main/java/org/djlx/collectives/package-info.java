/**
 * Process groups over NDArrays, with pluggable backends; the counterpart of {@code
 * torch.distributed}. Whatever a user may name is here, in {@link org.djlx.collectives.trace}, in
 * {@link org.djlx.collectives.gradient}, in {@link org.djlx.collectives.engine}, or in {@link
 * org.djlx.collectives.safetensors}; packages below {@code internal} promise nothing. A plus marks
 * what users name.
 *
 * <pre>
 * + ProcessGroups                starts groups: from the environment, or for threads of this JVM
 * + ProcessGroup                 one rank's handle on a group, with the collectives
 * + Work                         what its operations return
 * + ReduceOp                     how elements are reduced
 * + P2pOp                        a message of a batch
 * + ObjectCollectives            collectives on Java objects instead of tensors
 * + RankPool                     ranks that serve requests together
 * + RankWorker                   what each of them has
 * + RequestCodec                 how requests get to ranks that are other processes
 * + ShmOptions                   options of the backend for CPUs
 * + NcclOptions                  of that for GPUs by NCCL
 * + NcclBatch                    calls of NCCL as one
 * + CudaP2pOptions               of that whose GPUs write into each other's memory
 * + Store                        where ranks find each other
 * + TcpStore                     one over the network, PyTorch's protocol
 * + FileStore                    one in a file
 * + HashStore                    one in memory
 * + PrefixStore                  a part of another
 * + P2pBuffers                   memory into which other ranks write
 * + P2pAllocator                 tensors in such memory
 * + P2pStream                    a stream that writes there, for operators of your own
 * + KernelSignals                where kernels of your own raise and await signals themselves
 * + OneShotSlots                 where they exchange data as one-shot all-reduces do
 * + CollectiveException          an operation failed
 * + CollectiveMismatchException  because ranks called different things
 * + CollectiveTimeoutException   because ranks did not arrive in time
 * + StoreTimeoutException        a store had no answer in time
 * + Backend                      a backend of your own
 * + BackendFactory               makes it
 * + Backends                     those that there are
 * + BackendOptions               what a user may say to it
 * + Support                      what it can
 * + GroupContext                 what it is told of its group
 * + Operation                    an operation under way
 * + OpType                       its kind
 * + OperationTrace               who is told how operations go; {@code trace} has the one there is
 * + Reductions                   reductions of elements on the CPU
 *   GroupState                   what all handles on a group share on one rank
 *   Lifeline                     what keeps that from being closed
 *   SubGroups                    creates groups of some ranks
 *   RankThreads                  threads that are the ranks of a group
 *   JobId                        tells jobs apart whose groups have the same names
 *   OperationChecks              checks arguments before anything is sent
 *   Coalescing                   a collective on several tensors
 *   CoalescedWork                its work
 *   MonitoredBarrier             a barrier that says who is missing
 *   HostWait                     waits on the host
 *   HostP2pStream                a stream on the CPU
 *   ObjectCodec                  objects as bytes
 *   RequestChannel               what processes of a pool tell each other
 * </pre>
 */
package org.djlx.collectives;

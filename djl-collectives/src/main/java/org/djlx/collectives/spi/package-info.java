// SPDX-License-Identifier: Apache-2.0
/**
 * Service provider interface for backends. To add a backend, implement {@link
 * org.djlx.collectives.spi.Backend} and {@link org.djlx.collectives.spi.BackendFactory}, and
 * register the factory by {@link java.util.ServiceLoader}. A backend on CPUs extends {@link
 * org.djlx.collectives.spi.cpu.CpuBackend}.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.spi.Backend} - base class of backends: moves the data of a
 *       group on one rank
 *   <li>{@link org.djlx.collectives.spi.BackendFactory} - creates backends
 *   <li>{@link org.djlx.collectives.spi.BackendOptions} - base class of options
 *   <li>{@link org.djlx.collectives.spi.Backends} - the available backends
 *   <li>{@link org.djlx.collectives.spi.GroupContext} - the group for which a backend is created
 *   <li>{@link org.djlx.collectives.spi.OpType} - the kind of an operation
 *   <li>{@link org.djlx.collectives.spi.Operation} - one operation of a group, as issued by one
 *       rank
 *   <li>{@link org.djlx.collectives.spi.OperationTrace} - receives the events of an operation
 *   <li>{@link org.djlx.collectives.spi.PeerWatch} - watches the processes of a group
 *   <li>{@link org.djlx.collectives.spi.Reductions} - element-wise reductions on the CPU
 *   <li>{@link org.djlx.collectives.spi.Support} - the operations, element types and reductions of
 *       a backend
 * </ul>
 */
package org.djlx.collectives.spi;

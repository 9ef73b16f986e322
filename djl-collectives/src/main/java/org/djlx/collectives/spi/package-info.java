// SPDX-License-Identifier: Apache-2.0
/**
 * Service provider interface for backends. To add a backend, implement {@link Backend} and {@link
 * BackendFactory}, and register the factory by {@link java.util.ServiceLoader}. A backend on CPUs
 * extends {@link org.djlx.collectives.spi.cpu.CpuBackend}.
 *
 * <ul>
 *   <li>{@link Backend} - base class of backends: moves the data of a group on one rank
 *   <li>{@link BackendFactory} - creates backends
 *   <li>{@link BackendOptions} - base class of options
 *   <li>{@link Backends} - the available backends
 *   <li>{@link GroupContext} - the group for which a backend is created
 *   <li>{@link OpType} - the kind of an operation
 *   <li>{@link Operation} - one operation of a group, as issued by one rank
 *   <li>{@link OperationTrace} - receives the events of an operation
 *   <li>{@link PeerWatch} - watches the processes of a group
 *   <li>{@link Reductions} - element-wise reductions on the CPU
 *   <li>{@link Support} - the operations, element types and reductions of a backend
 * </ul>
 */
package org.djlx.collectives.spi;

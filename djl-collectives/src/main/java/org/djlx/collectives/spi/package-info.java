/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * For authors of backends: what a backend implements, what it is given, and how it is found. Start
 * with {@link org.djlx.collectives.spi.Backend}.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.spi.Backend} - a backend of your own
 *   <li>{@link org.djlx.collectives.spi.BackendFactory} - makes it
 *   <li>{@link org.djlx.collectives.spi.BackendOptions} - what a user may say to it
 *   <li>{@link org.djlx.collectives.spi.Backends} - those that there are
 *   <li>{@link org.djlx.collectives.spi.GroupContext} - what it is told of its group
 *   <li>{@link org.djlx.collectives.spi.OpType} - its kind
 *   <li>{@link org.djlx.collectives.spi.Operation} - an operation under way
 *   <li>{@link org.djlx.collectives.spi.OperationTrace} - who is told how operations go; {@code
 *       trace} has the one there is
 *   <li>{@link org.djlx.collectives.spi.Reductions} - reductions of elements on the CPU
 *   <li>{@link org.djlx.collectives.spi.Support} - what it can
 * </ul>
 */
package org.djlx.collectives.spi;

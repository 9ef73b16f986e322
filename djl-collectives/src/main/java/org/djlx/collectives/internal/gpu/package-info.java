/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * What the backends on GPUs have in common. Internal to them.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.internal.gpu.Disposal} - frees what destroyed groups held,
 *       beside who destroys them
 *   <li>{@link org.djlx.collectives.internal.gpu.EventPool} - events that are used again
 *   <li>{@link org.djlx.collectives.internal.gpu.GpuWork} - an operation that has ended when an
 *       event behind it has happened
 *   <li>{@link org.djlx.collectives.internal.gpu.LongCalls} - threads for calls that may wait for
 *       other ranks or GPUs
 *   <li>{@link org.djlx.collectives.internal.gpu.Watchdog} - completes works, and ends them when
 *       they are late or cannot end well
 * </ul>
 */
package org.djlx.collectives.internal.gpu;

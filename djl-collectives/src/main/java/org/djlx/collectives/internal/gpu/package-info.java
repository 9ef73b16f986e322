/**
 * What the backends on GPUs have in common. Internal to them.
 *
 * <pre>
 *   GpuWork      an operation that has ended when an event behind it has happened
 *   Watchdog     completes works, and ends them when they are late or cannot end well
 *   EventPool    events that are used again
 *   LongCalls    threads for calls that may wait for other ranks or GPUs
 *   Disposal     frees what destroyed groups held, beside who destroys them
 * </pre>
 */
package org.djlx.collectives.internal.gpu;

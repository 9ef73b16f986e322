// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi;

/**
 * Receives the events of one {@link Operation}; {@link org.djlx.collectives.trace} records them.
 * Methods must not throw or block. Successive calls may come from different threads, with a
 * happens-before edge between them.
 */
public interface OperationTrace {

    /** The backend rejected the operation; it counts as not issued. */
    void withdrawn();

    /** The operation starts to run. */
    void started();

    /**
     * The operation has ended, with its failure or null, whether or not it was started. Returns the
     * file to which the flight record is or will be written; null if there is none.
     */
    String ended(Throwable failure);
}

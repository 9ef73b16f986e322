/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.spi;

/**
 * Is told how one operation goes, by the {@link Operation}; {@link org.djlx.collectives.trace}
 * records it. No method throws or waits, and calls that follow each other may come from different
 * threads if these pass the operation on safely.
 */
public interface OperationTrace {

    /** The backend did not take the operation: it is as if it had not been issued. */
    void withdrawn();

    /** Its execution begins. */
    void started();

    /**
     * It has ended, whether or not it was started.
     *
     * @param failure why it failed, or null if it ended well
     * @return the file in which the record of the failure is or will be; null if there is none
     */
    String ended(Throwable failure);
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

/** Records what a rank enqueues, to be enqueued again at the cost of one call. */
@FunctionalInterface
interface Recorder {

    /** What was recorded. */
    interface Recording extends AutoCloseable {

        /** Enqueues all of it once. */
        void launch();

        @Override
        void close();
    }

    /**
     * Records.
     *
     * @param work enqueues the work on the rank's stream, of which nothing runs; what it uses stays
     *     in place until the recording is closed
     * @return the recording, to be closed by the caller
     */
    Recording record(Runnable work);
}

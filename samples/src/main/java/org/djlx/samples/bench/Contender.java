/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.bench;

import ai.djl.ndarray.NDArray;

/** One of several ways to do an operation, as one rank does it on prepared inputs. */
@FunctionalInterface
interface Contender {

    /**
     * Does it; on a GPU, enqueues it on the current stream.
     *
     * @return the result, which the caller closes; null if it is in an array that is kept
     */
    NDArray call();

    /**
     * Does it on the inputs as they were prepared, even where calls overwrite them.
     *
     * @return the result; null if there is nothing to compare
     */
    default NDArray result() {
        return null;
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.engine;

import ai.djl.modality.Input;
import ai.djl.modality.Output;
import java.util.Optional;

/** A model on several ranks, as a {@link ParallelModelLoader} has loaded it. Thread-safe. */
public interface ParallelModel extends AutoCloseable {

    /**
     * Serves a request.
     *
     * @param input the request; from a predictor of {@link ai.djl.ndarray.NDList}s, one as its
     *     data, to which the answer's data is one too, or its code is 400 or more
     * @return the answer, whose data may still be coming. A request that cannot be served has one
     *     too, with its code and what was wrong
     */
    Output predict(Input input);

    /**
     * Tells why requests are not served any more.
     *
     * @return the reason; empty if they are
     */
    Optional<String> unavailabilityCause();

    /** Frees the model on all ranks. */
    @Override
    void close();
}

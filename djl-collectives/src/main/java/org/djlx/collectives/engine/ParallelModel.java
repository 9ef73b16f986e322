// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.engine;

import ai.djl.modality.Input;
import ai.djl.modality.Output;
import java.util.List;
import java.util.Optional;

/** A model on several ranks, loaded by a {@link ParallelModelLoader}. Thread-safe. */
public interface ParallelModel extends AutoCloseable {

    /**
     * Serves a request.
     *
     * @param input the request. A predictor on {@link ai.djl.ndarray.NDList}s passes its list as
     *     the data, and expects either a list as the answer's data or an error code (400 or more)
     * @return the answer, whose data may be streamed. A request that cannot be served gets an
     *     answer with an error code and message
     */
    Output predict(Input input);

    /**
     * Serves inputs of types of its own, such as texts, at once.
     *
     * @return an answer for each input; empty, by default, if the model does not take such inputs
     */
    default Optional<List<?>> predictAll(List<?> inputs) {
        return Optional.empty();
    }

    /**
     * Receives each property that is set on the DJL model after loading, such as {@code
     * metric_dimension}, DJL Serving's name for the model. Does nothing by default.
     */
    default void setProperty(String key, String value) {}

    /** {@return why the model no longer serves requests; empty while it serves} */
    Optional<String> unavailabilityCause();

    /** Frees the model on all ranks. */
    @Override
    void close();
}

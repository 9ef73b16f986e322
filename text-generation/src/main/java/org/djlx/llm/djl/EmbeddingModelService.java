// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.djl;

import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.ndarray.BytesSupplier;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.RejectedExecutionException;
import org.djlx.collectives.engine.ParallelModel;
import org.djlx.llm.EmbeddingModel;
import org.djlx.llm.server.ApiException;
import org.djlx.llm.server.EmbeddingApi;

/** Answers texts, and JSON requests of DJL Serving, with an embedding model. */
final class EmbeddingModelService implements ParallelModel {

    private final EmbeddingModel model;
    private final EmbeddingApi api;

    /** Takes ownership of the model. */
    EmbeddingModelService(String name, EmbeddingModel model) {
        this.model = model;
        api = new EmbeddingApi(name, model);
    }

    /** Takes the name under which DJL Serving registers the model. */
    @Override
    public void setProperty(String key, String value) {
        if (key.equals("metric_dimension")) {
            api.rename(value);
        }
    }

    @Override
    public Output predict(Input input) {
        ApiException failure;
        try {
            BytesSupplier data = input.getData();
            String answer = api.embeddings(data == null ? new byte[0] : data.getAsBytes());
            return TextModelService.output(
                    200, "OK", "application/json", BytesSupplier.wrap(answer));
        } catch (ApiException e) {
            failure = e;
        } catch (RejectedExecutionException e) {
            failure = new ApiException(429, null, e.getMessage());
        } catch (RuntimeException e) { // It would end DJL Serving's worker.
            failure = new ApiException(500, null, String.valueOf(e.getMessage()));
        }
        return TextModelService.refusal(failure);
    }

    /** Returns the vectors of texts; empty for inputs of other types. */
    @Override
    public Optional<List<?>> predictAll(List<?> inputs) {
        return inputs.stream().allMatch(String.class::isInstance)
                ? Optional.of(
                        List.of(model.embed(inputs.stream().map(String.class::cast).toList())))
                : Optional.empty();
    }

    @Override
    public Optional<String> unavailabilityCause() {
        return Optional.empty();
    }

    @Override
    public void close() {
        model.close();
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Function;
import org.djlx.llm.EmbeddingModel;
import org.djlx.llm.GeneratorStatistics;
import org.djlx.llm.TextGenerator;

/** A model of a server, and the paths that it answers. */
sealed interface ServedModel {

    /** Handlers of the routes that only this kind of model has: request body to response body. */
    Map<Route, Function<byte[], String>> handlers();

    boolean serves(Route route);

    String name();

    /** Returns the names of the LoRA adapters that requests may give as their model. */
    default List<String> adapters() {
        return List.of();
    }

    int maxLength();

    Optional<String> unavailabilityCause();

    /** Returns the metrics of this model. */
    String metrics(ServerMetrics metrics);

    /** A model that generates text; {@code updatesAdapters} by requests. */
    record Generator(TextApi api, TextGenerator generator, boolean updatesAdapters)
            implements ServedModel {

        @Override
        public Map<Route, Function<byte[], String>> handlers() {
            return Map.of(
                    Route.TOKENIZE,
                    api::tokenize,
                    Route.DETOKENIZE,
                    api::detokenize,
                    Route.LOAD_ADAPTER,
                    api::loadAdapter,
                    Route.UNLOAD_ADAPTER,
                    api::unloadAdapter);
        }

        @Override
        public boolean serves(Route route) {
            boolean updates = route == Route.LOAD_ADAPTER || route == Route.UNLOAD_ADAPTER;
            return route != Route.EMBEDDINGS && (updatesAdapters || !updates);
        }

        @Override
        public List<String> adapters() {
            return api.adapters();
        }

        @Override
        public String name() {
            return api.model();
        }

        @Override
        public int maxLength() {
            return generator.maxLength();
        }

        @Override
        public Optional<String> unavailabilityCause() {
            return generator.unavailabilityCause();
        }

        @Override
        public String metrics(ServerMetrics metrics) {
            GeneratorStatistics statistics = generator.statistics();
            return metrics.write(name(), statistics);
        }
    }

    /** A model that computes embeddings. */
    record Embedder(EmbeddingApi api, EmbeddingModel model) implements ServedModel {

        @Override
        public Map<Route, Function<byte[], String>> handlers() {
            return Map.of(Route.EMBEDDINGS, api::embeddings);
        }

        @Override
        public boolean serves(Route route) {
            return route == Route.EMBEDDINGS || !route.takesBody() && route != Route.PAGE;
        }

        @Override
        public String name() {
            return api.model();
        }

        @Override
        public int maxLength() {
            return model.maxLength();
        }

        @Override
        public Optional<String> unavailabilityCause() {
            return Optional.empty();
        }

        @Override
        public String metrics(ServerMetrics metrics) {
            return metrics.write(name());
        }
    }
}

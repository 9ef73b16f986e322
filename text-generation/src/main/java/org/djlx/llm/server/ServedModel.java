// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

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

    int maxLength();

    Optional<String> unavailabilityCause();

    /** Returns the metrics of this model. */
    String metrics(ServerMetrics metrics);

    /** A model that generates text. */
    record Generator(TextApi api, TextGenerator generator) implements ServedModel {

        @Override
        public Map<Route, Function<byte[], String>> handlers() {
            return Map.of(Route.TOKENIZE, api::tokenize, Route.DETOKENIZE, api::detokenize);
        }

        @Override
        public boolean serves(Route route) {
            return route != Route.EMBEDDINGS;
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

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Function;
import java.util.function.LongConsumer;
import org.djlx.llm.EmbeddingModel;
import org.djlx.llm.GeneratorStatistics;
import org.djlx.llm.TextGenerator;

/** A model of a server, and the paths that it answers. */
sealed interface ServedModel {

    /** Answers requests of a route as a whole. */
    interface Handler {

        /**
         * Returns the body of the response. {@code reserve} gets the most bytes of a large answer
         * before it is computed; it throws if there is no memory for them.
         */
        String answer(byte[] request, LongConsumer reserve);

        static Handler of(Function<byte[], String> api) {
            return (request, reserve) -> api.apply(request);
        }
    }

    /** Handlers of the routes that only this kind of model has. */
    Map<Route, Handler> handlers();

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
        public Map<Route, Handler> handlers() {
            return Map.of(
                    Route.TOKENIZE,
                    Handler.of(api::tokenize),
                    Route.DETOKENIZE,
                    Handler.of(api::detokenize),
                    Route.LOAD_ADAPTER,
                    Handler.of(api::loadAdapter),
                    Route.UNLOAD_ADAPTER,
                    Handler.of(api::unloadAdapter));
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
        public Map<Route, Handler> handlers() {
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

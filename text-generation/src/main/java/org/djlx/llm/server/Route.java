// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import io.netty.handler.codec.http.HttpMethod;
import java.util.EnumSet;
import java.util.Set;
import java.util.function.BiFunction;

/** The server's paths. */
enum Route {
    PAGE("/", false, null),
    HEALTH("/health", false, null),
    /** As {@link #HEALTH}, for SageMaker. */
    PING("/ping", false, null),
    VERSION("/version", true, null),
    METRICS("/metrics", true, null),
    /** The list of models; with {@code /NAME} behind it, one model. */
    MODELS("/v1/models", true, null),
    CHAT("/v1/chat/completions", true, TextApi::chat),
    COMPLETION("/v1/completions", true, TextApi::completion),
    RESPONSE("/v1/responses", true, TextApi::response),
    /** A chat if it has messages, otherwise DJL Serving's schema. */
    INVOCATION("/invocations", true, TextApi::invocationOrChat),
    LOAD_ADAPTER("/v1/load_lora_adapter", true, null),
    UNLOAD_ADAPTER("/v1/unload_lora_adapter", true, null),
    EMBEDDINGS("/v1/embeddings", true, null),
    TOKENIZE("/tokenize", true, null),
    DETOKENIZE("/detokenize", true, null),
    /** All other paths; the name is their label in metrics. */
    OTHER("other", false, null);

    private static final Set<Route> OTHER_BODIES =
            EnumSet.of(LOAD_ADAPTER, UNLOAD_ADAPTER, EMBEDDINGS, TOKENIZE, DETOKENIZE);

    private final String path;
    private final boolean needsToken;
    private final BiFunction<TextApi, byte[], TextCall> reader;

    Route(String path, boolean needsToken, BiFunction<TextApi, byte[], TextCall> reader) {
        this.path = path;
        this.needsToken = needsToken;
        this.reader = reader;
    }

    static Route of(String uri) {
        String path = path(uri);
        for (Route route : values()) {
            if (route.path.equals(path)) {
                return route;
            }
        }
        return path.startsWith(MODELS.path + '/') ? MODELS : OTHER;
    }

    static String path(String uri) {
        return uri.replaceFirst("[?#].*", "");
    }

    String path() {
        return path;
    }

    boolean needsToken() {
        return needsToken;
    }

    /** Returns whether requests have a body, which is read on another thread. */
    boolean takesBody() {
        return reader != null || OTHER_BODIES.contains(this);
    }

    boolean allows(HttpMethod method) {
        return takesBody()
                ? method.equals(HttpMethod.POST)
                : method.equals(HttpMethod.GET) || method.equals(HttpMethod.HEAD);
    }

    /** Returns the allowed methods, as in the header {@code Allow}. */
    String allowedMethods() {
        return takesBody() ? "POST" : "GET, HEAD";
    }

    TextCall read(TextApi api, byte[] json) {
        return reader.apply(api, json);
    }
}

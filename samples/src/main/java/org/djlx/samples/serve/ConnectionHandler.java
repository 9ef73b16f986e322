/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.serve;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import io.netty.buffer.ByteBufUtil;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpMethod;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.HttpVersion;
import io.netty.handler.codec.http.QueryStringDecoder;
import io.netty.handler.codec.http.TooLongHttpHeaderException;
import io.netty.handler.codec.http.TooLongHttpLineException;
import io.netty.util.concurrent.ScheduledFuture;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import org.djlx.fusedops.llm.api.ApiException;
import org.djlx.fusedops.llm.api.TextAnswer;
import org.djlx.fusedops.llm.api.TextApi;
import org.djlx.fusedops.llm.api.TextCall;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One connection, which answers its requests one after the other. A timeout runs at all times:
 * while a request is awaited or received, and until the client has read the answer.
 */
final class ConnectionHandler extends SimpleChannelInboundHandler<FullHttpRequest> {

    /** Event: running answers must end now. */
    static final Object TIME_IS_UP = new Object();

    /** The route, in metrics, of requests without one. */
    static final String OTHER = "other";

    private static final String INVOCATIONS = "/invocations";

    private static final Logger logger = LoggerFactory.getLogger(ConnectionHandler.class);

    /** Reads a request of one kind. */
    private interface Reader {
        TextCall read(TextApi api, byte[] json);
    }

    private final GenerationServer server;
    private ScheduledFuture<?> clock;
    private boolean busy;
    private boolean last; // nothing more is served
    private boolean timeIsUp; // the server is closing, and has waited
    private boolean chunked;
    private boolean keepAlive;
    private String route = OTHER;
    private Answer answer;

    ConnectionHandler(GenerationServer server) {
        this.server = server;
    }

    @Override
    public void channelActive(ChannelHandlerContext context) {
        int connections = server.metrics.connections().incrementAndGet();
        if (server.isClosing()) {
            context.close(); // The connection was accepted while the server started to close.
            return;
        }
        if (connections > server.options.maxConnections()) {
            busy = true;
            refuse(context, Replies.failure(503, "too many clients are connected"));
            return;
        }
        awaitRequest(context);
    }

    @Override
    public void channelInactive(ChannelHandlerContext context) {
        server.metrics.connections().decrementAndGet();
        setClock(null);
        if (answer != null) {
            answer.abandon();
            answer = null;
        }
    }

    /**
     * Handles the server's closing: closes an idle connection at once, and ends a running answer
     * when time is up.
     */
    @Override
    public void userEventTriggered(ChannelHandlerContext context, Object event) {
        if (event == TIME_IS_UP) {
            timeIsUp = true;
            endAnswer();
        } else if (event == server && !busy) {
            context.close();
        }
    }

    private void endAnswer() {
        if (timeIsUp && answer != null) {
            answer.fail(Replies.failure(503, "the server is shutting down"));
        }
    }

    @Override
    public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
        logger.debug("A connection has failed", cause);
        context.close();
    }

    @Override
    public void channelWritabilityChanged(ChannelHandlerContext context) {
        if (answer != null && context.channel().isWritable()) {
            answer.pump();
        }
    }

    private void setClock(ScheduledFuture<?> next) {
        if (clock != null) {
            clock.cancel(false);
        }
        clock = next;
    }

    private void setClock(ChannelHandlerContext context, Duration limit, Runnable atEnd) {
        setClock(context.executor().schedule(atEnd, limit.toMillis(), TimeUnit.MILLISECONDS));
    }

    private void awaitRequest(ChannelHandlerContext context) {
        busy = false;
        keepAlive = false;
        route = OTHER;
        setClock(context, server.options.requestTimeout(), context::close);
    }

    /**
     * Makes the arriving request the last one of the connection; returns false if an earlier one
     * waits for its answer.
     */
    boolean takeLast() {
        last = true;
        return !busy;
    }

    @Override
    protected void channelRead0(ChannelHandlerContext context, FullHttpRequest request) {
        if (busy || last) {
            context.close(); // A pipelined request, or a request after the last one.
            return;
        }
        busy = true;
        chunked = request.protocolVersion().equals(HttpVersion.HTTP_1_1);
        keepAlive = chunked && HttpUtil.isKeepAlive(request) && !server.isClosing();
        setClock(context, server.options.answerTimeout(), () -> timeOut(context));
        try {
            serve(context, request);
        } catch (ApiException e) {
            refuse(context, e);
        }
    }

    private void timeOut(ChannelHandlerContext context) {
        if (answer == null || !context.channel().isWritable()) {
            context.close(); // The client does not read.
            return;
        }
        setClock(context, server.options.requestTimeout(), context::close);
        answer.fail(
                Replies.failure(
                        504,
                        "the answer has taken longer than "
                                + server.options.answerTimeout().toSeconds()
                                + " s"));
    }

    private void serve(ChannelHandlerContext context, FullHttpRequest request) {
        Throwable malformed = request.decoderResult().cause();
        if (malformed != null) {
            keepAlive = false;
            boolean large =
                    malformed instanceof TooLongHttpHeaderException
                            || malformed instanceof TooLongHttpLineException;
            throw Replies.failure(
                    large ? 431 : 400,
                    large ? "the request's head is too large" : "the request is not HTTP");
        }
        if (!server.access.allowsHost(request.headers())) {
            throw Replies.failure(
                    403,
                    "this server does not go by the name of "
                            + request.headers().get(HttpHeaderNames.HOST));
        }
        String path = request.uri().replaceFirst("[?#].*", "");
        switch (path) {
            case "/" -> get(context, request, path, Replies::page);
            case "/health" -> get(context, request, path, this::health);
            case "/metrics" -> getForToken(context, request, path, this::metrics);
            case "/v1/models" -> getForToken(context, request, path, this::models);
            case "/v1/chat/completions" -> generate(context, request, path, TextApi::chat);
            case "/v1/completions" -> generate(context, request, path, TextApi::completion);
            case INVOCATIONS -> generate(context, request, path, TextApi::invocation);
            default -> {
                if (!path.startsWith("/v1/models/")) {
                    throw Replies.failure(404, "there is nothing at this path");
                }
                String name = path.substring("/v1/models/".length());
                getForToken(context, request, "/v1/models", () -> model(name));
            }
        }
    }

    /** Creates a reply. */
    private interface Reply {
        FullHttpResponse make();
    }

    private void requireMethod(FullHttpRequest request, HttpMethod method) {
        if (!request.method().equals(method)) {
            throw Replies.failure(405, "this path takes " + method + " only");
        }
    }

    private void requireToken(FullHttpRequest request) {
        if (!server.access.allowsToken(request.headers())) {
            throw Replies.failure(401, "send the server's token as 'Authorization: Bearer TOKEN'");
        }
    }

    private void get(
            ChannelHandlerContext context, FullHttpRequest request, String path, Reply reply) {
        route = path;
        requireMethod(request, HttpMethod.GET);
        reply(context, reply.make());
    }

    private void getForToken(
            ChannelHandlerContext context, FullHttpRequest request, String path, Reply reply) {
        route = path;
        requireToken(request);
        get(context, request, path, reply);
    }

    private FullHttpResponse health() {
        Optional<String> cause = server.unavailabilityCause();
        JsonObject json = new JsonObject();
        json.addProperty("status", cause.isEmpty() ? "Healthy" : "Unhealthy");
        cause.ifPresent(reason -> json.addProperty("cause", reason));
        return Replies.text(cause.isEmpty() ? 200 : 503, "application/json", json.toString());
    }

    private FullHttpResponse metrics() {
        return Replies.text(
                200,
                "text/plain; version=0.0.4; charset=utf-8",
                server.metrics.write(server.generator.statistics()));
    }

    private FullHttpResponse models() {
        JsonArray models = new JsonArray();
        models.add(describeModel());
        JsonObject json = new JsonObject();
        json.addProperty("object", "list");
        json.add("data", models);
        return Replies.text(200, "application/json", json.toString());
    }

    private FullHttpResponse model(String encodedName) {
        String name;
        try {
            name = new QueryStringDecoder(encodedName).path();
        } catch (IllegalArgumentException e) {
            name = encodedName; // Not percent-encoded.
        }
        String served = server.api.model();
        if (!name.equals(served)) {
            throw new ApiException(
                    404,
                    "not_found_error",
                    "model",
                    "there is no model '" + name + "', but '" + served + "'");
        }
        return Replies.text(200, "application/json", describeModel().toString());
    }

    private JsonObject describeModel() {
        JsonObject json = new JsonObject();
        json.addProperty("id", server.api.model());
        json.addProperty("object", "model");
        json.addProperty("created", server.startedAt.getEpochSecond());
        json.addProperty("owned_by", "djlx");
        json.addProperty("max_model_len", server.generator.maxLength());
        return json;
    }

    private void generate(
            ChannelHandlerContext context, FullHttpRequest request, String path, Reader reader) {
        route = path;
        requireToken(request);
        requireMethod(request, HttpMethod.POST);
        String type = request.headers().get(HttpHeaderNames.CONTENT_TYPE, "");
        // For other types, browsers let pages of other sites send requests without a preflight.
        if (!type.split(";")[0].trim().equalsIgnoreCase("application/json")) {
            throw Replies.failure(415, "the content type must be application/json");
        }
        server.unavailabilityCause()
                .ifPresent(
                        cause -> {
                            throw Replies.failure(503, cause);
                        });
        byte[] json = ByteBufUtil.getBytes(request.content());
        long start = System.nanoTime();
        try {
            server.readers.execute(() -> submit(context, reader, json, start));
        } catch (RejectedExecutionException e) {
            throw tooMany();
        }
    }

    private static ApiException tooMany() {
        return Replies.failure(429, "too many requests wait; try again later");
    }

    /** Tokenizes and submits a request, on a reader thread because this may take long. */
    private void submit(ChannelHandlerContext context, Reader reader, byte[] json, long start) {
        ApiException failure;
        try {
            TextCall call = reader.read(server.api, json);
            TextAnswer text = call.submit(server.generator);
            if (!onLoop(context, () -> begin(context, call, text, start))) {
                text.cancel();
            }
            return;
        } catch (ApiException e) {
            failure = e;
        } catch (IllegalArgumentException e) {
            failure = Replies.failure(400, e.getMessage());
        } catch (RejectedExecutionException e) {
            failure = tooMany();
        } catch (IllegalStateException e) {
            failure = Replies.failure(503, e.getMessage());
        } catch (RuntimeException
                | Error e) { // Includes running out of memory: the client must get an answer.
            logger.warn("A request could not be submitted", e);
            failure = Replies.failure(500, "the request has failed: " + e);
        }
        onLoop(context, () -> refuse(context, failure));
    }

    /** Runs code on the connection's event loop; returns false if the server is closed. */
    private static boolean onLoop(ChannelHandlerContext context, Runnable code) {
        try {
            context.executor().execute(code);
            return true;
        } catch (RejectedExecutionException e) {
            return false;
        }
    }

    private void begin(ChannelHandlerContext context, TextCall call, TextAnswer text, long start) {
        if (!context.channel().isActive()) {
            text.cancel();
            server.metrics.disconnected();
            return;
        }
        answer =
                new Answer(
                        context,
                        call.format(),
                        text,
                        chunked,
                        keepAlive,
                        start,
                        server.metrics,
                        (status, sent) -> {
                            answer = null;
                            server.metrics.replied(route, status);
                            next(context, sent);
                        });
        answer.start();
        endAnswer(); // The server may have started to close meanwhile.
    }

    /** Replies with an error in the format of the path's API. */
    private void refuse(ChannelHandlerContext context, ApiException e) {
        reply(context, Replies.error(route.equals(INVOCATIONS) ? e.forInvocation() : e));
    }

    private void reply(ChannelHandlerContext context, FullHttpResponse reply) {
        server.metrics.replied(route, reply.status().code());
        HttpUtil.setKeepAlive(reply, keepAlive);
        context.writeAndFlush(reply)
                .addListener((ChannelFutureListener) sent -> next(context, sent.isSuccess()));
    }

    private void next(ChannelHandlerContext context, boolean sent) {
        if (sent && keepAlive && !server.isClosing()) {
            awaitRequest(context);
        } else {
            context.close();
        }
    }
}

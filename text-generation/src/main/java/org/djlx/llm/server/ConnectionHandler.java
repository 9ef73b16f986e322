// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.djlx.llm.server.JsonOptions.object;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import io.netty.buffer.ByteBufUtil;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandler.Sharable;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.channel.socket.ChannelInputShutdownEvent;
import io.netty.channel.socket.SocketChannel;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.HttpVersion;
import io.netty.handler.codec.http.QueryStringDecoder;
import io.netty.handler.codec.http.TooLongHttpHeaderException;
import io.netty.handler.codec.http.TooLongHttpLineException;
import io.netty.util.ReferenceCountUtil;
import io.netty.util.concurrent.ScheduledFuture;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One connection, which answers its requests one after the other. A timeout runs at all times:
 * while a request is awaited or received, and until the client has read the answer.
 */
final class ConnectionHandler extends SimpleChannelInboundHandler<FullHttpRequest> {

    /** Event: running answers must end now. */
    static final Object TIME_IS_UP = new Object();

    /** The header of a request's id: the client's, or one of the server. */
    static final String REQUEST_ID = "x-request-id";

    private static final int MAX_PIPELINED = 16;
    private static final Duration PROBE_PERIOD = Duration.ofMillis(500);

    /** Drops bytes before they are decoded. */
    @Sharable
    private static final class Drain extends ChannelInboundHandlerAdapter {
        @Override
        public void channelRead(ChannelHandlerContext context, Object bytes) {
            ReferenceCountUtil.release(bytes);
        }
    }

    private static final Drain DRAIN = new Drain();

    private static final Logger logger = LoggerFactory.getLogger(ConnectionHandler.class);
    private static final Logger access = LoggerFactory.getLogger("org.djlx.llm.server.access");

    private final GenerationServer server;
    private final Deque<FullHttpRequest> waiting = new ArrayDeque<>(); // pipelined
    private ScheduledFuture<?> clock;
    private boolean busy;
    private boolean last; // no more requests are taken
    private boolean inputEnded; // by the client, which may still read
    private boolean timeIsUp; // the server is closing, and has waited
    private boolean chunked;
    private boolean keepAlive;
    private Route route = Route.OTHER;
    private String requestId = newId();
    private String line = "-"; // method and path of the request, for the access log
    private long start = System.nanoTime(); // when the answer began, by System.nanoTime()
    private Answer answer;

    ConnectionHandler(GenerationServer server) {
        super(false); // Requests are released when they have been read.
        this.server = server;
    }

    @Override
    public void channelActive(ChannelHandlerContext context) {
        int connections = server.metrics.connections.incrementAndGet();
        if (server.isClosing()) {
            context.close(); // It was accepted while the server started to close.
            return;
        }
        if (connections > server.options.maxConnections()) {
            takeNoMore(context);
            send(
                            context,
                            Replies.error(
                                    new ApiException(503, null, "too many clients are connected")))
                    .addListener(ChannelFutureListener.CLOSE);
            return;
        }
        awaitRequest(context);
    }

    @Override
    public void channelInactive(ChannelHandlerContext context) {
        server.metrics.connections.decrementAndGet();
        setClock(null);
        waiting.forEach(server::release);
        waiting.clear();
        if (answer != null) {
            answer.abandon();
            answer = null;
        }
    }

    String requestId() {
        return requestId;
    }

    private static String newId() {
        return "req_" + UUID.randomUUID();
    }

    /** Counts and logs a reply. The log has neither the query nor the body. */
    private void replied(ChannelHandlerContext context, int status) {
        server.metrics.replied(route.path(), status);
        access.info(
                "{} \"{}\" {} {} ms {}",
                context.channel().remoteAddress(),
                line,
                status,
                (System.nanoTime() - start) / 1_000_000,
                requestId);
    }

    boolean isBusy() {
        return busy;
    }

    /** Returns whether further requests are dropped. */
    boolean isLast() {
        return last;
    }

    /**
     * Handles the end of the client's output, and the server's closing: closes an idle connection
     * at once, and ends a running answer when time is up.
     */
    @Override
    public void userEventTriggered(ChannelHandlerContext context, Object event) {
        if (event == ChannelInputShutdownEvent.INSTANCE) {
            inputEnded = true;
            last = true;
            if (busy) {
                probe(context);
            } else {
                context.close();
            }
        } else if (event == TIME_IS_UP) {
            timeIsUp = true;
            endAnswer();
        } else if (event == server && !busy) {
            context.close();
        }
    }

    /** Checks every period whether the client, which has ended its output, still reads. */
    private void probe(ChannelHandlerContext context) {
        context.executor()
                .schedule(
                        () -> {
                            if (answer != null) {
                                answer.probe();
                            }
                            if (context.channel().isActive()) {
                                probe(context);
                            }
                        },
                        PROBE_PERIOD.toMillis(),
                        TimeUnit.MILLISECONDS);
    }

    private void endAnswer() {
        if (timeIsUp && answer != null) {
            answer.fail(new ApiException(503, null, "the server is shutting down"));
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
        keepAlive = false;
        route = Route.OTHER;
        setClock(context, server.options.requestTimeout(), context::close);
    }

    @Override
    protected void channelRead0(ChannelHandlerContext context, FullHttpRequest request) {
        waiting.add(request);
        if (isMalformed(request)
                || !request.protocolVersion().equals(HttpVersion.HTTP_1_1)
                || !HttpUtil.isKeepAlive(request)
                || waiting.size() == MAX_PIPELINED) {
            takeNoMore(context);
        }
        if (!busy) {
            serveNext(context);
        }
    }

    private void takeNoMore(ChannelHandlerContext context) {
        last = true;
        context.pipeline().addFirst(DRAIN);
    }

    private static boolean isMalformed(FullHttpRequest request) {
        Throwable failure = request.decoderResult().cause();
        return failure != null && !(failure instanceof ApiException);
    }

    private void serveNext(ChannelHandlerContext context) {
        FullHttpRequest request = waiting.remove();
        busy = true;
        chunked = request.protocolVersion().equals(HttpVersion.HTTP_1_1);
        keepAlive = !(last && waiting.isEmpty()) && !server.isClosing();
        route = Route.of(request.uri());
        requestId = request.headers().get(REQUEST_ID, "");
        if (!requestId.matches("[!-~]{1,128}")) {
            requestId = newId();
        }
        // What a client made up must not forge lines of the log.
        line = (request.method() + " " + Route.path(request.uri())).replaceAll("[^ -~]", "?");
        start = System.nanoTime();
        setClock(context, server.options.answerTimeout(), () -> timeOut(context));
        Throwable failure = request.decoderResult().cause();
        if (failure == null && route.takesBody()) {
            read(context, request);
            return;
        }
        server.release(request);
        if (failure == null) {
            reply(context, get(request.uri()));
        } else {
            refuse(context, failure instanceof ApiException e ? e : malformed(failure));
        }
    }

    private static ApiException malformed(Throwable failure) {
        return failure instanceof TooLongHttpHeaderException
                        || failure instanceof TooLongHttpLineException
                ? new ApiException(431, null, "the request's head is too large")
                : new ApiException(400, null, "the request is not HTTP");
    }

    private void timeOut(ChannelHandlerContext context) {
        if (answer == null || !context.channel().isWritable()) {
            context.close(); // The client does not read.
            return;
        }
        setClock(context, server.options.requestTimeout(), context::close);
        answer.fail(
                new ApiException(
                        504,
                        null,
                        "the answer has taken longer than "
                                + server.options.answerTimeout().toSeconds()
                                + " s"));
    }

    private FullHttpResponse get(String uri) {
        return switch (route) {
            case PAGE -> Replies.page();
            case HEALTH, PING -> health();
            case VERSION -> Replies.version();
            case METRICS -> metrics();
            case MODELS -> {
                String path = Route.path(uri);
                yield path.equals(route.path())
                        ? models()
                        : model(path.substring(route.path().length() + 1));
            }
            default -> throw new IllegalStateException(route + " takes no GET requests");
        };
    }

    private FullHttpResponse health() {
        Optional<String> cause = server.unavailabilityCause();
        JsonObject json = object("status", cause.isEmpty() ? "Healthy" : "Unhealthy");
        cause.ifPresent(reason -> json.addProperty("cause", reason));
        return Replies.text(cause.isEmpty() ? 200 : 503, "application/json", json.toString());
    }

    private FullHttpResponse metrics() {
        return Replies.text(
                200,
                "text/plain; version=0.0.4; charset=utf-8",
                server.models.get(0).metrics(server.metrics));
    }

    private FullHttpResponse models() {
        JsonArray models = new JsonArray();
        describeModels().values().forEach(models::add);
        return Replies.text(
                200, "application/json", object("object", "list", "data", models).toString());
    }

    private FullHttpResponse model(String encodedName) {
        String name;
        try {
            name = new QueryStringDecoder(encodedName).path();
        } catch (IllegalArgumentException e) {
            name = encodedName; // Not percent-encoded.
        }
        Map<String, JsonObject> models = describeModels();
        if (!models.containsKey(name)) {
            return Replies.error(
                    new ApiException(
                            404,
                            "model",
                            "there is no model '%s', but '%s'"
                                    .formatted(name, String.join("' and '", models.keySet()))));
        }
        return Replies.text(200, "application/json", models.get(name).toString());
    }

    /** Returns models, each followed by its adapters, by their names. */
    private Map<String, JsonObject> describeModels() {
        Map<String, JsonObject> all = new LinkedHashMap<>();
        for (ServedModel model : server.models) {
            all.put(model.name(), describe(model.name(), model));
            for (String adapter : model.adapters()) {
                JsonObject json = describe(adapter, model);
                json.addProperty("parent", model.name());
                all.putIfAbsent(adapter, json);
            }
        }
        return all;
    }

    private JsonObject describe(String name, ServedModel model) {
        long created = server.startedAt.getEpochSecond();
        JsonObject json = object("id", name, "object", "model", "created", created);
        json.addProperty("owned_by", "djlx");
        json.addProperty("max_model_len", model.maxLength());
        return json;
    }

    private void read(ChannelHandlerContext context, FullHttpRequest request) {
        try {
            server.readers(route, request.content().readableBytes())
                    .execute(() -> submit(context, request));
        } catch (RejectedExecutionException e) {
            server.release(request);
            refuse(context, tooMany());
        }
    }

    static ApiException tooMany() {
        return new ApiException(429, null, "too many requests wait; try again later");
    }

    /** Tokenizes and submits a request, on a reader thread because this may take long. */
    private void submit(ChannelHandlerContext context, FullHttpRequest request) {
        if (!context.channel().isActive()) {
            server.release(request);
            server.metrics.disconnects.increment();
            return;
        }
        ApiException failure;
        try {
            Route of = Route.of(request.uri());
            byte[] json = read(request);
            ServedModel model = server.model(of).orElseThrow();
            ServedModel.Handler handler = model.handlers().get(of);
            if (handler != null) {
                answerWhole(context, handler, json);
                return;
            }
            // Only generators have other paths.
            ServedModel.Generator generating = (ServedModel.Generator) model;
            TextCall call = of.read(generating.api(), json);
            TextAnswer text = call.submit(generating.generator());
            if (!onLoop(context, () -> begin(context, call, text))) {
                text.cancel();
            }
            return;
        } catch (ApiException e) {
            failure = e;
        } catch (IllegalArgumentException e) {
            failure = new ApiException(400, null, e.getMessage());
        } catch (RejectedExecutionException e) {
            failure = tooMany();
        } catch (IllegalStateException e) {
            logger.warn("A request could not be submitted: {}", e.getMessage());
            failure = new ApiException(503, null, GenerationServer.UNAVAILABLE);
        } catch (RuntimeException
                | Error e) { // Includes running out of memory: the client must get an answer.
            logger.warn("A request could not be submitted", e);
            failure = new ApiException(500, null, Answer.FAILED);
        }
        onLoop(context, () -> refuse(context, failure));
    }

    /** Computes an answer and sends it. Its memory is reserved until it is sent. */
    private void answerWhole(
            ChannelHandlerContext context, ServedModel.Handler handler, byte[] json) {
        AtomicInteger reserved = new AtomicInteger();
        Runnable release = () -> server.bodies.release(reserved.getAndSet(0));
        boolean isSent = false;
        try {
            String answer = handler.answer(json, bytes -> reserved.set(server.reserve(bytes)));
            isSent =
                    onLoop(
                            context,
                            () ->
                                    reply(context, Replies.text(200, "application/json", answer))
                                            .addListener(sent -> release.run()));
        } finally {
            if (!isSent) {
                release.run();
            }
        }
    }

    private byte[] read(FullHttpRequest request) {
        try {
            return ByteBufUtil.getBytes(request.content());
        } finally {
            server.release(request);
        }
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

    private void begin(ChannelHandlerContext context, TextCall call, TextAnswer text) {
        if (!context.channel().isActive()) {
            text.cancel();
            server.metrics.disconnects.increment();
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
                            replied(context, status);
                            next(context, sent);
                        });
        answer.start();
        endAnswer(); // The server may have started to close meanwhile.
    }

    /** Replies with an error in the format of the path's API. */
    private void refuse(ChannelHandlerContext context, ApiException e) {
        FullHttpResponse reply = Replies.error(route == Route.INVOCATION ? e.forInvocation() : e);
        if (e.status() == HttpResponseStatus.METHOD_NOT_ALLOWED.code()) {
            reply.headers().set(HttpHeaderNames.ALLOW, route.allowedMethods());
        }
        reply(context, reply);
    }

    private ChannelFuture reply(ChannelHandlerContext context, FullHttpResponse reply) {
        return send(context, reply)
                .addListener((ChannelFutureListener) sent -> next(context, sent.isSuccess()));
    }

    private ChannelFuture send(ChannelHandlerContext context, FullHttpResponse reply) {
        replied(context, reply.status().code());
        HttpUtil.setKeepAlive(reply, keepAlive);
        return context.writeAndFlush(reply);
    }

    private void next(ChannelHandlerContext context, boolean sent) {
        busy = false;
        if (!sent || server.isClosing()) {
            context.close();
        } else if (!waiting.isEmpty()) {
            serveNext(context);
        } else if (last) {
            endOutput(context);
        } else {
            awaitRequest(context);
        }
    }

    /**
     * Ends the connection. A client that is still sending would lose the last answer if the
     * connection were closed at once: what it sends is dropped until it ends or time is up.
     */
    private void endOutput(ChannelHandlerContext context) {
        if (inputEnded) {
            context.close();
            return;
        }
        setClock(context, server.options.requestTimeout(), context::close);
        ((SocketChannel) context.channel()).shutdownOutput();
    }
}

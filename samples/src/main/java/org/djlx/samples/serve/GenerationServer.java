/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.serve;

import io.netty.bootstrap.ServerBootstrap;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.ChannelPipeline;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.group.ChannelGroup;
import io.netty.channel.group.DefaultChannelGroup;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpMessage;
import io.netty.handler.codec.http.HttpObjectAggregator;
import io.netty.handler.codec.http.HttpResponse;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpServerCodec;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.util.concurrent.DefaultThreadFactory;
import io.netty.util.concurrent.GlobalEventExecutor;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.UnresolvedAddressException;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.djlx.fusedops.llm.TextGenerator;
import org.djlx.fusedops.llm.api.TextApi;

/**
 * An HTTP server in front of a generator. Event loops read and write; two threads tokenize; the
 * generator's own threads generate.
 */
public final class GenerationServer implements AutoCloseable {

    private static final int READERS = 2;
    private static final int MAX_UNREAD = 256;
    private static final Duration FAREWELL = Duration.ofSeconds(2);

    final TextApi api;
    final TextGenerator generator;
    final ServerOptions options;
    final AccessRules access;
    final ServerMetrics metrics = new ServerMetrics();
    final Instant startedAt = Instant.now();
    private final ChannelGroup connections = new DefaultChannelGroup(GlobalEventExecutor.INSTANCE);
    private final EventLoopGroup acceptors =
            new NioEventLoopGroup(1, new DefaultThreadFactory("serve-accept", true));
    private final EventLoopGroup loops =
            new NioEventLoopGroup(2, new DefaultThreadFactory("serve", true));
    final ThreadPoolExecutor readers =
            new ThreadPoolExecutor(
                    READERS,
                    READERS,
                    0,
                    TimeUnit.SECONDS,
                    new ArrayBlockingQueue<>(MAX_UNREAD),
                    new DefaultThreadFactory("serve-read", true));
    private final Channel listener;
    private volatile boolean closing;

    /**
     * Starts a server.
     *
     * @param generator the model, which the caller closes after this
     * @throws IOException if the server cannot listen there
     */
    public GenerationServer(TextApi api, TextGenerator generator, ServerOptions options)
            throws IOException {
        this.api = api;
        this.generator = generator;
        this.options = options;
        access = new AccessRules(options);
        ServerBootstrap bootstrap =
                new ServerBootstrap()
                        .group(acceptors, loops)
                        .channel(NioServerSocketChannel.class)
                        .option(ChannelOption.SO_REUSEADDR, true)
                        .childOption(ChannelOption.TCP_NODELAY, true)
                        .childHandler(
                                new ChannelInitializer<SocketChannel>() {
                                    @Override
                                    protected void initChannel(SocketChannel channel) {
                                        connect(channel);
                                    }
                                });
        var bound = bootstrap.bind(options.host(), options.port()).awaitUninterruptibly();
        if (!bound.isSuccess()) {
            stopThreads();
            throw cannotListen(options, bound.cause());
        }
        listener = bound.channel();
    }

    /** Checks that a server could listen; the address stays free. */
    static void checkAddress(ServerOptions options) throws IOException {
        try (ServerSocketChannel channel = ServerSocketChannel.open()) {
            channel.bind(new InetSocketAddress(options.host(), options.port()));
        } catch (IOException | UnresolvedAddressException e) {
            throw cannotListen(options, e);
        }
    }

    private static IOException cannotListen(ServerOptions options, Throwable cause) {
        String reason =
                cause instanceof UnresolvedAddressException
                        ? "no address is known for this name"
                        : cause.getMessage();
        return new IOException(
                String.format(
                        "cannot listen on %s port %d: %s", options.host(), options.port(), reason),
                cause);
    }

    private void connect(Channel channel) {
        connections.add(channel);
        channel.pipeline()
                .addLast(new HttpServerCodec())
                .addLast(new Aggregator(options.maxBodyBytes(), metrics))
                .addLast(new ConnectionHandler(this));
    }

    /** Assembles requests, and answers too large ones with an error of the API. */
    private static final class Aggregator extends HttpObjectAggregator {

        private final ServerMetrics metrics;

        private Aggregator(int maxBytes, ServerMetrics metrics) {
            super(maxBytes);
            this.metrics = metrics;
        }

        @Override
        protected void handleOversizedMessage(ChannelHandlerContext context, HttpMessage request) {
            if (!context.pipeline().get(ConnectionHandler.class).takeLast()) {
                context.close(); // The client would take the error as the answer to its previous
                // request.
                return;
            }
            // The rest of the request is read and dropped: some clients read the reply only after
            // they have sent the whole request.
            context.writeAndFlush(tooLarge());
        }

        /** Answers {@code Expect: 100-continue}, which curl sends with large requests. */
        @Override
        protected Object newContinueResponse(
                HttpMessage request, int maxBytes, ChannelPipeline pipeline) {
            Object reply = super.newContinueResponse(request, maxBytes, pipeline);
            boolean refused =
                    reply instanceof HttpResponse response
                            && response.status()
                                    .equals(HttpResponseStatus.REQUEST_ENTITY_TOO_LARGE);
            return refused ? tooLarge() : reply;
        }

        private FullHttpResponse tooLarge() {
            FullHttpResponse reply =
                    Replies.error(
                            Replies.failure(
                                    413,
                                    "a request may have " + maxContentLength() + " bytes at most"));
            HttpUtil.setKeepAlive(reply, false);
            metrics.replied(ConnectionHandler.OTHER, reply.status().code());
            return reply;
        }
    }

    boolean isClosing() {
        return closing;
    }

    /** Returns why the server takes no requests; empty if it does. */
    Optional<String> unavailabilityCause() {
        return closing
                ? Optional.of("the server is being closed")
                : generator.unavailabilityCause();
    }

    /** Returns the port that the server listens on. */
    public int port() {
        return ((InetSocketAddress) listener.localAddress()).getPort();
    }

    /** Returns whether only this host can reach the server. */
    boolean listensOnLoopback() {
        return ((InetSocketAddress) listener.localAddress()).getAddress().isLoopbackAddress();
    }

    /** Waits until the server is closed. */
    void await() throws InterruptedException {
        listener.closeFuture().await();
    }

    /**
     * Takes no more requests, waits for running answers until the shutdown timeout, ends the
     * remaining ones with an error, and stops all threads. A second caller waits for the first.
     */
    @Override
    public synchronized void close() {
        if (closing) {
            return;
        }
        closing = true;
        listener.close().awaitUninterruptibly();
        connections.forEach(channel -> channel.pipeline().fireUserEventTriggered(this));
        connections
                .newCloseFuture()
                .awaitUninterruptibly(options.shutdownTimeout().toMillis(), TimeUnit.MILLISECONDS);
        connections.forEach(
                channel -> channel.pipeline().fireUserEventTriggered(ConnectionHandler.TIME_IS_UP));
        connections
                .newCloseFuture()
                .awaitUninterruptibly(FAREWELL.toMillis(), TimeUnit.MILLISECONDS);
        connections.close().awaitUninterruptibly();
        stopThreads();
    }

    private void stopThreads() {
        readers.shutdownNow();
        var accepting = acceptors.shutdownGracefully(0, 5, TimeUnit.SECONDS);
        var looping = loops.shutdownGracefully(0, 5, TimeUnit.SECONDS);
        accepting.awaitUninterruptibly();
        looping.awaitUninterruptibly();
    }
}

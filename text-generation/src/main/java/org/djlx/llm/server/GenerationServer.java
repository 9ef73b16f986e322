// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import io.netty.bootstrap.ServerBootstrap;
import io.netty.channel.AdaptiveRecvByteBufAllocator;
import io.netty.channel.Channel;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.group.ChannelGroup;
import io.netty.channel.group.DefaultChannelGroup;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.handler.codec.http.DefaultHttpHeaders;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.HttpDecoderConfig;
import io.netty.handler.codec.http.HttpHeaders;
import io.netty.handler.codec.http.HttpHeadersFactory;
import io.netty.handler.codec.http.HttpObjectAggregator;
import io.netty.handler.codec.http.HttpServerCodec;
import io.netty.handler.codec.http.TooLongHttpHeaderException;
import io.netty.util.concurrent.DefaultThreadFactory;
import io.netty.util.concurrent.GlobalEventExecutor;
import java.io.IOException;
import java.net.BindException;
import java.net.InetSocketAddress;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.UnresolvedAddressException;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.Executor;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.djlx.llm.EmbeddingModel;
import org.djlx.llm.TextGenerator;
import org.djlx.nativeops.host.Required;

/**
 * An HTTP server in front of a generator. Event loops read and write; {@link #readers} tokenize;
 * the generator's own threads generate.
 */
public final class GenerationServer implements AutoCloseable {

    static final String UNAVAILABLE = "the model is not available; the server's log says why";

    // A long prompt may take seconds of CPU to tokenize. Long requests wait for each other only;
    // the operating system divides the CPU among the threads that read the short ones.
    private static final int LONG_READERS = 2;
    private static final int SHORT_READERS = 16;
    private static final int EMBEDDERS = 64; // requests that are computed together
    private static final int SHORT_BYTES = 16 << 10;
    private static final int MAX_UNREAD = 256; // of each kind
    private static final Duration FAREWELL = Duration.ofSeconds(2);

    final List<ServedModel> models;
    final ServerOptions options;
    final AccessRules access;
    final ServerMetrics metrics = new ServerMetrics();
    final Instant startedAt = Instant.now();
    private final ChannelGroup connections = new DefaultChannelGroup(GlobalEventExecutor.INSTANCE);
    private final EventLoopGroup acceptors =
            new NioEventLoopGroup(1, new DefaultThreadFactory("serve-accept", true));
    private final EventLoopGroup loops =
            new NioEventLoopGroup(2, new DefaultThreadFactory("serve", true));
    private final ThreadPoolExecutor shortReaders = readers(SHORT_READERS, "serve-read");
    private final ThreadPoolExecutor longReaders = readers(LONG_READERS, "serve-read-long");
    private final ThreadPoolExecutor embedders = readers(EMBEDDERS, "serve-embed");
    final Semaphore bodies; // permits: one for each byte of requests and embeddings in memory
    private final Channel listener;
    private volatile boolean closing;

    /**
     * Starts a server. The caller closes the generator after this; throws an IOException if the
     * server cannot listen.
     */
    public GenerationServer(TextApi api, TextGenerator generator, ServerOptions options)
            throws IOException {
        this(
                List.of(
                        new ServedModel.Generator(
                                Required.argument("GenerationServer: api", api),
                                Required.argument("GenerationServer: generator", generator),
                                false)),
                options);
    }

    /**
     * Starts a server for embeddings. The caller closes the model after this; throws an IOException
     * if the server cannot listen.
     */
    public GenerationServer(EmbeddingApi api, EmbeddingModel model, ServerOptions options)
            throws IOException {
        this(
                List.of(
                        new ServedModel.Embedder(
                                Required.argument("GenerationServer: api", api),
                                Required.argument("GenerationServer: model", model))),
                options);
    }

    /** Starts a server for models, of which the first that serves a path answers it. */
    GenerationServer(List<ServedModel> models, ServerOptions options) throws IOException {
        this.models = models;
        this.options = Required.argument("GenerationServer: options", options);
        access = new AccessRules(options);
        bodies = new Semaphore(options.maxBufferedBytes());
        ServerBootstrap bootstrap =
                new ServerBootstrap()
                        .group(acceptors, loops)
                        .channel(NioServerSocketChannel.class)
                        .option(ChannelOption.SO_REUSEADDR, true)
                        .childOption(ChannelOption.TCP_NODELAY, true)
                        .childOption(ChannelOption.ALLOW_HALF_CLOSURE, true)
                        // One read a turn: a client that floods the server delays others less.
                        .childOption(
                                ChannelOption.RCVBUF_ALLOCATOR,
                                new AdaptiveRecvByteBufAllocator().maxMessagesPerRead(1))
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

    /** Throws an IOException if a server could not listen at the address, which stays free. */
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
                        : cause instanceof BindException && options.port() > 0
                                ? cause.getMessage() + "; choose another one with --port"
                                : cause.getMessage();
        return new IOException(
                String.format(
                        "cannot listen on %s port %d: %s", options.host(), options.port(), reason),
                cause);
    }

    private void connect(Channel channel) {
        connections.add(channel);
        ConnectionHandler connection = new ConnectionHandler(this);
        channel.pipeline()
                .addLast(
                        new HttpServerCodec(
                                new HttpDecoderConfig()
                                        .setHeadersFactory(FewHeaders.FACTORY)
                                        .setTrailersFactory(FewHeaders.FACTORY)))
                .addLast(new RequestFilter(this, connection))
                .addLast(new HttpObjectAggregator(options.maxBodyBytes()))
                .addLast(connection);
    }

    /**
     * Headers with a limited number of fields: a short field takes 40 times its bytes on the heap.
     */
    private static final class FewHeaders extends DefaultHttpHeaders {

        private static final int MAX_FIELDS = 100;
        private static final HttpHeadersFactory FACTORY =
                new HttpHeadersFactory() {
                    @Override
                    public HttpHeaders newHeaders() {
                        return new FewHeaders();
                    }

                    @Override
                    public HttpHeaders newEmptyHeaders() {
                        return new FewHeaders();
                    }
                };

        @Override
        public HttpHeaders add(CharSequence name, Object value) {
            if (size() == MAX_FIELDS) {
                throw new TooLongHttpHeaderException("more than " + MAX_FIELDS + " header fields");
            }
            return super.add(name, value);
        }
    }

    /** Returns the model that answers a path; empty if none does. */
    Optional<ServedModel> model(Route route) {
        return models.stream().filter(model -> model.serves(route)).findFirst();
    }

    /** Takes the permits of an answer, which the caller releases; returns their number. */
    int reserve(long bytes) {
        if (bytes > options.maxBufferedBytes()) {
            throw ApiException.badRequest(
                    null,
                    "the answer may have %d bytes, and this server holds %d at most (--max-buffered): ask for fewer texts, for fewer dimensions, or for base64"
                            .formatted(bytes, options.maxBufferedBytes()));
        }
        if (!bodies.tryAcquire((int) bytes)) {
            throw ConnectionHandler.tooMany();
        }
        return (int) bytes;
    }

    /** Frees the body of a request, and its permits. */
    void release(FullHttpRequest request) {
        bodies.release(request.content().readableBytes());
        request.release();
    }

    /** Returns the threads that read requests of a length in bytes, or that wait for embeddings. */
    Executor readers(Route route, int bytes) {
        if (route == Route.EMBEDDINGS) {
            return embedders;
        }
        return bytes <= SHORT_BYTES ? shortReaders : longReaders;
    }

    private static ThreadPoolExecutor readers(int threads, String name) {
        return new ThreadPoolExecutor(
                threads,
                threads,
                0,
                TimeUnit.SECONDS,
                new ArrayBlockingQueue<>(MAX_UNREAD),
                new DefaultThreadFactory(name, true));
    }

    boolean isClosing() {
        return closing;
    }

    /**
     * Returns why the server takes no requests, in words for clients; empty if it does. The
     * generator's own words name processes and files, and are for the log.
     */
    Optional<String> unavailabilityCause() {
        if (closing) {
            return Optional.of("the server is being closed");
        }
        return models.stream()
                .flatMap(model -> model.unavailabilityCause().stream())
                .findFirst()
                .map(cause -> UNAVAILABLE);
    }

    /** Returns the port that the server listens on. */
    public int port() {
        return ((InetSocketAddress) listener.localAddress()).getPort();
    }

    /** Returns whether only this host can reach the server. */
    boolean listensOnLoopback() {
        return ((InetSocketAddress) listener.localAddress()).getAddress().isLoopbackAddress();
    }

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
        // Requests of closed connections are released and not read.
        shortReaders.shutdown();
        longReaders.shutdown();
        embedders.shutdown();
        var accepting = acceptors.shutdownGracefully(0, 5, TimeUnit.SECONDS);
        var looping = loops.shutdownGracefully(0, 5, TimeUnit.SECONDS);
        accepting.awaitUninterruptibly();
        looping.awaitUninterruptibly();
    }
}

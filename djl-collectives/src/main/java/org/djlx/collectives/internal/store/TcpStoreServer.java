// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import io.netty.bootstrap.ServerBootstrap;
import io.netty.channel.Channel;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.group.ChannelGroup;
import io.netty.channel.group.ChannelMatchers;
import io.netty.channel.group.DefaultChannelGroup;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.util.concurrent.DefaultThreadFactory;
import java.net.BindException;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.djlx.collectives.CollectiveException;

/**
 * The server of a {@code TcpStore}: one daemon thread that owns the keys and serves all
 * connections.
 */
public final class TcpStoreServer implements AutoCloseable {

    private static final int BACKLOG = 4096;

    private final EventLoopGroup loop;
    private final ChannelGroup channels;
    private final ServerState state;
    private final InetSocketAddress address;

    private TcpStoreServer(
            InetSocketAddress bind, ServerLimits limits, int worldSize, StoreToken token) {
        state = new ServerState(limits, worldSize, token);
        loop = new NioEventLoopGroup(1, new DefaultThreadFactory("djlx-tcpstore-server", true));
        // Channels added after close() are closed too.
        channels = new DefaultChannelGroup(loop.next(), true);
        ChannelFuture bound =
                new ServerBootstrap()
                        .group(loop)
                        .channel(NioServerSocketChannel.class)
                        .option(ChannelOption.SO_BACKLOG, BACKLOG)
                        .option(ChannelOption.SO_REUSEADDR, true)
                        .childOption(ChannelOption.TCP_NODELAY, true)
                        .childOption(ChannelOption.SO_KEEPALIVE, true)
                        .childHandler(new Acceptor())
                        .bind(bind)
                        .awaitUninterruptibly();
        if (!bound.isSuccess()) {
            stopLoop();
            throw new CollectiveException(
                    "TcpStore: the server cannot listen on %s: %s%s"
                            .formatted(
                                    bind,
                                    bound.cause().getMessage(),
                                    advice(bind.getPort(), bound.cause())),
                    bound.cause());
        }
        channels.add(bound.channel());
        address = (InetSocketAddress) bound.channel().localAddress();
    }

    private static String advice(int port, Throwable cause) {
        if (cause instanceof BindException && cause.getMessage().contains("already in use")) {
            return String.format(
                    ": another process listens there already, for example rank 0 of a job, which"
                        + " serves its store. If it is of this job, give each process a RANK of its"
                        + " own; if not, end it or choose another port than MASTER_PORT %d",
                    port);
        }
        return "; choose an address of this host and a free port, or port 0";
    }

    /**
     * Starts a server, which the caller closes. Port 0 lets the system choose a port; the world
     * size is 0 if unknown; a null token accepts all clients.
     */
    public static TcpStoreServer start(
            InetSocketAddress bind, ServerLimits limits, int worldSize, StoreToken token) {
        return new TcpStoreServer(bind, limits, worldSize, token);
    }

    public InetSocketAddress address() {
        return address;
    }

    /** Returns a future that completes when all workers have joined. */
    public CompletableFuture<Void> joined() {
        return state.joined();
    }

    /**
     * Waits until clients have closed all connections that are open at the time of the call;
     * returns false if the timeout comes first.
     */
    public boolean awaitDisconnection(Duration timeout) {
        return channels.newCloseFuture(ChannelMatchers.isNonServerChannel())
                .awaitUninterruptibly(timeout.toMillis());
    }

    /**
     * Closes all connections and frees the port. Waiting clients notice that their connection was
     * closed. Idempotent.
     */
    @Override
    public void close() {
        channels.close().awaitUninterruptibly();
        stopLoop();
    }

    private void stopLoop() {
        loop.shutdownGracefully(0, 10, TimeUnit.SECONDS).awaitUninterruptibly();
    }

    private final class Acceptor extends ChannelInitializer<Channel> {
        @Override
        protected void initChannel(Channel channel) {
            channels.add(channel);
            channel.pipeline().addLast(new ServerConnection(state));
        }
    }
}

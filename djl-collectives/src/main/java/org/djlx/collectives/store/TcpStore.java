// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.UnknownHostException;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.store.ServerAddress;
import org.djlx.collectives.internal.store.ServerLimits;
import org.djlx.collectives.internal.store.StoreChecks;
import org.djlx.collectives.internal.store.StoreToken;
import org.djlx.collectives.internal.store.TcpStoreClient;
import org.djlx.collectives.internal.store.TcpStoreServer;
import org.djlx.nativeops.host.Deadline;
import org.djlx.nativeops.host.Durations;
import org.djlx.nativeops.host.Required;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A store on a TCP server; the counterpart of {@code torch.distributed.TCPStore}. It uses the same
 * protocol, so either end can be PyTorch's.
 *
 * <p>One rank, usually rank 0, runs the server until its handle is closed. Every handle is also a
 * client:
 *
 * <pre>{@code
 * Store store = TcpStore.builder()
 *         .setHost("node0").setPort(29500)
 *         .optServer(rank == 0).optBindAddress("0.0.0.0").optWorldSize(worldSize)
 *         .build();
 * }</pre>
 *
 * <p>Calls:
 *
 * <ul>
 *   <li>All methods are thread-safe. Calls that do not wait for keys share one connection. A
 *       blocking call uses its own connection, uses no CPU, and does not delay other calls.
 *   <li>{@link #set}, {@link #append} and {@link #multiSet} return after the server has executed
 *       them.
 *   <li>An interrupted wait throws {@link CollectiveException} and leaves the thread's interrupt
 *       flag set.
 *   <li>A call that the server rejects, for example because a value is too long, throws {@link
 *       CollectiveException}. The handle stays usable, unless the server is PyTorch's.
 *   <li>When the server stops, current and later calls throw {@link CollectiveException}. The keys
 *       are lost; a server restarted on the same port is another store and needs a new handle.
 *   <li>{@link #numKeys} also counts the counter of workers that have joined.
 *   <li>PyTorch's servers have queues from 2.8, with libuv only, and {@link #listKeys} from 2.10.
 *       An older one closes the connection.
 *   <li>The server accepts 16,384 connections (a handle uses one, and one per waiting thread),
 *       1,048,576 keys, values of 8 MiB and 128 MiB in one call, as PyTorch's does, and a quarter
 *       of the heap for all clients together.
 * </ul>
 *
 * <p>Security: {@code docs/operations.md}, The store. In short: nothing is encrypted, the server
 * listens on the loopback interface unless told otherwise, and without the environment variable
 * {@code DJLX_STORE_TOKEN} everyone who reaches the port can read and write all keys.
 */
public final class TcpStore extends TcpStoreClient {

    private static final Logger logger = LoggerFactory.getLogger(TcpStore.class);

    private final String host;
    private final int port;
    private final TcpStoreServer server; // null unless this handle runs it

    private TcpStore(Builder builder, TcpStoreServer server, int port) {
        super(
                new ServerAddress(builder.connectHost(server), port, builder.token),
                builder.timeout,
                server == null ? builder.mark : null);
        host = builder.host;
        this.port = port;
        this.server = server;
        try {
            if (server != null && builder.mark != null) {
                set(builder.mark, new byte[0]);
            }
            if (builder.worldSize > 0 && builder.waitForWorkers) {
                join(builder.worldSize);
            }
        } catch (RuntimeException e) {
            super.close();
            throw e;
        }
    }

    private TcpStore(TcpStore other) {
        super(other);
        host = other.host;
        port = other.port;
        server = null;
    }

    /** {@return the builder, with the defaults} */
    public static Builder builder() {
        return new Builder();
    }

    /** {@return the server's host, as passed to the builder} */
    public String host() {
        return host;
    }

    /**
     * {@return the server's port; for a server created with port 0, the port that the system chose}
     */
    public int port() {
        return port;
    }

    @Override
    public TcpStore newHandle() {
        return new TcpStore(this);
    }

    /**
     * Closes the connections of this handle, and the server if this handle runs it; calls in
     * progress fail. Idempotent.
     */
    @Override
    public void close() {
        super.close();
        if (server != null) {
            server.close();
        }
    }

    /** Closes this handle. If it runs the server, first waits for the other handles to close. */
    public void closeAfterOthers(Duration timeout) {
        Required.argument("closeAfterOthers: timeout", timeout);
        super.close();
        if (server != null && !server.awaitDisconnection(timeout)) {
            logger.warn(
                    "TcpStore {}:{}: stopping the server although other ranks are still connected"
                            + " after {}; they can no longer use the store",
                    host,
                    port,
                    Durations.text(timeout));
        }
        close();
    }

    private void join(int worldSize) {
        long joined = addToJoined(1);
        if (server == null || joined >= worldSize) {
            return;
        }
        try {
            server.joined().get(Deadline.after(timeout()).remainingNanos(), TimeUnit.NANOSECONDS);
        } catch (TimeoutException e) {
            throw new CollectiveException(
                    ("%s: %s of %s workers joined within %s; check that all ranks were started with"
                                    + " this host and port, or increase the timeout")
                            .formatted(this, addToJoined(0), worldSize, Durations.text(timeout())),
                    e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new CollectiveException(
                    this + ": interrupted while waiting for the workers to join", e);
        } catch (ExecutionException e) {
            throw new AssertionError("this future never fails", e);
        }
    }

    /** Builds a {@link TcpStore}. */
    public static final class Builder {

        private String host;
        private int port = -1;
        private boolean server;
        private int worldSize;
        private boolean waitForWorkers = true;
        private String mark;
        private Duration timeout = StoreChecks.DEFAULT_TIMEOUT;
        private String bindAddress;
        private StoreToken token = StoreToken.of(System.getenv());
        private ServerLimits limits = ServerLimits.DEFAULTS;

        private Builder() {}

        /** Sets the host on which the server runs. */
        public Builder setHost(String host) {
            this.host = host;
            return this;
        }

        /** Sets the server's port; for a server, 0 lets the system choose. */
        public Builder setPort(int port) {
            this.port = port;
            return this;
        }

        /** Sets whether this handle runs the server; false unless set. */
        public Builder optServer(boolean server) {
            this.server = server;
            return this;
        }

        /**
         * Sets the number of handles that the job opens, the server's included. {@link #build} of
         * the server's handle then waits until all have joined. Unless set, it does not wait.
         */
        public Builder optWorldSize(int worldSize) {
            if (worldSize < 1) {
                throw new IllegalArgumentException(
                        "TcpStore: the world size must be at least 1, but is " + worldSize);
            }
            this.worldSize = worldSize;
            return this;
        }

        /**
         * Sets whether handles with a world size join, and the server's handle waits for them; true
         * unless set, and the same for all handles.
         */
        public Builder optWaitForWorkers(boolean waitForWorkers) {
            this.waitForWorkers = waitForWorkers;
            return this;
        }

        /**
         * Sets a key that identifies the server; null, the default, accepts any. The server's
         * handle sets it at once; the other handles connect only to a server that has it, and retry
         * otherwise. So they skip a foreign or an old server on the same port.
         */
        public Builder optMark(String mark) {
            this.mark = mark;
            return this;
        }

        /**
         * Sets the environment that contains the token. The default is the process's environment.
         */
        Builder optEnvironment(Map<String, String> environment) {
            this.token = StoreToken.of(environment);
            return this;
        }

        /**
         * Sets how long to try to connect, and how long methods without a timeout parameter wait; 5
         * minutes unless set. A server that does not answer within this time, or 30 s if that is
         * longer, counts as gone.
         */
        public Builder optTimeout(Duration timeout) {
            if (StoreChecks.checkTimeout(timeout).isZero()) {
                throw new IllegalArgumentException(
                        "TcpStore: the timeout must be positive, but is 0 s");
            }
            this.timeout = timeout;
            return this;
        }

        /**
         * Sets the address of this host on which the server listens, {@code "0.0.0.0"} for all.
         * Unless set, it is the loopback interface, which other hosts cannot reach.
         */
        public Builder optBindAddress(String bindAddress) {
            this.bindAddress = bindAddress;
            return this;
        }

        /** Sets the limits of the server; {@link ServerLimits#DEFAULTS} unless set. */
        Builder optLimits(ServerLimits limits) {
            this.limits = limits;
            return this;
        }

        /**
         * Starts the server if {@link #optServer} is set, and connects to it.
         *
         * @return the store; the caller closes it
         * @throws CollectiveException if the server cannot listen, or the connection is not
         *     established or not all workers join within the timeout
         */
        public TcpStore build() {
            if (host == null || host.isEmpty()) {
                throw new IllegalArgumentException("TcpStore: the host is not set; call setHost");
            }
            if (port < 0 || port > 65535 || port == 0 && !server) {
                throw new IllegalArgumentException(
                        "TcpStore %s: the port must be 1 to 65535, or 0 for a server, but is %s"
                                .formatted(host, port));
            }
            if (!server) {
                return new TcpStore(this, null, port);
            }
            TcpStoreServer started = startServer();
            try {
                return new TcpStore(this, started, started.address().getPort());
            } catch (RuntimeException e) {
                started.close();
                throw e;
            }
        }

        private TcpStoreServer startServer() {
            InetAddress address;
            try {
                address =
                        bindAddress == null
                                ? InetAddress.getLoopbackAddress()
                                : InetAddress.getByName(bindAddress);
            } catch (UnknownHostException e) {
                throw new CollectiveException(
                        "TcpStore: the bind address "
                                + bindAddress
                                + " is unknown; pass an address of this host, or 0.0.0.0 for all",
                        e);
            }
            warnIfUnreachable(address);
            TcpStoreServer started =
                    TcpStoreServer.start(
                            new InetSocketAddress(address, port), limits, worldSize, token);
            if (token == null && !address.isLoopbackAddress()) {
                logger.warn(
                        "TcpStore: the server listens on {} without a token: everyone who reaches"
                                + " this port can read and change the job's keys; set {} to the"
                                + " same secret on all ranks",
                        started.address(),
                        StoreToken.VARIABLE);
            }
            return started;
        }

        /**
         * Returns the host to connect to. The server's own handle uses the address it listens on.
         */
        private String connectHost(TcpStoreServer server) {
            if (server == null) {
                return host;
            }
            InetAddress address = server.address().getAddress();
            return address.isAnyLocalAddress()
                    ? InetAddress.getLoopbackAddress().getHostAddress()
                    : address.getHostAddress();
        }

        private void warnIfUnreachable(InetAddress address) {
            try {
                if (address.isLoopbackAddress()
                        && !InetAddress.getByName(host).isLoopbackAddress()) {
                    logger.warn(
                            "TcpStore {}:{}: the server listens on {} only, which other hosts"
                                    + " cannot reach; set optBindAddress",
                            host,
                            port,
                            address.getHostAddress());
                }
            } catch (UnknownHostException e) {
                logger.warn("TcpStore: cannot resolve the server's host name {}", host);
            }
        }
    }
}

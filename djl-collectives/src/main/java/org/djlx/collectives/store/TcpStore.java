/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.store;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.UnknownHostException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.host.Deadline;
import org.djlx.collectives.internal.host.Required;
import org.djlx.collectives.internal.store.ServerAddress;
import org.djlx.collectives.internal.store.ServerLimits;
import org.djlx.collectives.internal.store.StoreChecks;
import org.djlx.collectives.internal.store.StoreToken;
import org.djlx.collectives.internal.store.TcpStoreClient;
import org.djlx.collectives.internal.store.TcpStoreServer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A store on a server that the ranks reach by TCP; the counterpart of {@code
 * torch.distributed.TCPStore}. It speaks the same protocol, so either end can be PyTorch's.
 *
 * <p>One rank, usually 0, also runs the server, until its handle is closed. Every handle, that of
 * the server's rank included, is a client:
 *
 * <pre>{@code
 * Store store = TcpStore.builder()
 *         .setHost("node0").setPort(29500)
 *         .optServer(rank == 0).optBindAddress("0.0.0.0").optWorldSize(worldSize)
 *         .build();
 * }</pre>
 *
 * <p>All methods are thread-safe. Calls that do not wait for keys take turns on one connection; a
 * call that blocks does so on a connection of its own, uses no CPU, and holds up no other. {@link
 * #set}, {@link #append} and {@link #multiSet} return when the server has executed them. An
 * interrupted wait throws {@link CollectiveException} and leaves the thread's interrupt flag set.
 *
 * <p>A call that the server refuses, for one because a value is longer than it accepts, throws
 * {@link CollectiveException}; the handle can be used further, unless the server is PyTorch's.
 *
 * <p>When the server stops, calls in progress and all later ones throw {@link CollectiveException}:
 * the keys are lost, and a server started again on the same port is another store, for which a new
 * handle is needed.
 *
 * <p>The protocol is not encrypted, and by itself everybody who reaches the port can read and write
 * all keys. The server therefore listens on the loopback interface unless told otherwise; let it
 * listen only where none but the job's hosts can reach it. Where other users can, set the
 * environment variable {@code DJLX_STORE_TOKEN} to the same secret on all ranks: the server then
 * serves nobody else, and its clients use no other server. The secret itself is never sent.
 * PyTorch's clients and servers do not know it, and work only where it is not set.
 *
 * <p>Of PyTorch's commands, its queues and the list of keys are missing.
 */
public final class TcpStore implements Store {

    private static final Logger logger = LoggerFactory.getLogger(TcpStore.class);

    private final String host;
    private final int port;
    private final Duration timeout;
    private final TcpStoreServer server;
    private final TcpStoreClient client;

    private TcpStore(Builder builder) {
        host = builder.host;
        timeout = builder.timeout;
        server = builder.server ? builder.startServer() : null;
        try {
            port = server == null ? builder.port : server.address().getPort();
            String mark = server == null ? builder.mark : null;
            client =
                    TcpStoreClient.connect(
                            new ServerAddress(builder.connectHost(server), port, builder.token),
                            timeout,
                            mark);
            try {
                if (server != null && builder.mark != null) {
                    client.set(builder.mark, new byte[0]);
                }
                if (builder.worldSize > 0 && builder.waitForWorkers) {
                    join(builder.worldSize);
                }
            } catch (RuntimeException e) {
                client.close();
                throw e;
            }
        } catch (RuntimeException e) {
            if (server != null) {
                server.close();
            }
            throw e;
        }
    }

    /**
     * Creates a builder.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * Returns the server's host, as it was given.
     *
     * @return the host
     */
    public String host() {
        return host;
    }

    /**
     * Returns the server's port; if 0 was given for a server, the one the system has chosen.
     *
     * @return the port
     */
    public int port() {
        return port;
    }

    /** {@inheritDoc} */
    @Override
    public void set(String key, byte[] value) {
        StoreChecks.checkKey(key);
        StoreChecks.checkValue(value);
        client.set(key, value);
    }

    /** {@inheritDoc} */
    @Override
    public byte[] get(String key, Duration timeout) {
        StoreChecks.checkKey(key);
        return client.get(key, Deadline.after(StoreChecks.checkTimeout(timeout)));
    }

    /** {@inheritDoc} */
    @Override
    public long add(String key, long amount) {
        StoreChecks.checkKey(key);
        return client.add(key, amount);
    }

    /** {@inheritDoc} */
    @Override
    public byte[] compareSet(String key, byte[] expected, byte[] desired) {
        StoreChecks.checkKey(key);
        StoreChecks.checkValue(expected);
        StoreChecks.checkValue(desired);
        return client.compareSet(key, expected, desired);
    }

    /** {@inheritDoc} */
    @Override
    public void append(String key, byte[] value) {
        StoreChecks.checkKey(key);
        StoreChecks.checkValue(value);
        client.append(key, value);
    }

    /** {@inheritDoc} */
    @Override
    public boolean check(List<String> keys) {
        StoreChecks.checkKeys(keys);
        return client.check(keys);
    }

    /** {@inheritDoc} */
    @Override
    public void waitFor(List<String> keys, Duration timeout) {
        StoreChecks.checkKeys(keys);
        client.waitFor("waitFor", keys, Deadline.after(StoreChecks.checkTimeout(timeout)));
    }

    /** {@inheritDoc} */
    @Override
    public void multiSet(List<String> keys, List<byte[]> values) {
        StoreChecks.checkPairs(keys, values);
        client.multiSet(keys, values);
    }

    /** {@inheritDoc} */
    @Override
    public List<byte[]> multiGet(List<String> keys, Duration timeout) {
        StoreChecks.checkKeys(keys);
        return client.multiGet(keys, Deadline.after(StoreChecks.checkTimeout(timeout)));
    }

    /** {@inheritDoc} */
    @Override
    public boolean delete(String key) {
        StoreChecks.checkKey(key);
        return client.delete(key);
    }

    /**
     * Returns the number of keys in the whole store. As with PyTorch, the counter of the workers
     * that have joined is one of them.
     */
    @Override
    public long numKeys() {
        return client.numKeys();
    }

    /** {@inheritDoc} */
    @Override
    public Duration timeout() {
        return timeout;
    }

    /**
     * Closes the connections of this handle, and the server if this handle runs it; calls in
     * progress fail. Idempotent.
     */
    @Override
    public void close() {
        client.close();
        if (server != null) {
            server.close();
        }
    }

    /**
     * Closes this handle; if it runs the server, that stays until the other handles are closed.
     *
     * @param patience how long to wait for them at most
     */
    public void closeAfterOthers(Duration patience) {
        Required.argument("patience", patience);
        client.close();
        if (server != null && !server.awaitDisconnection(patience)) {
            logger.warn(
                    "TcpStore {}:{}: the server stops, though {} after its own rank has left not"
                            + " all others have; those can no longer use the store",
                    host,
                    port,
                    patience);
        }
        close();
    }

    private void join(int worldSize) {
        long joined = client.join();
        if (server == null || joined >= worldSize) {
            return;
        }
        try {
            server.joined().get(Deadline.after(timeout).remainingNanos(), TimeUnit.NANOSECONDS);
        } catch (TimeoutException e) {
            throw new CollectiveException(
                    client
                            + ": "
                            + client.numJoined()
                            + " of "
                            + worldSize
                            + " workers joined within "
                            + timeout.toMillis()
                            + " ms; check that all ranks were started with this host and port, or"
                            + " raise the timeout",
                    e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new CollectiveException(
                    client + ": the thread was interrupted while it waited for the workers", e);
        } catch (ExecutionException e) {
            throw new AssertionError("Nobody fails this future", e);
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
        private int maxConnections = 16 << 10;
        private int maxKeys = 1 << 20;
        private int maxValueBytes = 8 << 20;
        private long maxBytes = Runtime.getRuntime().maxMemory() / 4;

        private Builder() {}

        /**
         * Sets the host the server runs on.
         *
         * @param host the name or address of the host
         * @return this builder
         */
        public Builder setHost(String host) {
            this.host = host;
            return this;
        }

        /**
         * Sets the server's port.
         *
         * @param port the port; 0, for a server only, lets the system choose
         * @return this builder
         */
        public Builder setPort(int port) {
            this.port = port;
            return this;
        }

        /**
         * Sets whether this handle runs the server. The default is false.
         *
         * @param server whether to run the server
         * @return this builder
         */
        public Builder optServer(boolean server) {
            this.server = server;
            return this;
        }

        /**
         * Sets how many handles the job opens; the server's handle then waits, while it is built,
         * until all have joined. The default is not to know and not to wait.
         *
         * @param worldSize the number of handles, the server's included
         * @return this builder
         */
        public Builder optWorldSize(int worldSize) {
            if (worldSize < 1) {
                throw new IllegalArgumentException("The world size must be positive: " + worldSize);
            }
            this.worldSize = worldSize;
            return this;
        }

        /**
         * Sets whether a handle with a world size joins the others and the server's waits for them.
         * The default is true; it must be the same for all.
         *
         * @param waitForWorkers whether to join and wait
         * @return this builder
         */
        public Builder optWaitForWorkers(boolean waitForWorkers) {
            this.waitForWorkers = waitForWorkers;
            return this;
        }

        /**
         * Sets a key that the server's handle sets at once and by which the others know the server:
         * one without it, on the same port, belongs to somebody else or to a time gone by. They
         * leave it alone and try again. The default, null, is to take any server.
         */
        public Builder optMark(String mark) {
            this.mark = mark;
            return this;
        }

        /**
         * Sets the environment that the token is taken from. The default is that of the process.
         */
        Builder optEnvironment(Map<String, String> environment) {
            this.token = StoreToken.of(environment);
            return this;
        }

        /**
         * Sets how long to try to connect, and how long methods without a timeout of their own
         * wait. A server that does not answer for so long, but at least 30 seconds, counts as gone.
         * The default is 5 minutes.
         *
         * @param timeout the timeout
         * @return this builder
         */
        public Builder optTimeout(Duration timeout) {
            if (StoreChecks.checkTimeout(timeout).isZero()) {
                throw new IllegalArgumentException("The timeout of a TcpStore must be positive");
            }
            this.timeout = timeout;
            return this;
        }

        /**
         * Sets on which of the host's addresses the server listens. The default is the loopback
         * interface, which other hosts cannot reach.
         *
         * @param bindAddress the address, {@code "0.0.0.0"} for all
         * @return this builder
         */
        public Builder optBindAddress(String bindAddress) {
            this.bindAddress = bindAddress;
            return this;
        }

        /**
         * Sets how many connections the server accepts. A handle uses one, and one for each of its
         * threads that waits. The default is 16384.
         *
         * @param maxConnections the number of connections
         * @return this builder
         */
        public Builder optMaxConnections(int maxConnections) {
            this.maxConnections = maxConnections;
            return this;
        }

        /**
         * Sets how many keys the server holds. The default is 1048576.
         *
         * @param maxKeys the number of keys
         * @return this builder
         */
        public Builder optMaxKeys(int maxKeys) {
            this.maxKeys = maxKeys;
            return this;
        }

        /**
         * Sets how long a value may be; what one call of {@link Store#multiSet} or {@link
         * Store#multiGet} carries may be 16 times as long. The default is that of PyTorch's server,
         * 8 MiB.
         *
         * @param maxValueBytes the length in bytes
         * @return this builder
         */
        public Builder optMaxValueBytes(int maxValueBytes) {
            this.maxValueBytes = maxValueBytes;
            return this;
        }

        /**
         * Sets how much memory the server may use for all clients together: for keys and values,
         * for the keys that they wait for, and for what is on its way to or from them. A call that
         * needs more is refused. A sixteenth is for short commands and answers only, so that
         * clients that want little are served while others have taken the rest. The default is a
         * quarter of the heap.
         *
         * @param maxBytes the number of bytes
         * @return this builder
         */
        public Builder optMaxBytes(long maxBytes) {
            this.maxBytes = maxBytes;
            return this;
        }

        /**
         * Starts the server if there is to be one, and connects to it.
         *
         * @return the store, which the caller closes
         * @throws CollectiveException if the server cannot listen, there is no connection within
         *     the timeout, or not all workers join within it
         */
        public TcpStore build() {
            if (host == null || host.isEmpty()) {
                throw new IllegalArgumentException("TcpStore: the host is not set");
            }
            if (port < 0 || port > 65535 || port == 0 && !server) {
                throw new IllegalArgumentException(
                        "TcpStore "
                                + host
                                + ": the port must be between 1 and 65535, or 0 for a server, not "
                                + port);
            }
            return new TcpStore(this);
        }

        private TcpStoreServer startServer() {
            ServerLimits limits =
                    new ServerLimits(maxConnections, maxKeys, maxValueBytes, maxBytes);
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
                                + " is unknown; give an address of this host, or 0.0.0.0 for all",
                        e);
            }
            warnIfUnreachable(address);
            return TcpStoreServer.start(
                    new InetSocketAddress(address, port), limits, worldSize, token);
        }

        /** The server's own rank connects to where the server listens, whatever others call it. */
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
                            "TcpStore {}:{}: the server listens on {} only, where other hosts"
                                    + " cannot reach it; see optBindAddress",
                            host,
                            port,
                            address.getHostAddress());
                }
            } catch (UnknownHostException e) {
                logger.warn("TcpStore: the name {} of the server's host is unknown here", host);
            }
        }
    }
}

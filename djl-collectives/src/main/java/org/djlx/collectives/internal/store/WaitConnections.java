// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashSet;
import java.util.Set;
import org.djlx.nativeops.host.Deadline;

/**
 * The connections for blocking waits of a client, one per waiting thread. A few idle ones are kept
 * for later waits. Thread-safe.
 */
final class WaitConnections implements AutoCloseable {

    private static final int MAX_IDLE = 8;

    private final ServerAddress server;
    private final Set<TcpConnection> all = new HashSet<>();
    private final Deque<TcpConnection> idle = new ArrayDeque<>();
    private boolean closed;

    WaitConnections(ServerAddress server) {
        this.server = server;
    }

    /**
     * Takes a connection for one wait; throws IOException if none can be opened, or this object is
     * closed. The check runs after a new connection was opened; if it throws, the connection is
     * closed.
     */
    TcpConnection take(Deadline deadline, Runnable check) throws IOException {
        synchronized (this) {
            if (!idle.isEmpty()) {
                return idle.pop();
            }
        }
        TcpConnection opened = TcpConnection.open(server, true, deadline);
        synchronized (this) {
            if (closed) {
                opened.close();
                throw new IOException("the store has been closed");
            }
            all.add(opened);
        }
        try {
            check.run();
        } catch (RuntimeException e) {
            drop(opened);
            throw e;
        }
        return opened;
    }

    /** Returns a connection without outstanding answers to the pool. */
    void giveBack(TcpConnection connection) {
        synchronized (this) {
            if (!closed && idle.size() < MAX_IDLE) {
                idle.push(connection);
                return;
            }
        }
        drop(connection);
    }

    /** Closes a connection instead of returning it to the pool. */
    void drop(TcpConnection connection) {
        connection.close();
        synchronized (this) {
            all.remove(connection);
        }
    }

    /** Closes all connections; waits on them fail. */
    @Override
    public synchronized void close() {
        closed = true;
        all.forEach(TcpConnection::close);
        all.clear();
        idle.clear();
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import org.djlx.collectives.internal.store.ServerLimits;

/** Builders of servers with other limits than the usual ones. */
public final class LimitedStore {

    private static final ServerLimits USUAL = ServerLimits.DEFAULTS;

    private LimitedStore() {}

    /** Lets a server accept so many keys. */
    public static TcpStore.Builder maxKeys(TcpStore.Builder server, int keys) {
        return limit(server, USUAL.maxConnections(), keys, USUAL.maxValueBytes());
    }

    /** Lets a server accept so many connections, keys, and bytes of a value. */
    static TcpStore.Builder limit(
            TcpStore.Builder server, int connections, int keys, int valueBytes) {
        return server.optLimits(new ServerLimits(connections, keys, valueBytes, USUAL.maxBytes()));
    }

    /** Lets a server use so much memory. */
    static TcpStore.Builder maxBytes(TcpStore.Builder server, long bytes) {
        return server.optLimits(
                new ServerLimits(
                        USUAL.maxConnections(), USUAL.maxKeys(), USUAL.maxValueBytes(), bytes));
    }

    /** Lets a server accept so many connections. */
    static TcpStore.Builder maxConnections(TcpStore.Builder server, int connections) {
        return limit(server, connections, USUAL.maxKeys(), USUAL.maxValueBytes());
    }
}

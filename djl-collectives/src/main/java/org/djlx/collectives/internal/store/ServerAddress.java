// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

/**
 * The address of a server, whose host's addresses are tried in order, and the shared secret, or
 * null.
 */
public record ServerAddress(String host, int port, StoreToken token) {

    @Override
    public String toString() {
        return host + ":" + port;
    }
}

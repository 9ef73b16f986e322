/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.store;

/**
 * Where a client finds its server.
 *
 * @param host the host; its addresses are tried one after the other
 * @param port the port
 * @param token the secret that both share, or null
 */
public record ServerAddress(String host, int port, StoreToken token) {

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return host + ":" + port;
    }
}

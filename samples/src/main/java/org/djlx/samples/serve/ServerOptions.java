/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.serve;

import static org.djlx.samples.common.UsageException.refuseIf;

import java.time.Duration;

/**
 * The address and the limits of a server.
 *
 * @param host the address or name to listen on
 * @param port the port; 0 for any that is free
 * @param token the token that clients must send; null for none
 * @param maxBodyBytes the largest request
 * @param maxConnections the most open connections
 * @param requestTimeout how long a connection may take to send a request, or be idle
 * @param answerTimeout how long an answer may take, until the client has read it
 * @param shutdownTimeout how long running answers may go on after the server starts to close
 */
public record ServerOptions(
        String host,
        int port,
        String token,
        int maxBodyBytes,
        int maxConnections,
        Duration requestTimeout,
        Duration answerTimeout,
        Duration shutdownTimeout) {

    /** Checks the options; throws IllegalArgumentException if one is out of range. */
    public ServerOptions {
        refuseIf(
                token != null
                        && (token.isEmpty() || !token.chars().allMatch(c -> c > 32 && c < 127)),
                "the token (DJLX_SERVE_TOKEN) must be of visible ASCII characters, one or more");
        refuseIf(
                port < 0 || port > 65_535,
                "the port must be from 0 to 65535, not %s".formatted(port));
        refuseIf(
                maxBodyBytes < 1,
                "the largest request (--max-body) must be 1 byte or more, not %s"
                        .formatted(maxBodyBytes));
        refuseIf(
                maxConnections < 1,
                "the most connections must be 1 or more, not %s".formatted(maxConnections));
        for (Duration timeout : new Duration[] {requestTimeout, answerTimeout}) {
            refuseIf(
                    timeout.isNegative() || timeout.isZero(),
                    "the timeouts of requests and answers must be above 0 s, not %s"
                            .formatted(timeout.toSeconds()));
        }
        refuseIf(
                shutdownTimeout.isNegative(),
                "the timeout of the shutdown must be 0 s or more, not %s"
                        .formatted(shutdownTimeout.toSeconds()));
    }
}

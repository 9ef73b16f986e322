// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import java.time.Duration;
import java.util.List;
import org.djlx.nativeops.host.Required;

/**
 * The address and the limits of a server.
 *
 * @param port the port; 0 for any that is free
 * @param token the token that clients must send; null for none
 * @param allowedHosts more host names that requests may name, in any case, without port
 * @param maxBufferedBytes the most bytes of request bodies and of answers with embeddings in
 *     memory, of all connections
 * @param requestTimeout how long a connection may take to send a request, or be idle
 * @param answerTimeout how long an answer may take, until the client has read it
 * @param shutdownTimeout how long running answers may go on after the server starts to close
 */
public record ServerOptions(
        String host,
        int port,
        String token,
        List<String> allowedHosts,
        int maxBodyBytes,
        int maxBufferedBytes,
        int maxConnections,
        Duration requestTimeout,
        Duration answerTimeout,
        Duration shutdownTimeout) {

    /** Throws an {@link IllegalArgumentException} if an option is out of range. */
    public ServerOptions {
        Required.check(
                token == null || !token.isEmpty() && token.chars().allMatch(c -> c > 32 && c < 127),
                "the token (DJLX_SERVE_TOKEN) must be of visible ASCII characters, one or more");
        Required.check(
                port >= 0 && port <= 65_535, "the port must be from 0 to 65535, not %s", port);
        Required.check(
                maxBodyBytes >= 1,
                "the largest request (--max-body) must be 1 byte or more, not %s",
                maxBodyBytes);
        Required.check(
                maxBufferedBytes >= maxBodyBytes,
                "the memory for requests (--max-buffered) of %d bytes is less than the"
                        + " largest request (--max-body) of %d bytes",
                maxBufferedBytes,
                maxBodyBytes);
        allowedHosts = List.copyOf(allowedHosts);
        for (String name : allowedHosts) {
            Required.check(
                    name.matches("[A-Za-z0-9._-]+"),
                    "an allowed host (--allowed-host) must be a host name without port, not"
                            + " '%s'",
                    name);
        }
        Required.check(
                maxConnections >= 1,
                "the most connections must be 1 or more, not %s",
                maxConnections);
        for (Duration timeout : new Duration[] {requestTimeout, answerTimeout}) {
            Required.check(
                    !timeout.isNegative() && !timeout.isZero(),
                    "the timeouts of requests and answers must be above 0 s, not %s",
                    timeout.toSeconds());
        }
        Required.check(
                !shutdownTimeout.isNegative(),
                "the timeout of the shutdown must be 0 s or more, not %s",
                shutdownTimeout.toSeconds());
    }

    /** Returns the address and whether there is a token, which must not get into a log. */
    @Override
    public String toString() {
        return "ServerOptions(" + host + ":" + port + (token == null ? ")" : ", with a token)");
    }
}

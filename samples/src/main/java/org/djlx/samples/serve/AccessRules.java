/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.serve;

import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpHeaders;
import io.netty.util.NetUtil;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;

/**
 * Decides which requests are allowed.
 *
 * <ul>
 *   <li>With a token: requests that carry it.
 *   <li>Without a token: requests with the server's own name or an IP address as host. Other host
 *       names are refused because of DNS rebinding, by which a page of another site could reach
 *       this server from a browser.
 * </ul>
 */
final class AccessRules {

    private final byte[] token; // hashed; null if there is none
    private final String host;

    AccessRules(ServerOptions options) {
        token = options.token() == null ? null : hash("Bearer " + options.token());
        host = options.host();
    }

    /** Returns whether the request names this server as its host. */
    boolean allowsHost(HttpHeaders headers) {
        if (token != null) {
            return true;
        }
        String name = headers.get(HttpHeaderNames.HOST, "").replaceFirst(":[0-9]*$", "");
        return name.isEmpty() // HTTP/1.0, which no browser speaks
                || name.equals("localhost")
                || name.equals(host)
                || NetUtil.isValidIpV4Address(name)
                || name.startsWith("[") && NetUtil.isValidIpV6Address(name);
    }

    /** Returns whether the request has the token, in constant time. */
    boolean allowsToken(HttpHeaders headers) {
        return token == null
                || MessageDigest.isEqual(
                        token, hash(headers.get(HttpHeaderNames.AUTHORIZATION, "")));
    }

    private static byte[] hash(String text) {
        try {
            return MessageDigest.getInstance("SHA-256")
                    .digest(text.getBytes(StandardCharsets.UTF_8));
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException("every JDK has SHA-256", e);
        }
    }
}

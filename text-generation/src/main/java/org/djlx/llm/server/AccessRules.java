// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpHeaders;
import io.netty.util.NetUtil;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HashSet;
import java.util.Locale;
import java.util.Set;

/**
 * Decides which requests are allowed.
 *
 * <ul>
 *   <li>With a token: requests that carry it.
 *   <li>Without a token: requests whose host is localhost, an IP address, or a name of the options.
 *       Other host names are refused because of DNS rebinding: a page of another site could point
 *       its own name at this server, and reach it from a browser.
 * </ul>
 */
final class AccessRules {

    private static final String SCHEME = "Bearer ";

    private final byte[] token; // hashed; null if there is none
    private final Set<String> hosts = new HashSet<>(Set.of("", "localhost"));

    AccessRules(ServerOptions options) {
        token = options.token() == null ? null : hash(options.token());
        hosts.add(normalize(options.host()));
        options.allowedHosts().forEach(name -> hosts.add(normalize(name)));
    }

    /** Returns a host name in lower case and without the root's dot. */
    private static String normalize(String host) {
        return host.toLowerCase(Locale.ROOT).replaceFirst("\\.$", "");
    }

    /**
     * {@code host} is the value of the request's header; empty in HTTP/1.0, which no browser
     * speaks.
     */
    boolean allowsHost(String host) {
        String name = normalize(host.replaceFirst(":[0-9]*$", ""));
        return token != null
                || hosts.contains(name)
                || NetUtil.isValidIpV4Address(name)
                || name.startsWith("[") && NetUtil.isValidIpV6Address(name);
    }

    /** Returns whether the request has the token, in constant time. */
    boolean allowsToken(HttpHeaders headers) {
        if (token == null) {
            return true;
        }
        String value = headers.get(HttpHeaderNames.AUTHORIZATION, "");
        return value.regionMatches(true, 0, SCHEME, 0, SCHEME.length())
                && MessageDigest.isEqual(
                        token, hash(value.substring(SCHEME.length()).stripLeading()));
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

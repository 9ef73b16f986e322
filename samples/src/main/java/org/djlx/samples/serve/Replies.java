/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.serve;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpResponse;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpVersion;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import org.djlx.fusedops.llm.api.ApiException;

/** Creates responses that are sent as a whole. */
final class Replies {

    private static final byte[] PAGE = resource("chat.html");

    private Replies() {}

    private static byte[] resource(String name) {
        try (InputStream in = Replies.class.getResourceAsStream(name)) {
            return in.readAllBytes();
        } catch (IOException e) {
            throw new UncheckedIOException("cannot read the resource " + name, e);
        }
    }

    /** Returns the chat page. Its security policy allows requests to this server only. */
    static FullHttpResponse page() {
        FullHttpResponse page =
                reply(200, "text/html; charset=utf-8", Unpooled.wrappedBuffer(PAGE));
        page.headers()
                .set(
                        HttpHeaderNames.CONTENT_SECURITY_POLICY,
                        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline';"
                                + " connect-src 'self'; base-uri 'none'; form-action 'none';"
                                + " frame-ancestors 'none'");
        return page;
    }

    static FullHttpResponse text(int status, String type, String text) {
        return reply(status, type, Unpooled.copiedBuffer(text, StandardCharsets.UTF_8));
    }

    /** Returns an error of the type that OpenAI's clients expect with a status. */
    static ApiException failure(int status, String message) {
        String type =
                switch (status) {
                    case 401 -> "authentication_error";
                    case 403 -> "permission_error";
                    case 404 -> "not_found_error";
                    case 429 -> "rate_limit_error";
                    case 500, 503 -> "server_error";
                    case 504 -> "timeout_error";
                    default -> "invalid_request_error";
                };
        return new ApiException(status, type, null, message);
    }

    static FullHttpResponse error(ApiException e) {
        FullHttpResponse reply = text(e.status(), "application/json", e.toJson());
        if (e.status() == HttpResponseStatus.UNAUTHORIZED.code()) {
            reply.headers().set(HttpHeaderNames.WWW_AUTHENTICATE, "Bearer");
        }
        if (e.status() == HttpResponseStatus.TOO_MANY_REQUESTS.code()) {
            reply.headers().set(HttpHeaderNames.RETRY_AFTER, 1);
        }
        return reply;
    }

    private static FullHttpResponse reply(int status, String type, ByteBuf content) {
        FullHttpResponse reply =
                new DefaultFullHttpResponse(
                        HttpVersion.HTTP_1_1, HttpResponseStatus.valueOf(status), content);
        reply.headers().set(HttpHeaderNames.CONTENT_LENGTH, content.readableBytes());
        setType(reply, type);
        return reply;
    }

    static void setType(HttpResponse reply, String type) {
        reply.headers()
                .set(HttpHeaderNames.CONTENT_TYPE, type)
                .set(HttpHeaderNames.CACHE_CONTROL, "no-store")
                .set("x-content-type-options", "nosniff");
    }
}

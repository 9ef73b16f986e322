// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.serve;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelHandlerContext;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpResponse;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpServerCodec;
import io.netty.handler.codec.http.HttpVersion;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.stream.Collectors;
import org.djlx.fusedops.llm.api.ApiException;

/** Creates responses that are sent as a whole. */
final class Replies {

    private static final String VERSION = resource("version.txt").strip();
    private static final byte[] PAGE = readPage().getBytes(StandardCharsets.UTF_8);

    private Replies() {}

    private static String resource(String name) {
        try (InputStream in = Replies.class.getResourceAsStream(name)) {
            return new String(in.readAllBytes(), StandardCharsets.UTF_8);
        } catch (IOException e) {
            throw new UncheckedIOException("cannot read the resource " + name, e);
        }
    }

    /** Returns the chat page with its libraries, which the build takes from npm. */
    private static String readPage() {
        String libraries =
                resource("npm/libraries.txt")
                        .lines()
                        .filter(line -> !line.startsWith("#"))
                        .map(line -> line.split(" "))
                        .map(library -> resource("npm/" + library[0] + "/" + library[2]))
                        .collect(Collectors.joining("\n"));
        return resource("chat.html").replace("/* LIBRARIES */", libraries);
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

    /** Returns the version of this project, in vLLM's schema. */
    static FullHttpResponse version() {
        return text(200, "application/json", "{\"version\":\"" + VERSION + "\"}");
    }

    /**
     * Sends an interim response. {@link HttpServerCodec} would take it for the response to the
     * request, and the response itself for that to the next one.
     */
    static void sendInterim(ChannelHandlerContext context, String status) {
        String head = "HTTP/1.1 " + status + "\r\n\r\n";
        context.pipeline()
                .context(HttpServerCodec.class)
                .writeAndFlush(Unpooled.copiedBuffer(head, StandardCharsets.US_ASCII));
    }

    static FullHttpResponse text(int status, String type, String text) {
        return reply(status, type, Unpooled.copiedBuffer(text, StandardCharsets.UTF_8));
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

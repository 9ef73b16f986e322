// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

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
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Creates responses that are sent as a whole. */
final class Replies {

    private static final Logger logger = LoggerFactory.getLogger(Replies.class);
    private static final Map<String, String> READ = new ConcurrentHashMap<>();

    private Replies() {}

    private static String resource(String name) throws IOException {
        try (InputStream in = Replies.class.getResourceAsStream(name)) {
            if (in == null) {
                throw new FileNotFoundException("the resource " + name + " is not in the jars");
            }
            return new String(in.readAllBytes(), StandardCharsets.UTF_8);
        }
    }

    /** Returns the chat page with its libraries, which the build takes from npm. */
    private static String readPage() throws IOException {
        List<String> libraries = new ArrayList<>();
        for (String line : resource("npm/libraries.txt").lines().toList()) {
            if (!line.startsWith("#")) {
                String[] library = line.split(" ");
                libraries.add(resource("npm/" + library[0] + "/" + library[2]));
            }
        }
        return resource("chat.html").replace("/* LIBRARIES */", String.join("\n", libraries));
    }

    /** Reads text from resources. */
    private interface Source {
        String read() throws IOException;
    }

    /** Replies with resources, read at the first request. If one is missing, only this fails. */
    private static FullHttpResponse fromResources(String type, Source source) {
        try {
            String text = READ.get(type);
            if (text == null) {
                text = source.read();
                READ.put(type, text);
            }
            return text(200, type, text);
        } catch (IOException e) {
            logger.warn("A reply cannot be read from the jars", e);
            return error(new ApiException(500, null, Answer.FAILED));
        }
    }

    /** Returns the chat page. Its security policy allows requests to this server only. */
    static FullHttpResponse page() {
        FullHttpResponse page = fromResources("text/html; charset=utf-8", Replies::readPage);
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
        return fromResources(
                "application/json",
                () -> "{\"version\":\"" + resource("version.txt").strip() + "\"}");
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

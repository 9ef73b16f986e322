// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelDuplexHandler;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelPromise;
import io.netty.handler.codec.DecoderResult;
import io.netty.handler.codec.http.DefaultLastHttpContent;
import io.netty.handler.codec.http.HttpContent;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpHeaderValues;
import io.netty.handler.codec.http.HttpHeaders;
import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.HttpResponse;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.HttpVersion;
import io.netty.handler.codec.http.LastHttpContent;
import io.netty.util.ReferenceCountUtil;
import java.util.List;

/**
 * Checks the head of a request before its body is buffered, and limits the body. A refused request
 * is passed on at once, with a failed decoder result whose cause is the {@link ApiException} for
 * the client; the rest of its body is dropped.
 *
 * <p>Each buffered byte has a permit of {@link GenerationServer#bodies}. The handler behind the
 * aggregator releases the permits of the requests that it gets.
 */
final class RequestFilter extends ChannelDuplexHandler {

    private final GenerationServer server;
    private final ConnectionHandler connection;
    private int buffered; // bytes of an incomplete body
    private boolean buffers; // whether the request may have a body
    private boolean refused;

    RequestFilter(GenerationServer server, ConnectionHandler connection) {
        this.server = server;
        this.connection = connection;
    }

    @Override
    public void channelInactive(ChannelHandlerContext context) {
        server.bodies.release(buffered);
        buffered = 0;
        context.fireChannelInactive();
    }

    @Override
    public void channelRead(ChannelHandlerContext context, Object message) {
        if (connection.isLast()) {
            ReferenceCountUtil.release(message);
        } else if (message instanceof HttpRequest head) {
            readHead(context, head);
        } else if (message instanceof HttpContent part) {
            readPart(context, part);
        }
    }

    /** Adds the request's id to its response. */
    @Override
    public void write(ChannelHandlerContext context, Object message, ChannelPromise promise) {
        if (message instanceof HttpResponse response) {
            response.headers().set(ConnectionHandler.REQUEST_ID, connection.requestId());
        }
        context.write(message, promise);
    }

    private void readHead(ChannelHandlerContext context, HttpRequest head) {
        boolean waits = HttpUtil.is100ContinueExpected(head);
        refused = head.decoderResult().isFailure();
        if (!refused) {
            try {
                check(head);
            } catch (ApiException e) {
                head.setDecoderResult(DecoderResult.failure(e));
                refused = true;
            }
        }
        HttpHeaders headers = head.headers();
        // The aggregator must not act on these headers: this handler does.
        headers.remove(HttpHeaderNames.EXPECT);
        if (refused || !buffers) {
            headers.remove(HttpHeaderNames.CONTENT_LENGTH);
        }
        if (refused && waits) {
            HttpUtil.setKeepAlive(head, false); // The client may send the body or not.
        } else if (waits && !connection.isBusy()) {
            Replies.sendInterim(context, "100 Continue");
        }
        context.fireChannelRead(head);
    }

    private void check(HttpRequest head) {
        HttpHeaders headers = head.headers();
        boolean old = head.protocolVersion().compareTo(HttpVersion.HTTP_1_1) < 0;
        List<String> encodings = headers.getAll(HttpHeaderNames.TRANSFER_ENCODING);
        if (encodings.size() > 1
                || encodings.size() == 1 && !encodings.get(0).equalsIgnoreCase("chunked")) {
            HttpUtil.setKeepAlive(head, false); // A proxy may see another end of the request.
            throw new ApiException(400, null, "the only transfer encoding allowed is chunked");
        }
        List<String> hosts = headers.getAll(HttpHeaderNames.HOST);
        if (hosts.size() > 1 || hosts.isEmpty() && !old) {
            throw new ApiException(400, null, "a request must have one Host header");
        }
        String host = hosts.isEmpty() ? "" : hosts.get(0);
        if (!server.access.allowsHost(host)) {
            throw new ApiException(
                    403,
                    null,
                    "the host name '"
                            + host
                            + "' is not allowed; start the server with --allowed-host NAME");
        }
        Route route = Route.of(head.uri());
        if (route == Route.OTHER || server.model(route).isEmpty()) {
            throw new ApiException(404, null, "there is nothing at this path");
        }
        if (route.needsToken() && !server.access.allowsToken(headers)) {
            throw new ApiException(
                    401, null, "send the server's token as 'Authorization: Bearer TOKEN'");
        }
        if (!route.allows(head.method())) {
            throw new ApiException(
                    405, null, "this path takes " + route.allowedMethods() + " only");
        }
        if (!old
                && headers.contains(HttpHeaderNames.EXPECT)
                && !HttpUtil.is100ContinueExpected(head)) {
            throw new ApiException(417, null, "the only expectation allowed is 100-continue");
        }
        buffers = route.takesBody();
        if (buffers) {
            checkBody(headers);
        }
    }

    private void checkBody(HttpHeaders headers) {
        String type = headers.get(HttpHeaderNames.CONTENT_TYPE, "").split(";")[0].trim();
        // Browsers let pages of other sites send other types without a preflight request.
        if (!HttpHeaderValues.APPLICATION_JSON.contentEqualsIgnoreCase(type)) {
            throw new ApiException(415, null, "the content type must be application/json");
        }
        String length = headers.get(HttpHeaderNames.CONTENT_LENGTH, "0");
        if (Long.parseLong(length) > server.options.maxBodyBytes()) {
            throw tooLarge();
        }
        server.unavailabilityCause()
                .ifPresent(
                        cause -> {
                            throw new ApiException(503, null, cause);
                        });
    }

    private ApiException tooLarge() {
        int max = server.options.maxBodyBytes();
        return new ApiException(413, null, "a request may have " + max + " bytes at most");
    }

    private void readPart(ChannelHandlerContext context, HttpContent part) {
        int bytes = part.content().readableBytes();
        if (refused) {
            part.release();
            return;
        }
        if (!buffers) {
            part.content().skipBytes(bytes);
        } else if (bytes > server.options.maxBodyBytes() - buffered) {
            part.release();
            refuseBody(context, tooLarge());
            return;
        } else if (!server.bodies.tryAcquire(bytes)) {
            part.release();
            refuseBody(context, ConnectionHandler.tooMany());
            return;
        } else {
            buffered = part instanceof LastHttpContent ? 0 : buffered + bytes;
        }
        context.fireChannelRead(part);
    }

    private void refuseBody(ChannelHandlerContext context, ApiException refusal) {
        refused = true;
        buffered = 0;
        LastHttpContent end = new DefaultLastHttpContent(Unpooled.EMPTY_BUFFER);
        end.setDecoderResult(DecoderResult.failure(refusal));
        context.fireChannelRead(end);
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelHandlerContext;
import io.netty.handler.codec.http.DefaultHttpContent;
import io.netty.handler.codec.http.DefaultHttpResponse;
import io.netty.handler.codec.http.DefaultLastHttpContent;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpResponse;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.HttpVersion;
import io.netty.util.concurrent.EventExecutor;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CancellationException;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.atomic.AtomicBoolean;
import org.djlx.collectives.CollectiveException;
import org.djlx.llm.Generation;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * An answer being sent to a client. When the generator reports progress, the connection's event
 * loop takes the available pieces while the connection is writable; the rest waits in the
 * generations. The event loop calls all methods.
 */
final class Answer {

    /** The error that clients get. Exceptions name processes and files: only the log has them. */
    static final String FAILED = "the request has failed; the server's log says why";

    private static final Logger logger = LoggerFactory.getLogger(Answer.class);

    /** Called at the end of an answer. */
    interface Ending {
        /**
         * Called once, after the last byte was handed to the operating system. {@code sent}:
         * whether the answer could be sent.
         */
        void ended(int status, boolean sent);
    }

    private final ChannelHandlerContext context;
    private final AnswerFormat format;
    private final TextAnswer text;
    private final boolean chunked;
    private final boolean keepAlive;
    private final long start;
    private final ServerMetrics metrics;
    private final Ending ending;
    private final EventExecutor loop;
    private final AtomicBoolean awake = new AtomicBoolean();
    private boolean begun;
    private long firstPiece; // when it was there, by System.nanoTime(); 0 before
    private String whole; // an answer that is not streamed, at its end
    private boolean over;

    /**
     * Creates an answer to a request that arrived at {@code start}, by {@link System#nanoTime}.
     * {@code chunked}: whether the client's HTTP version has chunks; without them, a streamed
     * answer ends with the connection.
     */
    Answer(
            ChannelHandlerContext context,
            AnswerFormat format,
            TextAnswer text,
            boolean chunked,
            boolean keepAlive,
            long start,
            ServerMetrics metrics,
            Ending ending) {
        this.context = context;
        loop = context.executor(); // Kept: the context finds it through several objects.
        this.format = format;
        this.text = text;
        this.chunked = chunked;
        this.keepAlive = keepAlive;
        this.start = start;
        this.metrics = metrics;
        this.ending = ending;
    }

    void start() {
        text.onProgress(this::wake);
    }

    /** Called by the generator's thread. */
    private void wake() {
        if (awake.compareAndSet(false, true)) {
            try {
                loop.execute(this::pump);
            } catch (RejectedExecutionException e) {
                text.cancel(); // The server is closed.
            }
        }
    }

    /** Sends the available pieces while the connection is writable. */
    void pump() {
        awake.set(false);
        if (over) {
            return;
        }
        try {
            while (!format.isStreamed() || context.channel().isWritable()) {
                Optional<String> next = text.poll();
                if (next.isEmpty()) {
                    if (text.isComplete()) {
                        finish();
                        return;
                    }
                    break;
                }
                take(next.get());
            }
        } catch (CancellationException e) {
            // Cancelled by the server: a client that leaves ends this answer before.
            fail(new ApiException(503, null, e.getMessage()));
            return;
        } catch (RuntimeException e) {
            log(e);
            fail(new ApiException(500, null, FAILED));
            return;
        }
        context.flush();
    }

    private static void log(RuntimeException e) {
        if (e.getCause() instanceof CollectiveException) {
            // The generator logs once, with the stack trace, why all generations fail.
            logger.warn("A generation has failed: {}", e.getMessage());
        } else {
            logger.warn("A generation has failed", e);
        }
    }

    private void take(String next) {
        if (firstPiece == 0) {
            firstPiece = System.nanoTime();
            metrics.firstToken.add(Duration.ofNanos(firstPiece - start));
        }
        if (!format.isStreamed()) {
            whole = next; // The last one is all of it.
            return;
        }
        begin();
        if (!next.isEmpty()) {
            context.write(new DefaultHttpContent(buffer(next)));
        }
    }

    private void begin() {
        if (begun) {
            return;
        }
        begun = true;
        HttpResponse head = new DefaultHttpResponse(HttpVersion.HTTP_1_1, HttpResponseStatus.OK);
        Replies.setType(head, format.contentType());
        HttpUtil.setTransferEncodingChunked(head, chunked);
        HttpUtil.setKeepAlive(head, keepAlive);
        context.write(head);
    }

    private ByteBuf buffer(String text) {
        return ByteBufUtil.writeUtf8(context.alloc(), text);
    }

    private void finish() {
        if (format.isStreamed()) {
            end(new DefaultLastHttpContent(Unpooled.EMPTY_BUFFER), 200, true);
        } else {
            end(Replies.text(200, format.contentType(), whole));
        }
    }

    /** Ends the answer with an error. No-op if it has ended. */
    void fail(ApiException failure) {
        if (over) {
            return;
        }
        text.cancel();
        if (begun) {
            end(new DefaultLastHttpContent(buffer(format.failure(failure))), 200, false);
        } else {
            end(Replies.error(format.refusal(failure)));
        }
    }

    /**
     * Sends bytes without meaning to a client that has ended its output: if it has closed the
     * connection, they or the next ones fail to be sent.
     */
    void probe() {
        if (over || !context.channel().isWritable()) {
            return;
        }
        if (begun) {
            context.writeAndFlush(new DefaultHttpContent(buffer("\n"))); // an empty line
        } else if (chunked) {
            Replies.sendInterim(context, "102 Processing");
        }
    }

    /** Ends the answer after the client has disconnected. */
    void abandon() {
        if (!over) {
            over = true;
            text.cancel();
            text.generations().forEach(metrics::ended);
            metrics.disconnects.increment();
        }
    }

    private void end(FullHttpResponse whole) {
        HttpUtil.setKeepAlive(whole, keepAlive);
        int status = whole.status().code();
        end(whole, status, status == 200);
    }

    private void end(Object last, int status, boolean complete) {
        over = true;
        text.generations().forEach(metrics::ended);
        // All choices are generated in the same steps.
        int tokens =
                text.generations().stream().mapToInt(Generation::generatedTokens).max().orElse(0);
        if (complete && tokens > 1) {
            metrics.token.add(Duration.ofNanos((System.nanoTime() - firstPiece) / (tokens - 1)));
        }
        ChannelFuture sent = context.writeAndFlush(last);
        sent.addListener(
                future -> {
                    if (complete && future.isSuccess()) {
                        metrics.answer.add(Duration.ofNanos(System.nanoTime() - start));
                    }
                    ending.ended(status, future.isSuccess());
                });
    }
}

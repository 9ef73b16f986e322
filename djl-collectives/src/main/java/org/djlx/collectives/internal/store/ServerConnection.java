// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelHandlerContext;
import io.netty.handler.codec.ByteToMessageDecoder;
import io.netty.handler.codec.DecoderException;
import io.netty.util.concurrent.Future;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The server's end of one connection: reads {@linkplain Command commands} and answers them.
 *
 * <p>The protocol has no error answer. After a wrong command the server closes the connection and
 * logs the reason; other connections are not affected. While a client does not read its answers,
 * its commands are not read either. So a connection keeps at most one command, or the answers to
 * one command and a few kilobytes, all acquired from the server's {@link MemoryBudget}.
 *
 * <p>A client has 10 s to say hello: to send VALIDATE and, if the server has a token, to prove that
 * it has the token, too. Then the server closes the connection.
 */
final class ServerConnection extends ByteToMessageDecoder {

    private static final Logger logger = LoggerFactory.getLogger(ServerConnection.class);

    /** Answers up to this length are copied into one buffer, to send several together. */
    private static final int MAX_COPIED_BYTES = 4 << 10;

    private static final int HELLO_SECONDS = 10;

    private static final int ANSWER_BYTES = 128;

    /** Stands for a key in an answer that is not the value of one. */
    private static final String LIST = "";

    private final ServerState state;
    private RequestParser parser;
    private ChannelHandlerContext context; // null until connected
    private Future<?> helloTimeout;
    private boolean validated;
    private boolean admitted;
    private Hello.Challenge challenge;
    private boolean refused;
    private Waits.Wait wait;
    private List<String> woken = List.of(); // queues of the last wait that had values at its end

    /** The values in transit that are not copied. */
    private int valuesUnderWay;

    /** The budget acquired for received bytes that are not parsed yet. */
    private int unread;

    ServerConnection(ServerState state) {
        this.state = state;
        admitted = state.isOpen();
        parser = newParser(admitted ? state.limits() : state.limits().forStrangers());
    }

    private RequestParser newParser(ServerLimits limits) {
        return new RequestParser(limits, state.memory());
    }

    @Override
    public void channelActive(ChannelHandlerContext ctx) throws Exception {
        context = ctx;
        helloTimeout =
                ctx.executor()
                        .schedule(
                                () -> refuse(ctx, "no hello within " + HELLO_SECONDS + " s"),
                                HELLO_SECONDS,
                                TimeUnit.SECONDS);
        ServerConnection surplus = state.connected(this);
        if (surplus != null) {
            surplus.refuse(
                    surplus.context,
                    "the limit of "
                            + state.limits().maxConnections()
                            + " connections is reached, and this one has not said hello");
        }
        super.channelActive(ctx);
    }

    @Override
    public void channelInactive(ChannelHandlerContext ctx) throws Exception {
        // Drop other received commands: no client reads their answers.
        refused = true;
        stopWaiting();
        leaveQueues(null);
        parser.close();
        if (context != null) {
            context = null;
            helloTimeout.cancel(false);
            state.disconnected(this);
        }
        super.channelInactive(ctx);
        countUnread(0);
    }

    @Override
    public void channelReadComplete(ChannelHandlerContext ctx) throws Exception {
        ctx.flush();
        try {
            countUnread(refused ? 0 : actualReadableBytes());
        } catch (IllegalArgumentException e) {
            refuse(ctx, e.getMessage());
        }
        super.channelReadComplete(ctx);
    }

    private void countUnread(int bytes) {
        if (bytes > unread) {
            state.memory().take(bytes - unread);
        } else {
            state.memory().giveBack(unread - bytes);
        }
        unread = bytes;
    }

    @Override
    public void channelWritabilityChanged(ChannelHandlerContext ctx) throws Exception {
        readAgain(ctx);
        super.channelWritabilityChanged(ctx);
    }

    /** Resumes reading commands after the client has read its answers. */
    private void readAgain(ChannelHandlerContext ctx) {
        boolean stopped = !ctx.channel().config().isAutoRead();
        if (stopped && ctx.channel().isWritable() && valuesUnderWay == 0) {
            ctx.channel().config().setAutoRead(true);
            // Parse bytes that were received before reading was suspended.
            ctx.executor()
                    .execute(
                            () -> {
                                ctx.pipeline().fireChannelRead(Unpooled.EMPTY_BUFFER);
                                ctx.pipeline().fireChannelReadComplete();
                            });
        }
    }

    @Override
    public void exceptionCaught(ChannelHandlerContext ctx, Throwable cause) {
        if (cause instanceof IOException) {
            logger.debug("TcpStore: {} has disconnected", ctx.channel().remoteAddress(), cause);
            ctx.close();
        } else if (cause instanceof DecoderException || cause instanceof RuntimeException) {
            refuse(ctx, cause.getMessage());
        } else {
            logger.error(
                    "TcpStore: closing the connection of {}", ctx.channel().remoteAddress(), cause);
            refuse(ctx, cause.toString());
        }
    }

    @Override
    protected void decode(ChannelHandlerContext ctx, ByteBuf in, List<Object> out) {
        if (refused) {
            in.skipBytes(in.readableBytes());
            return;
        }
        if (!canAnswer(ctx)) {
            return;
        }
        try {
            Request request = parser.next(in);
            if (request != null) {
                execute(ctx, request);
            }
        } catch (DecoderException | IllegalArgumentException e) {
            refuse(ctx, e.getMessage());
        }
    }

    private boolean canAnswer(ChannelHandlerContext ctx) {
        if (!ctx.channel().isWritable() || valuesUnderWay > 0) {
            ctx.flush();
        }
        if (!ctx.channel().isWritable() || valuesUnderWay > 0) {
            ctx.channel().config().setAutoRead(false);
            return false;
        }
        return true;
    }

    private void refuse(ChannelHandlerContext ctx, String why) {
        if (!refused) {
            refused = true;
            saidHello(); // No longer a candidate for closing.
            logger.warn(
                    "TcpStore: closing the connection of {}: {}",
                    ctx.channel().remoteAddress(),
                    why);
            // Earlier valid commands are answered.
            ctx.flush();
            ctx.close();
        }
    }

    private void execute(ChannelHandlerContext ctx, Request request) {
        if (!validated) {
            validate(ctx, request);
            return;
        }
        if (isHello(request)) {
            sayHello(ctx, request);
            return;
        }
        if (!admitted && request.command() != Command.PING) {
            refuse(ctx, "it has not authenticated with the token of " + StoreToken.VARIABLE);
            return;
        }
        leaveQueues(request);
        switch (request.command()) {
            case VALIDATE -> refuse(ctx, "VALIDATE is allowed as the first command only");
            case WAIT -> startWaiting(ctx, request.keys());
            case CANCEL_WAIT -> {
                stopWaiting();
                answerByte(ctx, Command.WAIT_CANCELED);
            }
            case PING -> send(ctx, buffer(ctx, 4).writeIntLE((int) request.number()));
            case QUEUE_POP -> pop(ctx, request.key());
            case LIST_KEYS -> listKeys(ctx);
            default -> answer(ctx, request.keys(), state.execute(request));
        }
    }

    private void answer(ChannelHandlerContext ctx, List<String> keys, Object answer) {
        if (answer instanceof Long number) {
            answer(ctx, number);
        } else if (answer instanceof Boolean ready) {
            answerByte(ctx, ready ? Command.READY : Command.NOT_READY);
        } else if (answer instanceof byte[] value) {
            answer(ctx, keys.get(0), value);
        } else if (answer instanceof List<?> values) {
            for (int i = 0; i < keys.size(); i++) {
                answer(ctx, keys.get(i), (byte[]) values.get(i));
            }
        }
    }

    private void pop(ChannelHandlerContext ctx, String queue) {
        byte[] first = state.values().peek(queue);
        answer(ctx, state.values().queueLength(queue));
        if (first != null) {
            answer(ctx, queue, first);
            state.values().pop(queue); // Not before: if the answer is refused, the value stays.
        }
    }

    private void listKeys(ChannelHandlerContext ctx) {
        List<String> keys = state.values().keys();
        long bytes = keys.stream().mapToLong(key -> Long.BYTES + key.length()).sum();
        if (bytes > state.limits().maxMessageBytes()) {
            throw new IllegalArgumentException(
                    "LIST_KEYS of %s bytes; at most %s are allowed"
                            .formatted(bytes, state.limits().maxMessageBytes()));
        }
        state.memory().take(bytes);
        state.memory().giveBack(bytes); // The answer takes them again.
        ByteBuffer list = ByteBuffer.allocate((int) bytes).order(ByteOrder.LITTLE_ENDIAN);
        for (String key : keys) {
            list.putLong(key.length()).put(key.getBytes(StandardCharsets.ISO_8859_1));
        }
        answer(ctx, keys.size(), LIST, list.array());
    }

    /** Hands the wake-ups for queues to other clients, except for one that this client pops now. */
    private void leaveQueues(Request next) {
        List<String> queues = woken;
        woken = List.of();
        String popped = next != null && next.command() == Command.QUEUE_POP ? next.key() : null;
        queues.stream().filter(queue -> !queue.equals(popped)).forEach(state::passOn);
    }

    private void validate(ChannelHandlerContext ctx, Request request) {
        if (request.command() != Command.VALIDATE || request.number() != Command.MAGIC) {
            refuse(ctx, "it does not speak the TCPStore protocol");
        }
        validated = true;
        if (admitted) {
            saidHello();
        }
    }

    private void saidHello() {
        if (helloTimeout != null) {
            helloTimeout.cancel(false);
        }
        state.saidHello(this);
    }

    private static boolean isHello(Request request) {
        return (request.command() == Command.COMPARE_SET || request.command() == Command.SET)
                && request.key().equals(Hello.KEY);
    }

    private void sayHello(ChannelHandlerContext ctx, Request request) {
        if (request.command() == Command.COMPARE_SET) {
            challenge = state.challenge(request.value());
            answer(ctx, Hello.KEY, challenge.answer());
        } else if (challenge != null && challenge.isMetBy(request.value())) {
            admitted = true;
            saidHello();
            parser = newParser(state.limits());
        } else {
            refuse(ctx, "it authenticated with a wrong token; see " + StoreToken.VARIABLE);
        }
    }

    private void startWaiting(ChannelHandlerContext ctx, List<String> keys) {
        if (wait != null) {
            throw new IllegalArgumentException("WAIT before the previous WAIT was answered");
        }
        wait = state.await(keys, () -> waitIsOver(ctx));
        if (wait == null) {
            answerByte(ctx, Command.STOP_WAITING);
        }
    }

    /**
     * Called while another connection's command, or a later one of this connection, is executed.
     */
    private void waitIsOver(ChannelHandlerContext ctx) {
        KeyValueMap values = state.values();
        woken = wait.keys().stream().filter(key -> values.queueLength(key) > 0).toList();
        wait = null;
        // Always within the budget: the completed wait has released more.
        answerByte(ctx, Command.STOP_WAITING);
        ctx.flush();
    }

    private void stopWaiting() {
        if (wait != null) {
            state.cancel(wait);
            wait = null;
        }
    }

    private void answerByte(ChannelHandlerContext ctx, int value) {
        send(ctx, buffer(ctx, 1).writeByte(value));
    }

    private void answer(ChannelHandlerContext ctx, long value) {
        send(ctx, buffer(ctx, Long.BYTES).writeLongLE(value));
    }

    private void answer(ChannelHandlerContext ctx, String key, byte[] value) {
        answer(ctx, value.length, key, value);
    }

    /** Sends a length and bytes, which are the value of a key or belong to none. */
    private void answer(ChannelHandlerContext ctx, long length, String key, byte[] value) {
        if (value.length <= MAX_COPIED_BYTES) {
            int bytes = Long.BYTES + value.length;
            send(ctx, buffer(ctx, bytes).writeLongLE(length).writeBytes(value));
            return;
        }
        answer(ctx, length);
        state.sending(key, value);
        valuesUnderWay++;
        ctx.write(new ValueRegion(value))
                .addListener(
                        result -> {
                            state.sent(value);
                            valuesUnderWay--;
                            isSent(ctx, result);
                            readAgain(ctx);
                        });
    }

    /** Returns a buffer for an answer; {@link #send} releases it. */
    private ByteBuf buffer(ChannelHandlerContext ctx, int bytes) {
        state.memory().takeLittle(bytes + ANSWER_BYTES);
        return ctx.alloc().buffer(bytes);
    }

    private void send(ChannelHandlerContext ctx, ByteBuf answer) {
        int taken = answer.readableBytes() + ANSWER_BYTES;
        ctx.write(answer)
                .addListener(
                        result -> {
                            state.memory().giveBack(taken);
                            isSent(ctx, result);
                        });
    }

    /**
     * Closes the connection if an answer cannot be sent, because the client would wait for ever.
     */
    private void isSent(ChannelHandlerContext ctx, Future<?> result) {
        if (!result.isSuccess() && ctx.channel().isActive()) {
            refuse(ctx, "cannot send the answer: " + result.cause());
        }
    }
}

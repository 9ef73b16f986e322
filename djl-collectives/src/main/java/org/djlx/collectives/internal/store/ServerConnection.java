/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.store;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelHandlerContext;
import io.netty.handler.codec.ByteToMessageDecoder;
import io.netty.handler.codec.DecoderException;
import java.io.IOException;
import java.util.List;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A server's end of one connection: it reads {@linkplain Command commands} and answers them.
 *
 * <p>The protocol has no way to say that a command was wrong: its connection is closed, with a line
 * in the log, and nobody else is affected. While a client does not read its answers, its commands
 * are not read either.
 */
final class ServerConnection extends ByteToMessageDecoder {

    private static final Logger logger = LoggerFactory.getLogger(ServerConnection.class);

    private final ServerState state;
    private RequestParser parser;
    private boolean counted;
    private boolean validated;
    private boolean admitted;
    private Hello.Challenge challenge;
    private boolean refused;
    private Waits.Wait wait;

    ServerConnection(ServerState state) {
        this.state = state;
        admitted = state.isOpen();
        parser = new RequestParser(admitted ? state.limits() : state.limits().forStrangers());
    }

    /** {@inheritDoc} */
    @Override
    public void channelActive(ChannelHandlerContext ctx) throws Exception {
        counted = true;
        if (!state.connected()) {
            refuse(ctx, "there are " + state.limits().maxConnections() + " connections already");
        }
        super.channelActive(ctx);
    }

    /** {@inheritDoc} */
    @Override
    public void channelInactive(ChannelHandlerContext ctx) throws Exception {
        // Whatever else has arrived is not worth executing: nobody reads the answers.
        refused = true;
        stopWaiting();
        if (counted) {
            counted = false;
            state.disconnected();
        }
        super.channelInactive(ctx);
    }

    /** {@inheritDoc} */
    @Override
    public void channelReadComplete(ChannelHandlerContext ctx) throws Exception {
        ctx.flush();
        super.channelReadComplete(ctx);
    }

    /** {@inheritDoc} */
    @Override
    public void channelWritabilityChanged(ChannelHandlerContext ctx) throws Exception {
        if (ctx.channel().isWritable() && !ctx.channel().config().isAutoRead()) {
            ctx.channel().config().setAutoRead(true);
            // What had been read before reading was stopped has to be looked at again.
            ctx.executor()
                    .execute(
                            () -> {
                                ctx.pipeline().fireChannelRead(Unpooled.EMPTY_BUFFER);
                                ctx.pipeline().fireChannelReadComplete();
                            });
        }
        super.channelWritabilityChanged(ctx);
    }

    /** {@inheritDoc} */
    @Override
    public void exceptionCaught(ChannelHandlerContext ctx, Throwable cause) {
        if (cause instanceof IOException) {
            logger.debug("TcpStore: {} is gone", ctx.channel().remoteAddress(), cause);
            ctx.close();
        } else if (cause instanceof DecoderException || cause instanceof RuntimeException) {
            refuse(ctx, cause.getMessage());
        } else {
            logger.error("TcpStore: {}: closing", ctx.channel().remoteAddress(), cause);
            refuse(ctx, cause.toString());
        }
    }

    /** {@inheritDoc} */
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

    private static boolean canAnswer(ChannelHandlerContext ctx) {
        if (!ctx.channel().isWritable()) {
            ctx.flush();
        }
        if (!ctx.channel().isWritable()) {
            ctx.channel().config().setAutoRead(false);
            return false;
        }
        return true;
    }

    private void refuse(ChannelHandlerContext ctx, String why) {
        if (!refused) {
            refused = true;
            logger.warn(
                    "TcpStore: closing the connection of {}: {}",
                    ctx.channel().remoteAddress(),
                    why);
            // What was right before is answered.
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
            refuse(ctx, "it has not proven that it knows the secret of " + StoreToken.VARIABLE);
            return;
        }
        switch (request.command()) {
            case VALIDATE -> refuse(ctx, "VALIDATE must be the first command only");
            case SET -> state.set(request.key(), request.value());
            case COMPARE_SET -> {
                List<byte[]> values = request.values();
                answer(ctx, state.compareSet(request.key(), values.get(0), values.get(1)));
            }
            case GET -> answer(ctx, state.get(request.key()));
            case ADD -> answer(ctx, state.add(request.key(), request.number()));
            case CHECK ->
                    answerByte(
                            ctx, state.check(request.keys()) ? Command.READY : Command.NOT_READY);
            case WAIT -> startWaiting(ctx, request.keys());
            case GETNUMKEYS -> answer(ctx, state.numKeys());
            case DELETE_KEY -> answer(ctx, state.delete(request.key()) ? 1 : 0);
            case APPEND -> state.append(request.key(), request.value());
            case MULTI_GET -> {
                for (byte[] value : state.multiGet(request.keys())) {
                    answer(ctx, value);
                }
            }
            case MULTI_SET -> state.multiSet(request.keys(), request.values());
            case CANCEL_WAIT -> {
                stopWaiting();
                answerByte(ctx, Command.WAIT_CANCELED);
            }
            case PING -> ctx.write(ctx.alloc().buffer(4).writeIntLE((int) request.number()));
        }
    }

    private void validate(ChannelHandlerContext ctx, Request request) {
        if (request.command() != Command.VALIDATE || request.number() != Command.MAGIC) {
            refuse(ctx, "it does not speak the TCPStore protocol");
        }
        validated = true;
    }

    private static boolean isHello(Request request) {
        return (request.command() == Command.COMPARE_SET || request.command() == Command.SET)
                && request.key().equals(Hello.KEY);
    }

    private void sayHello(ChannelHandlerContext ctx, Request request) {
        if (request.command() == Command.COMPARE_SET) {
            challenge = state.challenge(request.value());
            answer(ctx, challenge.answer());
        } else if (challenge != null && challenge.isMetBy(request.value())) {
            admitted = true;
            parser = new RequestParser(state.limits());
        } else {
            refuse(
                    ctx,
                    "its proof that it knows the secret of " + StoreToken.VARIABLE + " is wrong");
        }
    }

    private void startWaiting(ChannelHandlerContext ctx, List<String> keys) {
        if (wait != null) {
            throw new IllegalArgumentException("WAIT while an earlier WAIT is not answered");
        }
        wait = state.waits().add(keys, () -> waitIsOver(ctx));
        if (wait == null) {
            answerByte(ctx, Command.STOP_WAITING);
        }
    }

    /** Runs while another connection's command, or a later one of this connection, is executed. */
    private void waitIsOver(ChannelHandlerContext ctx) {
        wait = null;
        answerByte(ctx, Command.STOP_WAITING);
        ctx.flush();
    }

    private void stopWaiting() {
        if (wait != null) {
            state.waits().cancel(wait);
            wait = null;
        }
    }

    private static void answerByte(ChannelHandlerContext ctx, int value) {
        ctx.write(ctx.alloc().buffer(1).writeByte(value));
    }

    private static void answer(ChannelHandlerContext ctx, long value) {
        ctx.write(ctx.alloc().buffer(Long.BYTES).writeLongLE(value));
    }

    private static void answer(ChannelHandlerContext ctx, byte[] value) {
        answer(ctx, (long) value.length);
        // Values are never changed once stored, so there is no need for a copy.
        ctx.write(Unpooled.wrappedBuffer(value));
    }
}

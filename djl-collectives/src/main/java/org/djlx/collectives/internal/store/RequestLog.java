// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.handler.codec.DecoderException;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.util.Arrays;

/**
 * The keys and values that the requests in a file have made. The file holds the bytes that a client
 * would send to a server: VALIDATE, then the {@linkplain Command commands} that change something. A
 * CANCEL_WAIT says that a handle was closed. Each request is one atomic change. A process that is
 * killed while it appends leaves an incomplete request at the end, which readers ignore and the
 * next writer cuts off.
 */
public final class RequestLog extends KeyValueMap {

    private static final byte[] HEADER =
            new RequestWriter().command(Command.VALIDATE).number32(Command.MAGIC).toBytes();

    private static final int MAX_TAIL = Integer.MAX_VALUE - 8; // the longest array

    private RequestWriter added = new RequestWriter(); // requests that are not in the file
    private long position = HEADER.length;
    private int closes;

    /** Checks that a file is empty or a log, and begins an empty one. */
    public static void begin(RandomAccessFile file) throws IOException {
        byte[] start = new byte[(int) Math.min(HEADER.length, file.length())];
        file.readFully(start);
        if (!Arrays.equals(start, Arrays.copyOf(HEADER, start.length))) {
            throw new IOException(
                    "the file is not a FileStore; it was not changed; choose another path");
        }
        if (start.length < HEADER.length) {
            file.seek(0);
            file.write(HEADER);
        }
    }

    @Override
    public Object execute(Request request) {
        Object answer = super.execute(request);
        switch (request.command()) {
            case GET, CHECK, GETNUMKEYS, MULTI_GET, QUEUE_LEN, LIST_KEYS -> {}
            default -> added.request(request);
        }
        return answer;
    }

    /** Counts a closed handle, and returns how many there are. */
    public int close() {
        added.command(Command.CANCEL_WAIT);
        return ++closes;
    }

    /** Appends the requests since the last replay. */
    public void appendTo(RandomAccessFile file) throws IOException {
        byte[] bytes = added.toBytes();
        if (bytes.length > 0) {
            file.setLength(position);
            file.seek(position);
            file.write(bytes);
            position += bytes.length;
        }
        added = new RequestWriter();
    }

    /** Executes the requests that other handles have appended. */
    public void replay(RandomAccessFile file) throws IOException {
        long begin = position;
        if (file.length() < begin) {
            throw new IOException("the file was truncated by another program");
        }
        long size = file.length() - begin;
        if (size > MAX_TAIL) {
            throw new IOException(
                    "%s bytes to read; a handle reads at most %s at a time: use a TcpStore"
                            .formatted(size, MAX_TAIL));
        }
        byte[] tail = new byte[(int) size];
        file.seek(begin);
        file.readFully(tail);
        ByteBuf in = Unpooled.wrappedBuffer(tail);
        RequestParser parser =
                new RequestParser(ServerLimits.NONE, new MemoryBudget(Long.MAX_VALUE));
        try {
            for (Request next = parser.next(in); next != null; next = parser.next(in)) {
                if (next.command() == Command.CANCEL_WAIT) {
                    closes++;
                } else {
                    super.execute(next.decoded());
                }
                position = begin + in.readerIndex();
            }
        } catch (DecoderException | IllegalArgumentException e) {
            throw new IOException("after byte " + position + ": " + e.getMessage(), e);
        }
    }
}

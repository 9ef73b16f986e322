// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Consumer;
import org.djlx.collectives.spi.cpu.Letter;
import org.djlx.collectives.spi.cpu.MessageChannel;
import org.djlx.collectives.spi.cpu.Transfer;

/** Carries messages to and from one peer in chunks, through the two mailboxes between them. */
final class ShmChannel implements MessageChannel {

    private final Mailbox in;
    private final Mailbox out;
    private final Deque<Transfer> sending = new ArrayDeque<>();
    private final Map<Long, Transfer> receiving = new HashMap<>();

    ShmChannel(Mailbox in, Mailbox out) {
        this.in = in;
        this.out = out;
    }

    @Override
    public boolean post(Letter letter) {
        return out.post(letter);
    }

    @Override
    public Letter take() {
        return in.take();
    }

    @Override
    public void start(Transfer transfer) {
        if (transfer.sends()) {
            sending.add(transfer);
        } else {
            receiving.put(transfer.message(), transfer);
        }
    }

    @Override
    public Transfer stopReceiving(long message) {
        return receiving.remove(message);
    }

    @Override
    public boolean stop(Transfer transfer) {
        receiving.remove(transfer.message(), transfer);
        return sending.remove(transfer);
    }

    @Override
    public void stopAll() {
        sending.clear();
        receiving.clear();
    }

    @Override
    public boolean move(Consumer<Transfer> onMoved) {
        return write(onMoved) | read(onMoved);
    }

    private static long chunk(Transfer transfer) {
        return Math.min(Mailbox.CHUNK, transfer.remaining());
    }

    private boolean write(Consumer<Transfer> onMoved) {
        boolean written = false;
        while (!sending.isEmpty()) {
            Transfer send = sending.peek();
            long size = chunk(send);
            if (!out.write(send.message(), send.address(), size)) {
                break;
            }
            written = true;
            send.advance(size);
            if (send.isMoved()) {
                sending.remove();
                onMoved.accept(send);
            }
        }
        return written;
    }

    private boolean read(Consumer<Transfer> onMoved) {
        boolean read = false;
        for (long message = in.nextMessage(); message >= 0; message = in.nextMessage()) {
            read = true;
            Transfer receive = receiving.get(message);
            if (receive == null) {
                in.read(0, 0); // Drop a chunk of a failed receive.
                continue;
            }
            long size = chunk(receive);
            in.read(receive.address(), size);
            receive.advance(size);
            if (receive.isMoved()) {
                receiving.remove(message);
                onMoved.accept(receive);
            }
        }
        return read;
    }
}

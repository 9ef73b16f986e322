// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;
import java.util.function.BiConsumer;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.shm.Mailbox.Kind;
import org.djlx.collectives.internal.shm.Mailbox.Letter;
import org.djlx.collectives.internal.shm.MessageMatcher.Offer;

/**
 * Moves messages between this rank and one peer, through the two mailboxes between them.
 *
 * <pre>
 *   sender                       receiver
 *   OFFER          ------------&gt;  match with a receive
 *                  &lt;------------  ACCEPT, or REJECT if it does not match
 *   chunks of data ------------&gt;  copy to the tensor
 *   WITHDRAW       ------------&gt;  (if the send fails before its end)
 * </pre>
 *
 * <ul>
 *   <li>The sender keeps its data until the receiver accepts the offer. Both ends report a
 *       mismatch.
 *   <li>Mailboxes never block: a letter that does not fit is queued here, and all arrived data is
 *       read, of every message.
 *   <li>A failed message is removed: the sender withdraws it, and the receiver drops chunks of
 *       unknown messages.
 *   <li>Guarded by the lock of the {@link MessageQueue}.
 * </ul>
 */
final class MessagePump {

    private final int peer;
    private final Mailbox in;
    private final Mailbox out;
    private final MessageMatcher matcher;
    private final MessageFailures failures;
    private final BiConsumer<Transfer, CollectiveException> onEnd;

    private final Deque<Letter> unposted = new ArrayDeque<>();
    private final Map<Long, Transfer> offered = new HashMap<>();
    private final Deque<Transfer> sending = new ArrayDeque<>();
    private final Map<Long, Transfer> receiving = new HashMap<>();

    /**
     * Creates a pump.
     *
     * @param matcher matches offers with receives
     * @param failures creates the exceptions of failed messages
     * @param onEnd called for each message that has ended, with the failure or null
     */
    MessagePump(
            int peer,
            Mailbox in,
            Mailbox out,
            MessageMatcher matcher,
            MessageFailures failures,
            BiConsumer<Transfer, CollectiveException> onEnd) {
        this.peer = peer;
        this.in = in;
        this.out = out;
        this.matcher = matcher;
        this.failures = failures;
        this.onEnd = onEnd;
    }

    /** Offers a message to the peer. */
    void offer(Transfer send) {
        offered.put(send.message(), send);
        unposted.add(send.letter(Kind.OFFER));
    }

    /** Accepts the peer's message for a receive, or rejects it if it does not match. */
    void answer(Letter offer, Transfer receive) {
        if (!receive.fits(offer)) {
            unposted.add(receive.letter(Kind.REJECT, offer.message()));
            onEnd.accept(receive, MessageFailures.mismatch(receive, peer, offer));
            return;
        }
        receive.bind(peer, offer.message());
        unposted.add(receive.letter(Kind.ACCEPT));
        if (receive.isMoved()) {
            onEnd.accept(receive, null);
        } else {
            receiving.put(offer.message(), receive);
        }
    }

    /** Removes a failed message, and withdraws it if it is a send. */
    void abandon(Transfer transfer) {
        receiving.remove(transfer.message(), transfer);
        if (offered.remove(transfer.message(), transfer) | sending.remove(transfer)) {
            unposted.add(transfer.letter(Kind.WITHDRAW));
        }
    }

    /** Removes all messages. Their tensors are not accessed afterwards. */
    void forgetAll() {
        offered.clear();
        sending.clear();
        receiving.clear();
        unposted.clear();
    }

    /** Returns the number of queued letters, for which the mailbox has no space yet. */
    int unposted() {
        return unposted.size();
    }

    /** Drops the queued letters, because the peer no longer reads. */
    void dropLetters() {
        unposted.clear();
    }

    /** Moves letters and data without blocking; returns whether anything moved. */
    boolean pass() {
        boolean moved = false;
        for (Letter letter = in.take(); letter != null; letter = in.take()) {
            moved = true;
            handle(letter);
        }
        moved |= post();
        moved |= write();
        moved |= read();
        return moved;
    }

    private void handle(Letter letter) {
        switch (letter.kind()) {
            case OFFER -> {
                Transfer receive = matcher.offered(new Offer(peer, letter));
                if (receive != null) {
                    answer(letter, receive);
                }
            }
            case ACCEPT -> {
                Transfer send = offered.remove(letter.message());
                if (send != null && send.isMoved()) {
                    onEnd.accept(send, null);
                } else if (send != null) {
                    sending.add(send);
                }
            }
            case REJECT -> {
                Transfer send = offered.remove(letter.message());
                if (send != null) {
                    onEnd.accept(send, MessageFailures.mismatch(send, peer, letter));
                }
            }
            case WITHDRAW -> {
                matcher.withdraw(peer, letter);
                Transfer receive = receiving.remove(letter.message());
                if (receive != null) {
                    onEnd.accept(receive, failures.withdrawn(receive, peer));
                }
            }
        }
    }

    private boolean post() {
        boolean posted = false;
        while (!unposted.isEmpty() && out.post(unposted.peek())) {
            unposted.remove();
            posted = true;
        }
        return posted;
    }

    private boolean write() {
        boolean written = false;
        while (!sending.isEmpty()) {
            Transfer send = sending.peek();
            long size = send.chunk();
            if (!out.write(send.message(), send.address(), size)) {
                break;
            }
            written = true;
            send.advance(size);
            if (send.isMoved()) {
                sending.remove();
                onEnd.accept(send, null);
            }
        }
        return written;
    }

    private boolean read() {
        boolean read = false;
        for (long message = in.nextMessage(); message >= 0; message = in.nextMessage()) {
            read = true;
            Transfer receive = receiving.get(message);
            if (receive == null) {
                in.read(0, 0); // Drop a chunk of a failed receive.
                continue;
            }
            long size = receive.chunk();
            in.read(receive.address(), size);
            receive.advance(size);
            if (receive.isMoved()) {
                receiving.remove(message);
                onEnd.accept(receive, null);
            }
        }
        return read;
    }
}

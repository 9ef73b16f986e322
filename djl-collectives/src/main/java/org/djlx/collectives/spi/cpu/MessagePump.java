// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;
import java.util.function.BiConsumer;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.spi.cpu.Letter.Kind;
import org.djlx.collectives.spi.cpu.MessageMatcher.Offer;

/**
 * Moves messages between this rank and one peer, through the channel between them.
 *
 * <pre>
 *   sender                       receiver
 *   OFFER          ------------&gt;  match with a receive
 *                  &lt;------------  ACCEPT, or REJECT if it does not match
 *   data           ------------&gt;  copy to the tensor
 *   WITHDRAW       ------------&gt;  (if the send fails before its end)
 * </pre>
 *
 * <ul>
 *   <li>The sender keeps its data until the receiver accepts the offer. Both ends report a
 *       mismatch.
 *   <li>Channels never block: a letter that does not fit is queued here, and all arrived data is
 *       read, of every message.
 *   <li>A failed message is removed: the sender withdraws it, and the receiver stops it.
 *   <li>Guarded by the lock of the {@link MessageQueue}.
 * </ul>
 */
final class MessagePump {

    private final int peer;
    private final MessageChannel channel;
    private final MessageMatcher matcher;
    private final MessageFailures failures;
    private final BiConsumer<Transfer, CollectiveException> onEnd;

    private final Deque<Letter> unposted = new ArrayDeque<>();
    private final Map<Long, Transfer> offered = new HashMap<>();

    /**
     * Creates a pump, which calls {@code onEnd} for each message that has ended, with the failure
     * or null.
     */
    MessagePump(
            int peer,
            MessageChannel channel,
            MessageMatcher matcher,
            MessageFailures failures,
            BiConsumer<Transfer, CollectiveException> onEnd) {
        this.peer = peer;
        this.channel = channel;
        this.matcher = matcher;
        this.failures = failures;
        this.onEnd = onEnd;
    }

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
        if (receive.isMoved()) {
            unposted.add(receive.letter(Kind.ACCEPT));
            onEnd.accept(receive, null);
        } else {
            channel.start(receive);
            unposted.add(receive.letter(Kind.ACCEPT));
        }
    }

    /** Removes a failed message, and withdraws it if it is a send. */
    void abandon(Transfer transfer) {
        if (offered.remove(transfer.message(), transfer) | channel.stop(transfer)) {
            unposted.add(transfer.letter(Kind.WITHDRAW));
        }
    }

    /** Removes all messages. Their tensors are not accessed afterwards. */
    void forgetAll() {
        offered.clear();
        channel.stopAll();
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
        for (Letter letter = channel.take(); letter != null; letter = channel.take()) {
            moved = true;
            handle(letter);
        }
        moved |= post();
        return moved | channel.move(transfer -> onEnd.accept(transfer, null));
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
                    channel.start(send);
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
                Transfer receive = channel.stopReceiving(letter.message());
                if (receive != null) {
                    onEnd.accept(receive, failures.withdrawn(receive, peer));
                }
            }
        }
    }

    private boolean post() {
        boolean posted = false;
        while (!unposted.isEmpty() && channel.post(unposted.peek())) {
            unposted.remove();
            posted = true;
        }
        return posted;
    }
}

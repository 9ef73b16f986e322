/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
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
 * Moves messages between this rank and one other, through the two mailboxes between them.
 *
 * <p>A sender offers a message. The receiver, who has matched it with a receive, accepts what fits;
 * then the sender writes the data, chunk by chunk, as there is room. So nothing is stored for a
 * receiver that does not ask, and both ends learn of a message that does not fit. Neither mailbox
 * ever blocks: letters for which there is no room wait here, and all that has arrived is read,
 * whoever waits for what.
 *
 * <p>A message that fails leaves no trace: a sender that gives up withdraws it, and chunks of a
 * message that is not known any more are thrown away.
 *
 * <p>Guarded by the lock of the {@link MessageQueue}.
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
     * @param peer the other rank
     * @param in what comes from it
     * @param out what goes to it
     * @param matcher knows the receives
     * @param failures says why messages fail
     * @param onEnd told of each message that has ended, with the reason if it failed
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

    /** Offers a message to the other rank. */
    void offer(Transfer send) {
        offered.put(send.message(), send);
        unposted.add(send.letter(Kind.OFFER));
    }

    /** Accepts a message of the other rank for a receive, or rejects it if it does not fit. */
    void answer(Letter offer, Transfer receive) {
        if (!receive.fits(offer)) {
            unposted.add(receive.letter(Kind.REJECT, offer.message()));
            onEnd.accept(receive, MessageFailures.misfit(receive, peer, offer));
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

    /** Forgets a message that fails, and tells the other rank if that waits for data. */
    void abandon(Transfer transfer) {
        receiving.remove(transfer.message(), transfer);
        if (offered.remove(transfer.message(), transfer) | sending.remove(transfer)) {
            unposted.add(transfer.letter(Kind.WITHDRAW));
        }
    }

    /** Forgets all messages, as they fail here: nothing is written into their tensors any more. */
    void forgetAll() {
        offered.clear();
        sending.clear();
        receiving.clear();
        unposted.clear();
    }

    /** The number of letters that find no room. */
    int unposted() {
        return unposted.size();
    }

    /** Throws away letters that find no room, as the other rank reads none any more. */
    void dropLetters() {
        unposted.clear();
    }

    /** Does what can be done without waiting; returns whether that was anything. */
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
                    onEnd.accept(send, MessageFailures.misfit(send, peer, letter));
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
                in.read(0, 0); // This rank gave up on it.
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

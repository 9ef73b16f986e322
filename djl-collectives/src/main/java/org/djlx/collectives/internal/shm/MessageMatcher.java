/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.shm;

import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.internal.shm.Mailbox.Letter;

/**
 * Matches what other ranks offer with what this one receives: by tag and, unless a receive takes a
 * message of any rank, by source, both in the order in which they came. Whichever comes first waits
 * here for the other. Guarded by the lock of the {@link MessageQueue}.
 */
final class MessageMatcher {

    /** The offer of a message. */
    record Offer(int source, Letter letter) {}

    /** An offer that nobody has asked for yet, and when it came. */
    private record Waiting(long turn, Offer offer) {}

    private final int worldSize;
    private final List<TagQueues<Transfer>> wanted = new ArrayList<>(); // by source
    private final TagQueues<Transfer> wantedOfAny = new TagQueues<>();
    private final List<TagQueues<Waiting>> offers = new ArrayList<>(); // by source
    private long lastTurn; // of what waits here

    MessageMatcher(int worldSize) {
        this.worldSize = worldSize;
        for (int peer = 0; peer < worldSize; peer++) {
            wanted.add(new TagQueues<>());
            offers.add(new TagQueues<>());
        }
    }

    /** Returns the offer that a receive gets, or null if the receive waits for one. */
    Offer want(Transfer receive) {
        int tag = receive.tag();
        int source = receive.peer() == Transfer.ANY ? firstToOffer(tag) : receive.peer();
        Waiting waiting = source == Transfer.ANY ? null : offers.get(source).poll(tag);
        if (waiting != null) {
            return waiting.offer();
        }
        receive.setTurn(++lastTurn);
        wantedOf(receive.peer()).add(tag, receive);
        return null;
    }

    /** The rank whose offer with a tag is the oldest, or {@link Transfer#ANY} if there is none. */
    private int firstToOffer(int tag) {
        int first = Transfer.ANY;
        long turn = Long.MAX_VALUE;
        for (int peer = 0; peer < worldSize; peer++) {
            Waiting waiting = offers.get(peer).peek(tag);
            if (waiting != null && waiting.turn() < turn) {
                first = peer;
                turn = waiting.turn();
            }
        }
        return first;
    }

    /** Returns the receive that gets an offer, or null if the offer waits for one. */
    Transfer offered(Offer offer) {
        int tag = offer.letter().tag();
        TagQueues<Transfer> named = wanted.get(offer.source());
        Transfer firstNamed = named.peek(tag);
        Transfer firstOfAny = wantedOfAny.peek(tag);
        boolean takesAny =
                firstNamed == null || firstOfAny != null && firstOfAny.turn() < firstNamed.turn();
        Transfer receive = (takesAny ? wantedOfAny : named).poll(tag);
        if (receive == null) {
            offers.get(offer.source()).add(tag, new Waiting(++lastTurn, offer));
        }
        return receive;
    }

    /** Forgets an offer, if it waits, as the sender has withdrawn it. */
    void withdraw(int source, Letter letter) {
        offers.get(source)
                .removeFirst(
                        letter.tag(),
                        waiting -> waiting.offer().letter().message() == letter.message());
    }

    /** Forgets a receive that waits. */
    void forget(Transfer receive) {
        wantedOf(receive.peer()).removeFirst(receive.tag(), other -> other == receive);
    }

    /** Forgets all receives and offers. */
    void forgetAll() {
        wanted.forEach(TagQueues::clear);
        wantedOfAny.clear();
        offers.forEach(TagQueues::clear);
    }

    private TagQueues<Transfer> wantedOf(int source) {
        return source == Transfer.ANY ? wantedOfAny : wanted.get(source);
    }
}

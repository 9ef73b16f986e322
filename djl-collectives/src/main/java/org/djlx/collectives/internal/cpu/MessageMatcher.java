// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cpu;

import java.util.ArrayList;
import java.util.List;

/**
 * Matches message offers with receives, in order of arrival: by tag and source, or by tag only for
 * receives from any rank. Offers and receives without a match wait here. Guarded by the lock of the
 * {@link MessageQueue}.
 */
final class MessageMatcher {

    /** The offer of a message. */
    record Offer(int source, Letter letter) {}

    /** An offer without a receive, and its position in the order of arrival. */
    private record Waiting(long arrival, Offer offer) {}

    private final int worldSize;
    private final List<TagQueues<Transfer>> wanted = new ArrayList<>(); // by source
    private final TagQueues<Transfer> wantedOfAny = new TagQueues<>();
    private final List<TagQueues<Waiting>> offers = new ArrayList<>(); // by source
    private long lastArrival; // position of the last offer or receive that waits here

    MessageMatcher(int worldSize) {
        this.worldSize = worldSize;
        for (int peer = 0; peer < worldSize; peer++) {
            wanted.add(new TagQueues<>());
            offers.add(new TagQueues<>());
        }
    }

    /** Returns the offer for a receive; null if the receive must wait for one. */
    Offer want(Transfer receive) {
        int tag = receive.tag();
        int source = receive.peer() == Transfer.ANY ? firstToOffer(tag) : receive.peer();
        Waiting waiting = source == Transfer.ANY ? null : offers.get(source).poll(tag);
        if (waiting != null) {
            return waiting.offer();
        }
        receive.setArrival(++lastArrival);
        wantedOf(receive.peer()).add(tag, receive);
        return null;
    }

    /** Returns the rank with the oldest offer for a tag; {@link Transfer#ANY} if there is none. */
    private int firstToOffer(int tag) {
        int first = Transfer.ANY;
        long arrival = Long.MAX_VALUE;
        for (int peer = 0; peer < worldSize; peer++) {
            Waiting waiting = offers.get(peer).peek(tag);
            if (waiting != null && waiting.arrival() < arrival) {
                first = peer;
                arrival = waiting.arrival();
            }
        }
        return first;
    }

    /** Returns the receive for an offer; null if the offer must wait for one. */
    Transfer offered(Offer offer) {
        int tag = offer.letter().tag();
        TagQueues<Transfer> named = wanted.get(offer.source());
        Transfer firstNamed = named.peek(tag);
        Transfer firstOfAny = wantedOfAny.peek(tag);
        boolean takesAny =
                firstNamed == null
                        || firstOfAny != null && firstOfAny.arrival() < firstNamed.arrival();
        Transfer receive = (takesAny ? wantedOfAny : named).poll(tag);
        if (receive == null) {
            offers.get(offer.source()).add(tag, new Waiting(++lastArrival, offer));
        }
        return receive;
    }

    /** Removes a waiting offer that the sender has withdrawn. */
    void withdraw(int source, Letter letter) {
        offers.get(source)
                .removeFirst(
                        letter.tag(),
                        waiting -> waiting.offer().letter().message() == letter.message());
    }

    /** Removes a waiting receive. */
    void forget(Transfer receive) {
        wantedOf(receive.peer()).removeFirst(receive.tag(), other -> other == receive);
    }

    /** Removes all receives and offers. */
    void forgetAll() {
        wanted.forEach(TagQueues::clear);
        wantedOfAny.clear();
        offers.forEach(TagQueues::clear);
    }

    private TagQueues<Transfer> wantedOf(int source) {
        return source == Transfer.ANY ? wantedOfAny : wanted.get(source);
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Map;
import java.util.Queue;

/**
 * Matches message offers with receives, in order of arrival: by tag and source, or by tag only for
 * receives from any rank. Offers and receives without a match wait here. Guarded by the lock of the
 * {@link MessageQueue}.
 */
final class MessageMatcher {

    record Offer(int source, Letter letter) {}

    /** An offer without a receive, and its position in the order of arrival. */
    private record Waiting(long arrival, Offer offer) {}

    private final int worldSize;
    // By source and tag, see key(). Empty queues are removed: a program may use a new tag for each
    // message.
    private final Map<Long, Queue<Transfer>> wanted = new HashMap<>();
    private final Map<Long, Queue<Waiting>> offers = new HashMap<>();
    private long lastArrival; // position of the last offer or receive that waits here

    MessageMatcher(int worldSize) {
        this.worldSize = worldSize;
    }

    /** Returns the offer for a receive; null if the receive must wait for one. */
    Offer want(Transfer receive) {
        int tag = receive.tag();
        int source = receive.peer() == Transfer.ANY ? firstToOffer(tag) : receive.peer();
        Waiting waiting = poll(offers, key(source, tag));
        if (waiting != null) {
            return waiting.offer();
        }
        receive.setArrival(++lastArrival);
        add(wanted, key(receive.peer(), tag), receive);
        return null;
    }

    /** Returns the rank with the oldest offer for a tag; {@link Transfer#ANY} if there is none. */
    private int firstToOffer(int tag) {
        int first = Transfer.ANY;
        long arrival = Long.MAX_VALUE;
        for (int peer = 0; peer < worldSize; peer++) {
            Waiting waiting = peek(offers, key(peer, tag));
            if (waiting != null && waiting.arrival() < arrival) {
                first = peer;
                arrival = waiting.arrival();
            }
        }
        return first;
    }

    /** Returns the receive for an offer; null if the offer must wait for one. */
    Transfer offered(Offer offer) {
        long named = key(offer.source(), offer.letter().tag());
        long any = key(Transfer.ANY, offer.letter().tag());
        Transfer firstNamed = peek(wanted, named);
        Transfer firstOfAny = peek(wanted, any);
        boolean takesAny =
                firstNamed == null
                        || firstOfAny != null && firstOfAny.arrival() < firstNamed.arrival();
        Transfer receive = poll(wanted, takesAny ? any : named);
        if (receive == null) {
            add(offers, named, new Waiting(++lastArrival, offer));
        }
        return receive;
    }

    /** Removes a waiting offer that the sender has withdrawn. */
    void withdraw(int source, Letter letter) {
        long key = key(source, letter.tag());
        offers.getOrDefault(key, new ArrayDeque<>()).stream()
                .filter(waiting -> waiting.offer().letter().message() == letter.message())
                .findFirst()
                .ifPresent(waiting -> remove(offers, key, waiting));
    }

    void forget(Transfer receive) {
        remove(wanted, key(receive.peer(), receive.tag()), receive);
    }

    /** Removes all receives and offers. */
    void forgetAll() {
        wanted.clear();
        offers.clear();
    }

    /** Combines a tag with a source, which is a rank or {@link Transfer#ANY}. */
    private static long key(int source, int tag) {
        return (long) source << Integer.SIZE | Integer.toUnsignedLong(tag);
    }

    private static <T> void add(Map<Long, Queue<T>> queues, long key, T item) {
        queues.computeIfAbsent(key, k -> new ArrayDeque<>(1)).add(item);
    }

    /** Returns the first item of a queue; null if there is none. */
    private static <T> T peek(Map<Long, Queue<T>> queues, long key) {
        Queue<T> queue = queues.get(key);
        return queue == null ? null : queue.peek();
    }

    /** Removes and returns the first item of a queue; null if there is none. */
    private static <T> T poll(Map<Long, Queue<T>> queues, long key) {
        T first = peek(queues, key);
        if (first != null) {
            remove(queues, key, first);
        }
        return first;
    }

    private static <T> void remove(Map<Long, Queue<T>> queues, long key, T item) {
        Queue<T> queue = queues.get(key);
        if (queue != null && queue.remove(item) && queue.isEmpty()) {
            queues.remove(key);
        }
    }
}

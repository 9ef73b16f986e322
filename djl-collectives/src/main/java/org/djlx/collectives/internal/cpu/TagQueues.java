// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cpu;

import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.Queue;
import java.util.function.Predicate;

/** FIFO queues, one per tag. */
final class TagQueues<T> {

    // Tags are often reused: up to this number of queues, empty queues are kept. Some programs use
    // a new tag for every message: above it, empty queues are removed.
    private static final int KEPT = 16;

    private final Map<Integer, Queue<T>> queues = new HashMap<>();

    void add(int tag, T item) {
        queues.computeIfAbsent(tag, key -> new ArrayDeque<>(1)).add(item);
    }

    /** Returns the first item with a tag; null if there is none. */
    T peek(int tag) {
        Queue<T> queue = queues.get(tag);
        return queue == null ? null : queue.peek();
    }

    /** Removes and returns the first item with a tag; null if there is none. */
    T poll(int tag) {
        Queue<T> queue = queues.get(tag);
        if (queue == null) {
            return null;
        }
        T item = queue.poll();
        dropEmpty(tag, queue);
        return item;
    }

    /** Removes the first item with a tag that matches a condition, if there is one. */
    void removeFirst(int tag, Predicate<T> condition) {
        Queue<T> queue = queues.get(tag);
        if (queue == null) {
            return;
        }
        Iterator<T> items = queue.iterator();
        while (items.hasNext()) {
            if (condition.test(items.next())) {
                items.remove();
                break;
            }
        }
        dropEmpty(tag, queue);
    }

    void clear() {
        queues.clear();
    }

    private void dropEmpty(int tag, Queue<T> queue) {
        if (queue.isEmpty() && queues.size() > KEPT) {
            queues.remove(tag);
        }
    }
}

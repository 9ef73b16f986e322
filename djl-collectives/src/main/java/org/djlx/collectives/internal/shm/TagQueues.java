/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.shm;

import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.Queue;
import java.util.function.Predicate;

/** Things with tags: those of each tag come out in the order in which they went in. */
final class TagQueues<T> {

    // So many queues stay when they are empty, as tags are used again; not more, as some programs
    // have a new tag for every message.
    private static final int KEPT = 16;

    private final Map<Integer, Queue<T>> queues = new HashMap<>();

    void add(int tag, T item) {
        queues.computeIfAbsent(tag, key -> new ArrayDeque<>(1)).add(item);
    }

    /** The first with a tag, or null if there is none. */
    T peek(int tag) {
        Queue<T> queue = queues.get(tag);
        return queue == null ? null : queue.peek();
    }

    /** Removes the first with a tag, and returns it; null if there is none. */
    T poll(int tag) {
        Queue<T> queue = queues.get(tag);
        if (queue == null) {
            return null;
        }
        T item = queue.poll();
        dropEmpty(tag, queue);
        return item;
    }

    /** Removes the first with a tag that meets a condition, if there is one. */
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

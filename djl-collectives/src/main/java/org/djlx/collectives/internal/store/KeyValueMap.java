// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;

/**
 * A map with the semantics that all stores share, as c10d defines them. Counters are decimal
 * strings; {@link #compareSet} on an unset key returns the expected value. Beside the keys there
 * are queues of values, which have names of their own.
 *
 * <p>Not thread-safe. Arrays are not copied, so a value in the map must not be modified.
 */
public class KeyValueMap {

    private static final byte[] EMPTY = {};

    private final Map<String, byte[]> values = new HashMap<>();
    private final Map<String, Queue<byte[]>> queues = new HashMap<>(); // none is empty

    /**
     * Executes a request that does not wait. Returns its answer: a Long; a Boolean for CHECK; a
     * byte[] or a List, with empty values for unset keys, as PyTorch's libuv server does; or null.
     * Throws IllegalArgumentException if the value for an ADD is not a counter.
     */
    public Object execute(Request request) {
        List<String> keys = request.keys();
        String key = keys.isEmpty() ? "" : request.key();
        return switch (request.command()) {
            case SET -> {
                set(key, request.value());
                yield null;
            }
            case MULTI_SET -> {
                for (int i = 0; i < keys.size(); i++) {
                    set(keys.get(i), request.values().get(i));
                }
                yield null;
            }
            case APPEND -> {
                byte[] tail = request.value();
                byte[] old = valueOf(key);
                byte[] joined = Arrays.copyOf(old, Math.addExact(old.length, tail.length));
                System.arraycopy(tail, 0, joined, old.length, tail.length);
                set(key, joined);
                yield null;
            }
            case COMPARE_SET -> compareSet(key, request.value(), request.values().get(1));
            case ADD -> {
                // An unset key counts as 0; a sum beyond 64 bits wraps around.
                byte[] old = get(key);
                long sum = (old == null ? 0 : parseCounter(key, old)) + request.number();
                set(key, Long.toString(sum).getBytes(StandardCharsets.US_ASCII));
                yield sum;
            }
            case GET -> valueOf(key);
            case MULTI_GET -> keys.stream().map(this::valueOf).toList();
            case CHECK -> keys.stream().allMatch(this::isReady);
            case GETNUMKEYS -> (long) values.size();
            case LIST_KEYS -> keys();
            case DELETE_KEY -> delete(key) ? 1L : 0L;
            case QUEUE_PUSH -> {
                push(key, request.value());
                yield null;
            }
            case QUEUE_POP -> queueLength(key) == 0 ? null : pop(key);
            case QUEUE_LEN -> queueLength(key);
            case VALIDATE, WAIT, CANCEL_WAIT, PING ->
                    throw new IllegalArgumentException(request.command() + " is for a connection");
        };
    }

    private byte[] compareSet(String key, byte[] expected, byte[] desired) {
        byte[] old = valueOf(key);
        if (Arrays.equals(old, expected)) {
            set(key, desired);
            return desired;
        }
        return get(key) == null ? expected : old;
    }

    /** Returns the value of a key; an empty one if the key is unset. */
    byte[] valueOf(String key) {
        return values.getOrDefault(key, EMPTY);
    }

    /** Returns the value of a key; null if the key is unset. */
    byte[] get(String key) {
        return values.get(key);
    }

    /** Sets a key. All requests that change a value do it with this one. */
    void set(String key, byte[] value) {
        values.put(key, value);
    }

    boolean delete(String key) {
        return values.remove(key) != null;
    }

    /** Appends a value to a queue. */
    void push(String queue, byte[] value) {
        queues.computeIfAbsent(queue, q -> new ArrayDeque<>()).add(value);
    }

    /** Returns the first value of a queue; null if it is empty. */
    byte[] peek(String queue) {
        return queueLength(queue) == 0 ? null : queues.get(queue).peek();
    }

    /** Removes and returns the first value of a queue that is not empty. */
    byte[] pop(String queue) {
        byte[] value = queues.get(queue).remove();
        queues.computeIfPresent(queue, (name, rest) -> rest.isEmpty() ? null : rest);
        return value;
    }

    public long queueLength(String queue) {
        Queue<byte[]> values = queues.get(queue);
        return values == null ? 0 : values.size();
    }

    /** Returns the names of the queues, in no particular order. */
    List<String> queues() {
        return List.copyOf(queues.keySet());
    }

    /**
     * Returns whether a wait for a key is over: it is set, or is the name of a queue with values.
     */
    boolean isReady(String key) {
        return values.containsKey(key) || queues.containsKey(key);
    }

    /**
     * Returns the keys among some that are not {@link #isReady ready}, each once, in their order.
     */
    public List<String> missing(Collection<String> keys) {
        return keys.stream().filter(key -> !isReady(key)).distinct().toList();
    }

    /** Returns the unset keys among some, each once, in their order. */
    List<String> unset(Collection<String> keys) {
        return keys.stream().filter(key -> !values.containsKey(key)).distinct().toList();
    }

    /** Returns the set keys, in no particular order. */
    List<String> keys() {
        return List.copyOf(values.keySet());
    }

    int size() {
        return values.size();
    }

    /**
     * Reads a counter.
     *
     * @throws IllegalArgumentException if the value is not a decimal 64-bit number
     */
    static long parseCounter(String key, byte[] value) {
        try {
            return Long.parseLong(new String(value, StandardCharsets.ISO_8859_1));
        } catch (NumberFormatException e) {
            throw new IllegalArgumentException(
                    ("add: key %s has a value of %s bytes that is not a decimal number; set a"
                                    + " counter only with add, or to a decimal 64-bit number")
                            .formatted(StoreErrors.quote(key), value.length),
                    e);
        }
    }
}

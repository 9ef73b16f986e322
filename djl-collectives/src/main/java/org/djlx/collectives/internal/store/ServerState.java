// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.util.IdentityHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;

/**
 * The state that a server's connections share: keys and waits. Confined to the server's thread. A
 * method that rejects a request throws {@link IllegalArgumentException} and changes nothing.
 */
final class ServerState {

    private static final int ENTRY_BYTES = 128;

    /** The overhead of waiting for a key in bytes; 280 measured with short keys. */
    private static final int WAIT_BYTES = 320;

    private final ServerLimits limits;
    private final int worldSize;
    private final StoreToken token;
    private final byte[] id = Hello.nonce();
    private final KeyValueMap values = new Budgeted();
    private final Waits waits = new Waits(values);
    private final MemoryBudget memory;
    private final Map<byte[], Sent> sent = new IdentityHashMap<>();
    private final CompletableFuture<Void> joined = new CompletableFuture<>();
    private final Set<ServerConnection> strangers = new LinkedHashSet<>(); // no hello; oldest first
    private int connections;

    /**
     * Creates an empty state, for the number of workers that join, 0 if unknown, and the secret
     * that clients must have, or null.
     */
    ServerState(ServerLimits limits, int worldSize, StoreToken token) {
        this.token = token;
        this.limits = limits;
        memory = new MemoryBudget(limits.maxBytes());
        this.worldSize = worldSize;
    }

    ServerLimits limits() {
        return limits;
    }

    /** Returns whether clients need no token. */
    boolean isOpen() {
        return token == null;
    }

    Hello.Challenge challenge(byte[] nonce) {
        if (nonce.length != Hello.NONCE_BYTES) {
            throw new IllegalArgumentException(
                    "its hello has an invalid length of " + nonce.length + " bytes");
        }
        return new Hello.Challenge(token, nonce, id);
    }

    /** Returns the keys and queues, for what needs no check of limits. */
    KeyValueMap values() {
        return values;
    }

    MemoryBudget memory() {
        return memory;
    }

    /**
     * Registers a wait for keys; returns null if all are already set. Calls {@code whenSet} once
     * they are, while another request is executed.
     */
    Waits.Wait await(List<String> keys, Runnable whenSet) {
        long bytes = waitBytes(keys);
        memory.take(bytes);
        Waits.Wait wait =
                waits.add(
                        keys,
                        () -> {
                            memory.giveBack(bytes);
                            whenSet.run();
                        });
        if (wait == null) {
            memory.giveBack(bytes);
        }
        return wait;
    }

    void cancel(Waits.Wait wait) {
        waits.cancel(wait);
        memory.giveBack(waitBytes(wait.keys()));
    }

    private static long waitBytes(List<String> keys) {
        return keys.stream().mapToLong(key -> key.length() + WAIT_BYTES).sum();
    }

    int numAwaited() {
        return waits.numKeys();
    }

    /**
     * Records that a value is in transit to a client. It stays in memory and in the budget, even if
     * its key is set to another value meanwhile.
     */
    void sending(String key, byte[] value) {
        Sent on = sent.get(value);
        if (on == null) {
            boolean stored = values.get(key) == value || values.peek(key) == value;
            if (!stored) {
                memory.take(value.length);
            }
            on = new Sent(stored);
            sent.put(value, on);
        }
        on.clients++;
    }

    /** Records that a value has been sent or its client has disconnected. */
    void sent(byte[] value) {
        Sent on = sent.get(value);
        if (--on.clients == 0) {
            sent.remove(value);
            if (!on.stored) {
                memory.giveBack(value.length);
            }
        }
    }

    /**
     * The number of clients to which a value is in transit, and whether it is still in the store.
     */
    private static final class Sent {
        private boolean stored;
        private int clients;

        Sent(boolean stored) {
            this.stored = stored;
        }
    }

    private static long entryBytes(String key) {
        return ENTRY_BYTES + (long) key.length();
    }

    /** The keys and queues; a change updates the budget and completes waits. */
    private final class Budgeted extends KeyValueMap {

        @Override
        void set(String key, byte[] value) {
            memory.take(entryBytes(key) + value.length);
            byte[] before = get(key);
            super.set(key, value);
            if (before != null) {
                discarded(key, before);
            }
            waits.wake(key);
        }

        @Override
        boolean delete(String key) {
            byte[] value = get(key);
            if (value != null) {
                discarded(key, value);
            }
            return super.delete(key);
        }

        @Override
        void push(String queue, byte[] value) {
            memory.take(entryBytes(queue) + value.length);
            super.push(queue, value);
            waits.wakeOne(queue);
        }

        @Override
        byte[] pop(String queue) {
            byte[] value = super.pop(queue);
            discarded(queue, value);
            return value;
        }

        private void discarded(String key, byte[] value) {
            memory.giveBack(entryBytes(key));
            Sent on = sent.get(value);
            if (on == null) {
                memory.giveBack(value.length);
            } else {
                on.stored = false;
            }
        }
    }

    /** Completes when all workers have joined. */
    CompletableFuture<Void> joined() {
        return joined;
    }

    /**
     * Counts a connection that has not said hello. A quarter of the connections is kept for clients
     * that have. Returns the connection to close because a limit is exceeded: the oldest without a
     * hello; null if none is.
     */
    ServerConnection connected(ServerConnection connection) {
        connections++;
        strangers.add(connection);
        int limit = limits.maxConnections();
        boolean fits = connections <= limit && strangers.size() <= limit - limit / 4;
        return fits ? null : strangers.iterator().next();
    }

    void saidHello(ServerConnection connection) {
        strangers.remove(connection);
    }

    void disconnected(ServerConnection connection) {
        connections--;
        strangers.remove(connection);
    }

    int numConnections() {
        return connections;
    }

    /** Executes a request as {@link KeyValueMap#execute}, within the limits. */
    Object execute(Request request) {
        List<String> keys = request.keys();
        switch (request.command()) {
            case SET, ADD -> checkRoom(keys);
            case COMPARE_SET -> {
                if (request.value().length == 0) {
                    checkRoom(keys);
                }
            }
            case MULTI_SET -> {
                checkRoom(keys);
                // All or nothing.
                long bytes = request.values().stream().mapToLong(value -> value.length).sum();
                bytes += keys.stream().mapToLong(ServerState::entryBytes).sum();
                memory.take(bytes);
                memory.giveBack(bytes);
            }
            case APPEND -> {
                checkRoom(keys);
                long length = values.valueOf(request.key()).length + (long) request.value().length;
                if (length > limits.maxValueBytes()) {
                    throw new IllegalArgumentException(
                            "APPEND makes the value of %s %s bytes long; at most %s are accepted"
                                    .formatted(
                                            StoreErrors.quote(request.key()),
                                            length,
                                            limits.maxValueBytes()));
                }
            }
            case MULTI_GET -> {
                long size = keys.stream().mapToLong(key -> values.valueOf(key).length).sum();
                if (size > limits.maxMessageBytes()) {
                    throw new IllegalArgumentException(
                            ("MULTI_GET of %s bytes; at most %s are allowed; get the values in"
                                            + " several calls")
                                    .formatted(size, limits.maxMessageBytes()));
                }
            }
            default -> {}
        }
        Object answer = values.execute(request);
        if (request.command() == Command.ADD
                && request.key().equals(Command.INIT_KEY)
                && worldSize > 0
                && (Long) answer >= worldSize) {
            joined.complete(null);
        }
        return answer;
    }

    /** Ends another wait for a queue whose values the client that was woken for them left there. */
    void passOn(String queue) {
        if (values.queueLength(queue) > 0) {
            waits.wakeOne(queue);
        }
    }

    private void checkRoom(List<String> keys) {
        // Counting new keys takes a pass over the keys, so it is done only when the store is full.
        if (values.size() + (long) keys.size() > limits.maxKeys()
                && values.size() + (long) values.unset(keys).size() > limits.maxKeys()) {
            throw new IllegalArgumentException(
                    "the store is full: the limit is " + limits.maxKeys() + " keys");
        }
    }
}

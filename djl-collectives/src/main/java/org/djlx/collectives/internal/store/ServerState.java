/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.store;

import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * What a server's connections share: the keys and who waits for them. It belongs to the server's
 * one thread. A method that refuses what it is asked throws {@link IllegalArgumentException} and
 * has changed nothing.
 */
final class ServerState {

    private static final byte[] EMPTY = {};

    private final ServerLimits limits;
    private final int worldSize;
    private final StoreToken token;
    private final byte[] id = Hello.nonce();
    private final KeyValueMap values = new KeyValueMap();
    private final Waits waits = new Waits(values);
    private final CompletableFuture<Void> joined = new CompletableFuture<>();
    private int connections;

    /**
     * Creates an empty state.
     *
     * @param limits what clients are granted
     * @param worldSize the number of workers that join, or 0 if it is unknown
     * @param token the secret that clients have to know, or null
     */
    ServerState(ServerLimits limits, int worldSize, StoreToken token) {
        this.token = token;
        this.limits = limits;
        this.worldSize = worldSize;
    }

    ServerLimits limits() {
        return limits;
    }

    /** Tells whether everybody is served. */
    boolean isOpen() {
        return token == null;
    }

    /** Says hello to a client. */
    Hello.Challenge challenge(byte[] nonce) {
        if (nonce.length != Hello.NONCE_BYTES) {
            throw new IllegalArgumentException("its hello is " + nonce.length + " bytes long");
        }
        return new Hello.Challenge(token, nonce, id);
    }

    Waits waits() {
        return waits;
    }

    /** Completes when as many workers have joined as the world has. */
    CompletableFuture<Void> joined() {
        return joined;
    }

    /** Counts a connection, and tells whether it may stay. */
    boolean connected() {
        return ++connections <= limits.maxConnections();
    }

    void disconnected() {
        connections--;
    }

    int numConnections() {
        return connections;
    }

    void set(String key, byte[] value) {
        checkRoom(List.of(key));
        values.set(key, value);
        waits.wake(key);
    }

    void multiSet(List<String> keys, List<byte[]> newValues) {
        checkRoom(keys);
        for (int i = 0; i < keys.size(); i++) {
            values.set(keys.get(i), newValues.get(i));
        }
        keys.forEach(waits::wake);
    }

    byte[] compareSet(String key, byte[] expected, byte[] desired) {
        if (expected.length == 0) {
            checkRoom(List.of(key));
        }
        byte[] now = values.compareSet(key, expected, desired);
        wakeIfSet(key);
        return now;
    }

    long add(String key, long amount) {
        checkRoom(List.of(key));
        long sum = values.add(key, amount);
        waits.wake(key);
        if (worldSize > 0 && sum >= worldSize && key.equals(Command.INIT_KEY)) {
            joined.complete(null);
        }
        return sum;
    }

    void append(String key, byte[] tail) {
        checkRoom(List.of(key));
        long length = (long) get(key).length + tail.length;
        if (length > limits.maxValueBytes()) {
            throw new IllegalArgumentException(
                    "APPEND makes the value of "
                            + StoreErrors.quote(key)
                            + " "
                            + length
                            + " bytes long; at most "
                            + limits.maxValueBytes()
                            + " are accepted");
        }
        values.append(key, tail);
        waits.wake(key);
    }

    /** Returns a value; as PyTorch's libuv server does, an empty one if the key is unset. */
    byte[] get(String key) {
        byte[] value = values.get(key);
        return value == null ? EMPTY : value;
    }

    byte[][] multiGet(List<String> keys) {
        byte[][] found = keys.stream().map(this::get).toArray(byte[][]::new);
        long size = Arrays.stream(found).mapToLong(value -> value.length).sum();
        if (size > limits.maxMessageBytes()) {
            throw new IllegalArgumentException(
                    "MULTI_GET of "
                            + size
                            + " bytes; at most "
                            + limits.maxMessageBytes()
                            + " are sent: get the values in several calls");
        }
        return found;
    }

    boolean check(List<String> keys) {
        return keys.stream().allMatch(values::contains);
    }

    boolean delete(String key) {
        return values.delete(key);
    }

    int numKeys() {
        return values.size();
    }

    private void wakeIfSet(String key) {
        if (values.contains(key)) {
            waits.wake(key);
        }
    }

    private void checkRoom(List<String> keys) {
        // Counting what is missing costs a pass over the keys, so it is left for a full store.
        if (values.size() + (long) keys.size() > limits.maxKeys()
                && values.size() + (long) values.missing(keys).size() > limits.maxKeys()) {
            throw new IllegalArgumentException(
                    "the store is full: it may hold " + limits.maxKeys() + " keys");
        }
    }
}

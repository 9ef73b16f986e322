// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.time.Duration;
import java.util.List;
import org.djlx.collectives.store.Store;

/** A store whose operations are {@linkplain Request requests}; checks their arguments. */
public abstract class RequestStore implements Store {

    private final Duration timeout;

    protected RequestStore(Duration timeout) {
        this.timeout = StoreChecks.checkTimeout(timeout);
    }

    /**
     * Executes a request that does not wait; returns its answer as {@link KeyValueMap#execute}. The
     * name of the operation is for messages.
     */
    protected abstract Object execute(String operation, Request request);

    private Object execute(String operation, Command command, String key, byte[]... values) {
        StoreChecks.checkKey(key);
        for (byte[] value : values) {
            StoreChecks.checkValue(value);
        }
        return execute(operation, new Request(command, List.of(key), List.of(values), 0));
    }

    @Override
    public final void set(String key, byte[] value) {
        execute("set", Command.SET, key, value);
    }

    @Override
    public final void append(String key, byte[] value) {
        execute("append", Command.APPEND, key, value);
    }

    @Override
    public final void multiSet(List<String> keys, List<byte[]> values) {
        StoreChecks.checkPairs(keys, values);
        execute("multiSet", new Request(Command.MULTI_SET, keys, values, 0));
    }

    @Override
    public final long add(String key, long amount) {
        StoreChecks.checkKey(key);
        return (Long) execute("add", new Request(Command.ADD, List.of(key), List.of(), amount));
    }

    @Override
    public final byte[] compareSet(String key, byte[] expected, byte[] desired) {
        return (byte[]) execute("compareSet", Command.COMPARE_SET, key, expected, desired);
    }

    @Override
    public final boolean check(List<String> keys) {
        StoreChecks.checkKeys(keys);
        return (Boolean) execute("check", Request.of(Command.CHECK, keys));
    }

    @Override
    public final boolean delete(String key) {
        return (Long) execute("delete", Command.DELETE_KEY, key) > 0;
    }

    @Override
    public final long numKeys() {
        return (Long) execute("numKeys", Request.of(Command.GETNUMKEYS, List.of()));
    }

    @Override
    @SuppressWarnings("unchecked")
    public final List<String> listKeys() {
        return (List<String>) execute("listKeys", Request.of(Command.LIST_KEYS, List.of()));
    }

    @Override
    public final void queuePush(String queue, byte[] value) {
        execute("queuePush", Command.QUEUE_PUSH, queue, value);
    }

    @Override
    public final long queueLength(String queue) {
        return (Long) execute("queueLength", Command.QUEUE_LEN, queue);
    }

    @Override
    public final Duration timeout() {
        return timeout;
    }
}

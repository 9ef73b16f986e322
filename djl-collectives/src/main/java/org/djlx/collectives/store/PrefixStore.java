// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import java.time.Duration;
import java.util.List;
import java.util.function.Supplier;
import org.djlx.collectives.internal.store.StoreChecks;
import org.djlx.nativeops.host.Required;

/**
 * A view of another store that puts a prefix and a slash before every key. Several groups can share
 * one store, each with its own prefix. The counterpart of {@code torch.distributed.PrefixStore},
 * with the same keys.
 *
 * <p>It has the timeout of the underlying store. {@link #numKeys()} counts the keys of the whole
 * store. {@link #close()} is a no-op: the creator of the underlying store closes it.
 */
public final class PrefixStore implements Store {

    private final String prefix;
    private final Store store;
    private final Runnable close;

    /**
     * Creates a view.
     *
     * @param prefix the prefix of every key, without the slash
     * @param store the underlying store; the caller owns and closes it
     */
    public PrefixStore(String prefix, Store store) {
        this(
                checked(prefix) + '/',
                Required.argument("PrefixStore: the underlying store", store),
                () -> {});
    }

    private PrefixStore(String prefix, Store store, Runnable close) {
        this.prefix = prefix;
        this.store = store;
        this.close = close;
    }

    /** Returns a view with the keys of a store, which closing the view leaves open. */
    static Store view(Store store) {
        return new PrefixStore("", store, () -> {});
    }

    @Override
    public void set(String key, byte[] value) {
        store.set(prefixed(key), value);
    }

    @Override
    public byte[] get(String key, Duration timeout) {
        return stripping(() -> store.get(prefixed(key), timeout));
    }

    @Override
    public long add(String key, long amount) {
        return store.add(prefixed(key), amount);
    }

    @Override
    public byte[] compareSet(String key, byte[] expected, byte[] desired) {
        return store.compareSet(prefixed(key), expected, desired);
    }

    @Override
    public void append(String key, byte[] value) {
        store.append(prefixed(key), value);
    }

    @Override
    public boolean check(List<String> keys) {
        return store.check(prefixed(keys));
    }

    @Override
    public void waitFor(List<String> keys, Duration timeout) {
        stripping(
                () -> {
                    store.waitFor(prefixed(keys), timeout);
                    return null;
                });
    }

    @Override
    public void multiSet(List<String> keys, List<byte[]> values) {
        store.multiSet(prefixed(keys), values);
    }

    @Override
    public List<byte[]> multiGet(List<String> keys, Duration timeout) {
        return stripping(() -> store.multiGet(prefixed(keys), timeout));
    }

    @Override
    public boolean delete(String key) {
        return store.delete(prefixed(key));
    }

    @Override
    public long numKeys() {
        return store.numKeys();
    }

    @Override
    public List<String> listKeys() {
        return store.listKeys().stream()
                .filter(key -> key.startsWith(prefix))
                .map(key -> key.substring(prefix.length()))
                .toList();
    }

    @Override
    public void queuePush(String queue, byte[] value) {
        store.queuePush(prefixed(queue), value);
    }

    @Override
    public byte[] queuePop(String queue, Duration timeout) {
        return stripping(() -> store.queuePop(prefixed(queue), timeout));
    }

    @Override
    public long queueLength(String queue) {
        return store.queueLength(prefixed(queue));
    }

    @Override
    public Store newHandle() {
        Store own = store.newHandle();
        return new PrefixStore(prefix, own, own::close);
    }

    @Override
    public Duration timeout() {
        return store.timeout();
    }

    /** A no-op, except for a {@link #newHandle}: the creator of the underlying store closes it. */
    @Override
    public void close() {
        close.run();
    }

    @Override
    public String toString() {
        return prefix.isEmpty() ? store.toString() : store + ", keys of " + prefix;
    }

    private String prefixed(String key) {
        return prefix + checked(key);
    }

    private static String checked(String key) {
        StoreChecks.checkKey(key);
        return key;
    }

    private List<String> prefixed(List<String> keys) {
        return Required.argument("the list of keys", keys).stream().map(this::prefixed).toList();
    }

    /** Runs a wait; a timeout names the keys without the prefix. */
    private <T> T stripping(Supplier<T> wait) {
        try {
            return wait.get();
        } catch (StoreTimeoutException e) {
            List<String> keys =
                    e.missingKeys().stream().map(key -> key.substring(prefix.length())).toList();
            StoreTimeoutException own = new StoreTimeoutException(e.getMessage(), keys);
            own.initCause(e);
            throw own;
        }
    }
}

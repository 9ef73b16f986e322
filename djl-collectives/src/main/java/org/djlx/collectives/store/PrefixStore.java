/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.store;

import java.time.Duration;
import java.util.List;
import java.util.function.Supplier;
import org.djlx.collectives.internal.host.Required;
import org.djlx.collectives.internal.store.StoreChecks;

/**
 * A view of another store in which every key is preceded by a prefix and a slash, so that several
 * groups can share one store; the counterpart of {@code torch.distributed.PrefixStore}, whose keys
 * it shares.
 *
 * <p>The timeout is that of the store underneath, {@link #numKeys()} counts the keys of the whole
 * store, and {@link #close()} does nothing: whoever opened the store underneath closes it.
 */
public final class PrefixStore implements Store {

    private final String prefix;
    private final Store store;

    /**
     * Creates a view.
     *
     * @param prefix what precedes every key, without the slash
     * @param store the store underneath, which stays the caller's to close
     */
    public PrefixStore(String prefix, Store store) {
        StoreChecks.checkKey(prefix);
        if (store == null) {
            throw new IllegalArgumentException("The store underneath must not be null");
        }
        this.prefix = prefix + '/';
        this.store = store;
    }

    /** {@inheritDoc} */
    @Override
    public void set(String key, byte[] value) {
        store.set(prefixed(key), value);
    }

    /** {@inheritDoc} */
    @Override
    public byte[] get(String key, Duration timeout) {
        return stripping(() -> store.get(prefixed(key), timeout));
    }

    /** {@inheritDoc} */
    @Override
    public long add(String key, long amount) {
        return store.add(prefixed(key), amount);
    }

    /** {@inheritDoc} */
    @Override
    public byte[] compareSet(String key, byte[] expected, byte[] desired) {
        return store.compareSet(prefixed(key), expected, desired);
    }

    /** {@inheritDoc} */
    @Override
    public void append(String key, byte[] value) {
        store.append(prefixed(key), value);
    }

    /** {@inheritDoc} */
    @Override
    public boolean check(List<String> keys) {
        return store.check(prefixed(keys));
    }

    /** {@inheritDoc} */
    @Override
    public void waitFor(List<String> keys, Duration timeout) {
        stripping(
                () -> {
                    store.waitFor(prefixed(keys), timeout);
                    return null;
                });
    }

    /** {@inheritDoc} */
    @Override
    public void multiSet(List<String> keys, List<byte[]> values) {
        store.multiSet(prefixed(keys), values);
    }

    /** {@inheritDoc} */
    @Override
    public List<byte[]> multiGet(List<String> keys, Duration timeout) {
        return stripping(() -> store.multiGet(prefixed(keys), timeout));
    }

    /** {@inheritDoc} */
    @Override
    public boolean delete(String key) {
        return store.delete(prefixed(key));
    }

    /** {@inheritDoc} */
    @Override
    public long numKeys() {
        return store.numKeys();
    }

    /** {@inheritDoc} */
    @Override
    public Duration timeout() {
        return store.timeout();
    }

    /** Does nothing: the store underneath belongs to whoever opened it. */
    @Override
    public void close() {}

    private String prefixed(String key) {
        StoreChecks.checkKey(key);
        return prefix + key;
    }

    private List<String> prefixed(List<String> keys) {
        return Required.argument("the list of keys", keys).stream().map(this::prefixed).toList();
    }

    /** Runs a wait; a timeout then names the keys as the caller knows them. */
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

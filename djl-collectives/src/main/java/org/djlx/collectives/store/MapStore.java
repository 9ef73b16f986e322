// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import java.time.Duration;
import java.util.List;
import java.util.function.Function;
import org.djlx.collectives.internal.store.KeyValueMap;
import org.djlx.collectives.internal.store.StoreChecks;

/**
 * A store whose state is one {@link KeyValueMap}. A subclass says where the map is, and who may use
 * it at a time.
 */
abstract class MapStore implements Store {

    private final Duration timeout;

    MapStore(Duration timeout) {
        this.timeout = StoreChecks.checkTimeout(timeout);
    }

    /** Runs a query while the map does not change; throws if the store is closed. */
    abstract <T> T read(String operation, Function<KeyValueMap, T> query);

    /** Changes the map, atomically; throws if the store is closed. */
    abstract <T> T change(String operation, Function<KeyValueMap, T> change);

    /** Waits until all keys are set, and runs a query on that state. */
    abstract <T> T await(
            String operation, List<String> keys, Duration timeout, Function<KeyValueMap, T> query);

    @Override
    public final void set(String key, byte[] value) {
        StoreChecks.checkKey(key);
        StoreChecks.checkValue(value);
        change(
                "set",
                values -> {
                    values.set(key, value.clone());
                    return null;
                });
    }

    @Override
    public final byte[] get(String key, Duration timeout) {
        StoreChecks.checkKey(key);
        return await("get", List.of(key), timeout, values -> values.get(key).clone());
    }

    @Override
    public final long add(String key, long amount) {
        StoreChecks.checkKey(key);
        return change("add", values -> values.add(key, amount));
    }

    @Override
    public final byte[] compareSet(String key, byte[] expected, byte[] desired) {
        StoreChecks.checkKey(key);
        StoreChecks.checkValue(expected);
        StoreChecks.checkValue(desired);
        return change(
                "compareSet", values -> values.compareSet(key, expected, desired.clone()).clone());
    }

    @Override
    public final void append(String key, byte[] value) {
        StoreChecks.checkKey(key);
        StoreChecks.checkValue(value);
        change(
                "append",
                values -> {
                    values.append(key, value.clone());
                    return null;
                });
    }

    @Override
    public final boolean check(List<String> keys) {
        StoreChecks.checkKeys(keys);
        return read("check", values -> values.missing(keys).isEmpty());
    }

    @Override
    public final void waitFor(List<String> keys, Duration timeout) {
        StoreChecks.checkKeys(keys);
        await("waitFor", keys, timeout, values -> null);
    }

    @Override
    public final void multiSet(List<String> keys, List<byte[]> values) {
        StoreChecks.checkPairs(keys, values);
        change(
                "multiSet",
                map -> {
                    for (int i = 0; i < keys.size(); i++) {
                        map.set(keys.get(i), values.get(i).clone());
                    }
                    return null;
                });
    }

    @Override
    public final List<byte[]> multiGet(List<String> keys, Duration timeout) {
        StoreChecks.checkKeys(keys);
        return await(
                "multiGet",
                keys,
                timeout,
                values -> keys.stream().map(key -> values.get(key).clone()).toList());
    }

    @Override
    public final boolean delete(String key) {
        StoreChecks.checkKey(key);
        return change("delete", values -> values.delete(key));
    }

    @Override
    public final long numKeys() {
        return read("numKeys", values -> (long) values.size());
    }

    @Override
    public final Duration timeout() {
        return timeout;
    }
}

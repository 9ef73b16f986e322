// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import java.time.Duration;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Function;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.store.KeyValueMap;
import org.djlx.collectives.internal.store.StoreChecks;

/**
 * A store in memory, for ranks that are threads of one JVM; the counterpart of {@code
 * torch.distributed.HashStore}.
 *
 * <p>All ranks share one object. Every method is atomic. {@link #close()} closes the store for all
 * ranks: current waits and later calls throw {@link CollectiveException}. The creator of the store
 * closes it.
 */
public final class HashStore extends MapStore {

    private final KeyValueMap values = new KeyValueMap();

    /** Creates an empty store whose methods wait up to 5 minutes. */
    public HashStore() {
        this(StoreChecks.DEFAULT_TIMEOUT);
    }

    /** Creates an empty store whose methods without a timeout parameter wait for a time. */
    public HashStore(Duration timeout) {
        super(new ReentrantLock(), Long.MAX_VALUE, timeout);
    }

    @Override
    <T> T use(String operation, Function<KeyValueMap, T> code) {
        return code.apply(values);
    }

    @Override
    void closeMap() {}

    @Override
    public String toString() {
        return "HashStore";
    }
}

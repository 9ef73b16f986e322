// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import java.util.List;
import org.djlx.collectives.CollectiveException;

/** A wait for keys of a {@link Store} took longer than its timeout. */
public class StoreTimeoutException extends CollectiveException {

    private static final long serialVersionUID = 1L;

    /** The missing keys; an array, because a list need not be serializable. */
    private final String[] missingKeys;

    /**
     * Creates an exception whose message says the store, the timeout and the keys that were not set
     * in time; null if unknown.
     */
    public StoreTimeoutException(String message, List<String> missingKeys) {
        super(message);
        this.missingKeys = missingKeys == null ? new String[0] : missingKeys.toArray(String[]::new);
    }

    /** {@return the keys that were not set in time; empty if unknown} */
    public List<String> missingKeys() {
        return List.of(missingKeys);
    }
}

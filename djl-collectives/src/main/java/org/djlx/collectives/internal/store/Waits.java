// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Waits for keys of a {@link KeyValueMap}, indexed by key. Not thread-safe. */
final class Waits {

    private final KeyValueMap values;
    private final Map<String, Set<Wait>> byKey = new HashMap<>();

    Waits(KeyValueMap values) {
        this.values = values;
    }

    /**
     * Registers a wait for keys; returns null if all are already set. Calls {@code whenSet} within
     * {@link #wake} once they are.
     */
    Wait add(List<String> keys, Runnable whenSet) {
        Wait wait = new Wait(keys, whenSet);
        return register(wait) ? wait : null;
    }

    void cancel(Wait wait) {
        for (String key : wait.keys) {
            byKey.computeIfPresent(
                    key,
                    (k, waits) -> {
                        waits.remove(wait);
                        return waits.isEmpty() ? null : waits;
                    });
        }
    }

    /** Completes waits after a key was set. */
    void wake(String key) {
        Set<Wait> waits = byKey.remove(key);
        if (waits == null) {
            return;
        }
        waits.forEach(this::arrived);
    }

    /** Completes one wait after a value was pushed to a queue, as one client can pop it. */
    void wakeOne(String queue) {
        Set<Wait> waits = byKey.remove(queue);
        if (waits == null) {
            return;
        }
        boolean woken = false;
        for (Iterator<Wait> rest = waits.iterator(); rest.hasNext() && !woken; ) {
            Wait wait = rest.next();
            rest.remove();
            woken = arrived(wait);
        }
        if (!waits.isEmpty()) {
            byKey.put(queue, waits);
        }
    }

    /** Counts a key of a wait as set; returns whether the wait is complete. */
    private boolean arrived(Wait wait) {
        // Another key may have been deleted meanwhile: then the wait continues.
        if (--wait.missing > 0 || register(wait)) {
            return false;
        }
        wait.whenSet.run();
        return true;
    }

    int numKeys() {
        return byKey.size();
    }

    private boolean register(Wait wait) {
        List<String> missing = values.missing(wait.keys);
        wait.missing = missing.size();
        for (String key : missing) {
            byKey.computeIfAbsent(key, k -> new LinkedHashSet<>()).add(wait);
        }
        return !missing.isEmpty();
    }

    static final class Wait {

        private final List<String> keys;
        private final Runnable whenSet;
        private int missing;

        List<String> keys() {
            return keys;
        }

        private Wait(List<String> keys, Runnable whenSet) {
            this.keys = keys;
            this.whenSet = whenSet;
        }
    }
}

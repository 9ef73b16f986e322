// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import java.nio.charset.StandardCharsets;
import java.util.UUID;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.store.Store;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A job identifier, the same on all ranks of a group and unique per job. It distinguishes the
 * flight records of different jobs: their groups often have equal names.
 */
public final class JobId {

    private static final Logger logger = LoggerFactory.getLogger(JobId.class);
    private static final String KEY = "job";
    private static final String READERS = KEY + "/read";

    private JobId() {}

    /**
     * Returns the identifier, without waiting for other ranks: the first rank sets it in the store,
     * the last rank deletes the keys.
     */
    public static String agreeOn(GroupContext context) {
        String own = UUID.randomUUID().toString();
        Store store = context.store();
        try {
            byte[] chosen =
                    store.compareSet(KEY, new byte[0], own.getBytes(StandardCharsets.UTF_8));
            if (store.add(READERS, 1) == context.worldSize()) {
                store.delete(KEY);
                store.delete(READERS);
            }
            return new String(chosen, StandardCharsets.UTF_8);
        } catch (RuntimeException e) {
            // Not fatal here: if the store is lost, creating the backend reports it.
            logger.debug("group '{}': the store has no common job identifier", context.name(), e);
            return own;
        }
    }
}

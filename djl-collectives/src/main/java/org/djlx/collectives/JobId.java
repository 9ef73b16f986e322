/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import java.nio.charset.StandardCharsets;
import java.util.UUID;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.store.Store;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A name that all ranks of a group have and no other job, by which flight records are told apart:
 * the groups of most jobs have the same names.
 */
final class JobId {

    private static final Logger logger = LoggerFactory.getLogger(JobId.class);
    private static final String KEY = "job";
    private static final String READERS = KEY + "/read";

    private JobId() {}

    /**
     * Agrees with the other ranks without waiting for them: the first to come chooses, the last one
     * deletes what this took in the store.
     */
    static String agreeOn(GroupContext context) {
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
            // Whether the group comes about is for the backend to say.
            logger.debug("group '{}' has no job's id in common", context.name(), e);
            return own;
        }
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.spi;

import org.djlx.collectives.CollectiveException;

/**
 * Creates the backend of a group on one rank. Found by {@link java.util.ServiceLoader}, or given to
 * {@link Backends#register}.
 */
public interface BackendFactory {

    /**
     * Returns the backend's name.
     *
     * @return the name, such as {@code shm}
     */
    String name();

    /**
     * Declares what the backend supports, the same on every rank.
     *
     * @return the declaration
     */
    Support support();

    /**
     * Creates the backend of one rank. Called on all ranks of the group at about the same time;
     * returns when the group is usable.
     *
     * @param context the group and the rank
     * @return the backend
     * @throws IllegalArgumentException if the options are of a kind that the backend does not know
     * @throws CollectiveException if the ranks do not come together
     */
    Backend create(GroupContext context);
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.cost;

/**
 * The path that is taken.
 *
 * @param path the path
 * @param why why not another: what each path is predicted to take, or that there is no choice
 */
public record Choice(Path path, String why) {

    /**
     * Creates a choice.
     *
     * @param path the path
     * @param why why not another
     * @throws IllegalArgumentException if an argument is null
     */
    public Choice {
        if (path == null || why == null) {
            throw new IllegalArgumentException("a choice needs a path and why, not null");
        }
    }

    @Override
    public String toString() {
        return path + ": " + why;
    }
}

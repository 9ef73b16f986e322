// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.cost;

/**
 * The path of a call.
 *
 * @param why the predicted time of each path, or why there is no choice
 */
public record Choice(Path path, String why) {

    public Choice {
        if (path == null || why == null) {
            throw new IllegalArgumentException(
                    "a choice needs a path and a reason; one of them is null");
        }
    }

    @Override
    public String toString() {
        return path + ": " + why;
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.util.List;

/**
 * A command with its arguments.
 *
 * @param keys its keys, one character per byte
 * @param number its integer, or 0
 */
record Request(Command command, List<String> keys, List<byte[]> values, long number) {

    String key() {
        return keys.get(0);
    }

    byte[] value() {
        return values.get(0);
    }
}

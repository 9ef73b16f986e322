// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.util.List;

/** A command with its keys, of one character per byte, and its integer, or 0. */
record Request(Command command, List<String> keys, List<byte[]> values, long number) {

    String key() {
        return keys.get(0);
    }

    byte[] value() {
        return values.get(0);
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.nio.charset.StandardCharsets;
import java.util.List;

/**
 * A command with its keys, and its integer, or 0. A {@link RequestParser} returns keys as they are
 * sent, with one character per byte.
 */
public record Request(Command command, List<String> keys, List<byte[]> values, long number) {

    public static Request of(Command command, List<String> keys) {
        return new Request(command, keys, List.of(), 0);
    }

    String key() {
        return keys.get(0);
    }

    byte[] value() {
        return values.get(0);
    }

    /** Returns a request whose values the caller of the store cannot change. */
    public Request copied() {
        return new Request(command, keys, values.stream().map(byte[]::clone).toList(), number);
    }

    /** Returns a parsed request with the user's keys. */
    Request decoded() {
        return new Request(command, keys.stream().map(Request::decoded).toList(), values, number);
    }

    /** Returns the user's key of one that was sent, as Latin-1. */
    private static String decoded(String sent) {
        byte[] utf8 = sent.getBytes(StandardCharsets.ISO_8859_1);
        String key = new String(utf8, StandardCharsets.UTF_8);
        if (!key.startsWith(Command.KEY_PREFIX)) {
            throw new IllegalArgumentException(
                    "key %s does not begin with %s"
                            .formatted(StoreErrors.quote(key), Command.KEY_PREFIX));
        }
        return key.substring(Command.KEY_PREFIX.length());
    }
}

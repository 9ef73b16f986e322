// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import java.nio.ByteBuffer;
import java.util.Arrays;

/**
 * The format of a file of a {@link KernelCache}, big-endian:
 *
 * <pre>
 *   0        8             16           48            (bytes)
 *   | magic  | length n    | SHA-256    | n bytes: the content
 * </pre>
 */
final class CachedFile {

    private static final long MAGIC = 0x646a6c786b726e31L; // "djlxkrn1"
    private static final int CHECKSUM_BYTES = 32;
    private static final int HEADER_BYTES = 2 * Long.BYTES + CHECKSUM_BYTES;

    private CachedFile() {}

    static byte[] wrap(byte[] content) {
        return ByteBuffer.allocate(HEADER_BYTES + content.length)
                .putLong(MAGIC)
                .putLong(content.length)
                .put(KernelCache.sha256(content))
                .put(content)
                .array();
    }

    /** Returns the content, or null if the file is damaged. */
    static byte[] unwrap(byte[] file) {
        if (file.length < HEADER_BYTES) {
            return null;
        }
        ByteBuffer buffer = ByteBuffer.wrap(file);
        if (buffer.getLong() != MAGIC || buffer.getLong() != file.length - HEADER_BYTES) {
            return null;
        }
        byte[] checksum = new byte[CHECKSUM_BYTES];
        buffer.get(checksum);
        byte[] content = new byte[buffer.remaining()];
        buffer.get(content);
        return Arrays.equals(checksum, KernelCache.sha256(content)) ? content : null;
    }
}

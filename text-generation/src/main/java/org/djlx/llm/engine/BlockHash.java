// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import org.djlx.llm.ops.KvCache;

/**
 * Identifies the tokens of a full block, all tokens before them and their adapter: the SHA-256 of
 * the previous block's hash and the block's tokens. Equal hashes are taken for equal tokens.
 */
record BlockHash(long first, long second, long third, long fourth) {

    /** Returns what precedes the first block of a sequence; null without an adapter. */
    static BlockHash ofAdapter(int id) {
        return id == 0 ? null : new BlockHash(id, 0, 0, 0);
    }

    /**
     * {@code previous} is null for the first block of a sequence without an adapter; {@code begin}
     * is the index of the block's first token.
     */
    static BlockHash of(BlockHash previous, int[] tokens, int begin) {
        ByteBuffer bytes =
                ByteBuffer.allocate(4 * Long.BYTES + KvCache.BLOCK_TOKENS * Integer.BYTES);
        if (previous != null) {
            bytes.putLong(previous.first).putLong(previous.second);
            bytes.putLong(previous.third).putLong(previous.fourth);
        }
        for (int i = 0; i < KvCache.BLOCK_TOKENS; i++) {
            bytes.putInt(tokens[begin + i]);
        }
        MessageDigest sha256;
        try {
            sha256 = MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e); // Every Java platform has it.
        }
        sha256.update(bytes.flip());
        ByteBuffer hash = ByteBuffer.wrap(sha256.digest());
        return new BlockHash(hash.getLong(), hash.getLong(), hash.getLong(), hash.getLong());
    }
}

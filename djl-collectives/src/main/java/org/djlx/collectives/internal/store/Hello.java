/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.store;

import java.net.ProtocolException;
import java.nio.ByteBuffer;
import java.security.SecureRandom;
import java.util.Arrays;

/**
 * How a client and a server of this library get to know each other at the start of a connection, by
 * commands that PyTorch's protocol has. {@code |} joins bytes; the key is no user's, for want of
 * the slash before it.
 *
 * <pre>
 * client                                               server
 * COMPARE_SET KEY, expected: nonce C (16), desired: -
 *                                                      id (16)              if it has no token
 *                                                      id | nonce S (16) | proof (32)  if it has
 * SET KEY, proof (32)                                  no answer; closes if the proof is wrong
 *
 * the server's proof    HMAC-SHA256(token, "server" | C | id | S)
 * the client's proof    HMAC-SHA256(token, "client" | C | id | S)
 * </pre>
 *
 * <p>To PyTorch's server the key is one that is unset, to which its answer is the nonce C itself:
 * so the client knows with whom it talks. A server with a token answers PING besides, and refuses
 * all else, until it has the proof. The id tells a server from one that is started later at the
 * same address.
 *
 * <p>The token is never sent, and an answer is good for one connection only. What follows is
 * neither encrypted nor signed.
 */
final class Hello {

    static final String KEY = "djlx/hello";

    /** Of a nonce, and of a server's id. */
    static final int NONCE_BYTES = 16;

    private static final int PROOF_BYTES = 32;
    private static final String SERVER = "server";
    private static final String CLIENT = "client";
    private static final SecureRandom RANDOM = new SecureRandom();

    private Hello() {}

    static byte[] nonce() {
        byte[] nonce = new byte[NONCE_BYTES];
        RANDOM.nextBytes(nonce);
        return nonce;
    }

    /** The longest answer that there is. */
    static int maxAnswerBytes() {
        return 2 * NONCE_BYTES + PROOF_BYTES;
    }

    /** What a server says: its part of one connection's beginning. */
    static final class Challenge {

        private final StoreToken token;
        private final byte[] client;
        private final byte[] id;
        private final byte[] nonce = nonce();

        Challenge(StoreToken token, byte[] client, byte[] id) {
            this.token = token;
            this.client = client;
            this.id = id;
        }

        byte[] answer() {
            return token == null
                    ? id
                    : ByteBuffer.allocate(maxAnswerBytes())
                            .put(id)
                            .put(nonce)
                            .put(token.proof(SERVER, client, id, nonce))
                            .array();
        }

        boolean isMetBy(byte[] proof) {
            return token != null && token.isProvenBy(proof, CLIENT, client, id, nonce);
        }
    }

    /**
     * What a client makes of a server's answer.
     *
     * @param serverId the server's id; null if it is one of PyTorch's, which has none
     * @param proof what the client has to send now, or null
     */
    record Reply(byte[] serverId, byte[] proof) {

        /**
         * Reads an answer.
         *
         * @param token the client's token, or null
         * @param nonce the client's nonce
         * @param answer the server's answer
         * @return the reply
         * @throws StrangerException if one of the two does not know the other's token
         */
        static Reply to(StoreToken token, byte[] nonce, byte[] answer) throws StrangerException {
            boolean demanding = answer.length == maxAnswerBytes();
            if (token == null && demanding) {
                throw new StrangerException(
                        "the server serves only those who know its secret: set "
                                + StoreToken.VARIABLE
                                + " on this rank to the value that it has on the server's");
            }
            if (token != null && !demanding) {
                throw new StrangerException(
                        "the server knows no secret, so it may be anybody's: set "
                                + StoreToken.VARIABLE
                                + " where the server runs, too, or unset it here. A server of"
                                + " PyTorch's cannot be used with it");
            }
            if (!demanding) {
                return new Reply(Arrays.equals(answer, nonce) ? null : answer, null);
            }
            byte[] id = Arrays.copyOf(answer, NONCE_BYTES);
            byte[] server = Arrays.copyOfRange(answer, NONCE_BYTES, 2 * NONCE_BYTES);
            byte[] proof = Arrays.copyOfRange(answer, 2 * NONCE_BYTES, answer.length);
            if (!token.isProvenBy(proof, SERVER, nonce, id, server)) {
                throw new StrangerException(
                        "the server's secret is another one: set "
                                + StoreToken.VARIABLE
                                + " to the same value on all ranks");
            }
            return new Reply(id, token.proof(CLIENT, nonce, id, server));
        }
    }

    /** The other end does not belong to this job; the message says what to do. */
    static final class StrangerException extends ProtocolException {

        private static final long serialVersionUID = 1L;

        StrangerException(String message) {
            super(message);
        }
    }
}

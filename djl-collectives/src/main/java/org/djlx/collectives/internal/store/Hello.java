// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.net.ProtocolException;
import java.nio.ByteBuffer;
import java.security.SecureRandom;
import java.util.Arrays;

/**
 * The handshake between clients and servers of this library, with commands of PyTorch's protocol.
 * {@code |} concatenates bytes. The key has no slash, so it is not a user's key.
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
 * <ul>
 *   <li>For PyTorch's server the key is unset, so it answers with the nonce C. That is how the
 *       client recognises it.
 *   <li>Until it has the client's proof, a server with a token answers only the hello and PING.
 *   <li>The id distinguishes a server from a later one at the same address.
 *   <li>The token is never sent, and a proof is valid for one connection only. Later commands are
 *       neither encrypted nor signed.
 * </ul>
 */
final class Hello {

    static final String KEY = "djlx/hello";

    /** The length of a nonce and of a server's id, in bytes. */
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

    /** The maximum length of an answer in bytes. */
    static int maxAnswerBytes() {
        return 2 * NONCE_BYTES + PROOF_BYTES;
    }

    /** The server's side of the handshake of one connection. */
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
     * The client's result of a server's answer: the server's id, null for PyTorch's server, which
     * has none, and the proof that the client must send, or null.
     */
    record Reply(byte[] serverId, byte[] proof) {

        /**
         * Parses and checks an answer; throws StrangerException if the tokens differ, or only one
         * side has one.
         */
        static Reply to(StoreToken token, byte[] nonce, byte[] answer) throws StrangerException {
            boolean demanding = answer.length == maxAnswerBytes();
            if (token == null && demanding) {
                throw new StrangerException(
                        "the server requires a token: set "
                                + StoreToken.VARIABLE
                                + " on this rank to the value on the server's rank");
            }
            if (token != null && !demanding) {
                throw new StrangerException(
                        "the server has no token and cannot be authenticated: set "
                                + StoreToken.VARIABLE
                                + " on the server's rank too, or unset it here; PyTorch's servers"
                                + " do not support it");
            }
            if (!demanding) {
                return new Reply(Arrays.equals(answer, nonce) ? null : answer, null);
            }
            byte[] id = Arrays.copyOf(answer, NONCE_BYTES);
            byte[] server = Arrays.copyOfRange(answer, NONCE_BYTES, 2 * NONCE_BYTES);
            byte[] proof = Arrays.copyOfRange(answer, 2 * NONCE_BYTES, answer.length);
            if (!token.isProvenBy(proof, SERVER, nonce, id, server)) {
                throw new StrangerException(
                        "the server has a different token: set "
                                + StoreToken.VARIABLE
                                + " to the same value on all ranks");
            }
            return new Reply(id, token.proof(CLIENT, nonce, id, server));
        }
    }

    /** The peer does not belong to this job. The message says what to do. */
    static final class StrangerException extends ProtocolException {

        private static final long serialVersionUID = 1L;

        StrangerException(String message) {
            super(message);
        }
    }
}

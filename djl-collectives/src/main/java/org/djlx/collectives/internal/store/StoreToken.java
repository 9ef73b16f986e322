// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.Map;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * The secret that the ranks of a job share to protect their store. It is never sent: each end
 * proves to the other that it has the secret; see {@link Hello}. Thread-safe.
 */
public final class StoreToken {

    public static final String VARIABLE = "DJLX_STORE_TOKEN";

    private static final String ALGORITHM = "HmacSHA256";

    private final SecretKeySpec key;

    private StoreToken(byte[] secret) {
        key = new SecretKeySpec(secret, ALGORITHM);
    }

    /**
     * Returns the token of an environment; null if the variable is not set. Throws
     * IllegalArgumentException if it is set but empty.
     */
    public static StoreToken of(Map<String, String> environment) {
        String text = environment.get(VARIABLE);
        if (text == null) {
            return null;
        }
        if (text.isBlank()) {
            throw new IllegalArgumentException(
                    VARIABLE
                            + " is set, but empty: set it to a secret that only the ranks of the"
                            + " job know, or unset it");
        }
        return new StoreToken(text.getBytes(StandardCharsets.UTF_8));
    }

    /** Returns the proof that this end has the token. */
    byte[] proof(String end, byte[]... said) {
        try {
            Mac mac = Mac.getInstance(ALGORITHM);
            mac.init(key);
            mac.update(end.getBytes(StandardCharsets.US_ASCII));
            for (byte[] part : said) {
                mac.update(part);
            }
            return mac.doFinal();
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException("this JDK does not provide " + ALGORITHM, e);
        }
    }

    /** Checks a proof in constant time. */
    boolean isProvenBy(byte[] proof, String end, byte[]... said) {
        return MessageDigest.isEqual(proof(end, said), proof);
    }
}

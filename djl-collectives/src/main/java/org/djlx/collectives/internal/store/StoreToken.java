/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.store;

import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.Map;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * The secret that the ranks of a job share, so that nobody else uses their store. It is never sent:
 * each end proves to the other that it knows it, as {@link Hello} describes. Thread-safe.
 */
public final class StoreToken {

    /** The environment variable that holds it. */
    public static final String VARIABLE = "DJLX_STORE_TOKEN";

    private static final String ALGORITHM = "HmacSHA256";

    private final SecretKeySpec key;

    private StoreToken(byte[] secret) {
        key = new SecretKeySpec(secret, ALGORITHM);
    }

    /**
     * Returns the token of an environment.
     *
     * @param environment the environment
     * @return the token, or null if there is none
     * @throws IllegalArgumentException if the variable is set to nothing, which protects nothing
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

    /** Proves to whoever knows the token that this end knows it, too. */
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
            throw new IllegalStateException("Every Java has " + ALGORITHM, e);
        }
    }

    /** Checks a proof; how long this takes does not depend on the proof. */
    boolean isProvenBy(byte[] proof, String end, byte[]... said) {
        return MessageDigest.isEqual(proof(end, said), proof);
    }
}

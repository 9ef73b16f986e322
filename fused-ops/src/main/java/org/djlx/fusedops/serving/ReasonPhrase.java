// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.serving;

/**
 * Messages of DJL's {@link ai.djl.modality.Output}. DJL Serving writes them into the status line of
 * HTTP as the reason phrase: it answers 500 if one has a line break, and clients refuse long lines.
 */
public final class ReasonPhrase {

    private static final int MAX_LENGTH = 1000;

    private ReasonPhrase() {}

    /**
     * {@return a message on one line of at most 1000 characters} Of a longer message, the beginning
     * and the end remain.
     *
     * @param message any text, or null
     */
    public static String of(String message) {
        // Control characters, and Unicode's spaces and line separators, once each.
        String line = String.valueOf(message).replaceAll("[\\p{Cntrl}\\p{Z}\\u0085]+", " ").strip();
        if (line.length() <= MAX_LENGTH) {
            return line;
        }
        String gap = " ... ";
        int half = (MAX_LENGTH - gap.length()) / 2;
        return line.substring(0, half) + gap + line.substring(line.length() - half);
    }
}

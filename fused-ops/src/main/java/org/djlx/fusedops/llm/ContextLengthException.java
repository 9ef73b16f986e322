// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm;

/** A prompt and its new tokens are longer than {@link TextGenerator#maxLength}. */
public final class ContextLengthException extends IllegalArgumentException {

    private static final long serialVersionUID = 1;

    /**
     * Creates an exception.
     *
     * @param message says the lengths
     */
    public ContextLengthException(String message) {
        super(message);
    }
}

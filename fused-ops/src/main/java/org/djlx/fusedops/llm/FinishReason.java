/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm;

/** Why a {@link Generation} has ended. */
public enum FinishReason {
    /** As many tokens were generated as the request asked for. */
    LENGTH,
    /** A stop token was generated. */
    STOP,
    /** The text came to a stop string. */
    STOP_STRING,
    /** It was cancelled. */
    CANCELLED,
    /** It failed; {@link Generation#failure()} says why. */
    ERROR
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm;

/** Why a {@link Generation} has ended. */
public enum FinishReason {
    /** The maximum number of new tokens was generated. */
    LENGTH,
    /** A stop token was generated. */
    STOP,
    /** The text contains a stop string. */
    STOP_STRING,
    /** The generation was cancelled. */
    CANCELLED,
    /** The generation failed; {@link Generation#failure()} has the cause. */
    ERROR
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.sampling;

/**
 * A token that could have been generated, and its log probability before penalties, biases and
 * temperature.
 */
public record TokenLogProbability(int token, float logProbability) {}

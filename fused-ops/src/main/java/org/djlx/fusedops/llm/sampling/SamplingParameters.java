/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.sampling;

/**
 * How ranks choose a token by themselves, which all of them do alike.
 *
 * @param temperature what scores are divided by; 0 if the most probable token is taken
 * @param topK how many tokens of the highest scores are drawn from; 0 for all
 * @param topP the share of what is probable that the fewest tokens have which are drawn from
 * @param random decides which
 */
public record SamplingParameters(double temperature, int topK, double topP, long random) {

    /** Takes the most probable token. */
    public static final SamplingParameters BEST = new SamplingParameters(0, 0, 1, 0);

    public boolean isBest() {
        return temperature == 0;
    }
}

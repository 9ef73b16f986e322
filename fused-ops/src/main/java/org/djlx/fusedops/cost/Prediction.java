/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.cost;

/**
 * What a path is predicted to take, in microseconds.
 *
 * @param path the path
 * @param device what the GPU takes; that is what a replay of a graph takes
 * @param host what the calling thread takes for a call
 */
public record Prediction(Path path, double device, double host) {

    /**
     * Returns how long a call takes, one of many that follow each other.
     *
     * @param recorded whether calls are recorded into a graph, which needs the host only once
     * @return the longer one of the GPU's time and the host's, in microseconds
     */
    public double micros(boolean recorded) {
        return recorded ? device : Math.max(device, host);
    }
}

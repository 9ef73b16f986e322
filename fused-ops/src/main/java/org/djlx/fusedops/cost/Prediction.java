// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.cost;

/**
 * The predicted time of a path, in microseconds.
 *
 * @param device the GPU's time, which is also the time of a graph replay
 * @param host the calling thread's time per call
 */
public record Prediction(Path path, double device, double host) {

    /**
     * {@return the time of one call in a series of calls, in microseconds: the GPU's time or the
     * host's, whichever is longer}
     *
     * @param recorded whether the calls are recorded into a graph, whose replays need no host time
     */
    public double micros(boolean recorded) {
        return recorded ? device : Math.max(device, host);
    }
}

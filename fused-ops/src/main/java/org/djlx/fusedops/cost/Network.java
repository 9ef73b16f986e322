// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.cost;

/**
 * The network between hosts. Its figures come from a data sheet, not from measurements, so
 * predictions from them are extrapolations.
 *
 * @param rate the rate into and out of each GPU, in GB/s
 * @param latency the latency of a message between hosts, in microseconds
 */
public record Network(double rate, double latency) {

    /** One adapter of 400 Gb/s for each GPU. The latency is a round figure. */
    public static final Network NDR = new Network(50, 10);

    public Network {
        if (!(rate > 0) || !(latency >= 0)) {
            throw new IllegalArgumentException(
                    "the rate must be greater than 0 and the latency at least 0, not %s GB/s and"
                            + " %s us".formatted(rate, latency));
        }
    }

    /**
     * Returns the time to sum gradients over replicas on other hosts. Each GPU sums with the GPUs
     * that hold the same part, over its own adapter. The model takes the latency of a tree and the
     * bytes of a ring.
     *
     * @param byteSize the size of the gradients of a GPU, in bytes
     * @param hosts the number of hosts, with one replica each
     * @return the time in microseconds; 0 for a single host
     */
    public double allReduce(double byteSize, int hosts) {
        if (hosts <= 1) {
            return 0;
        }
        double steps = 2 * Math.ceil(Math.log(hosts) / Math.log(2));
        return steps * latency + 2.0 * (hosts - 1) / hosts * byteSize / rate / 1e3;
    }
}

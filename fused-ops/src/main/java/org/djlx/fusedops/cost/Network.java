/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.cost;

/**
 * What joins hosts. Nothing of it has been measured: the figures are those of a data sheet, and
 * what follows from them is an extrapolation.
 *
 * @param rate into and out of each GPU, in GB/s
 * @param latency of a message from host to host, in microseconds
 */
public record Network(double rate, double latency) {

    /** An adapter of 400 Gb/s for each GPU; the latency is a round figure. */
    public static final Network NDR = new Network(50, 10);

    /**
     * Creates a network.
     *
     * @param rate into and out of each GPU, in GB/s
     * @param latency of a message, in microseconds
     * @throws IllegalArgumentException unless the rate is positive and the latency is not negative
     */
    public Network {
        if (!(rate > 0) || !(latency >= 0)) {
            throw new IllegalArgumentException(
                    "a network has a rate and a latency, not %s GB/s and %s us"
                            .formatted(rate, latency));
        }
    }

    /**
     * Returns what it takes to sum gradients over replicas on other hosts: each GPU with those that
     * hold the same part, over its own adapter, along a tree for what a message takes and at the
     * rate of a ring for the bytes.
     *
     * @param byteSize the gradients of a GPU, in bytes
     * @param hosts the number of hosts, each with a replica
     * @return microseconds; 0 for a single host
     */
    public double allReduce(double byteSize, int hosts) {
        if (hosts <= 1) {
            return 0;
        }
        double steps = 2 * Math.ceil(Math.log(hosts) / Math.log(2));
        return steps * latency + 2.0 * (hosts - 1) / hosts * byteSize / rate / 1e3;
    }
}

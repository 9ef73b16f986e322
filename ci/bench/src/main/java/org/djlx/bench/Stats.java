/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import java.util.Arrays;

/** Statistics of measured times. */
final class Stats {

    private Stats() {}

    /** Returns the median, the larger of two middle values; the values stay as they are. */
    static double median(double... values) {
        return quantile(values, 0.5);
    }

    /** Returns the value below which a part of the values is; 0 of no values. */
    static double quantile(double[] values, double part) {
        double[] sorted = values.clone();
        Arrays.sort(sorted);
        return sorted.length == 0 ? 0 : sorted[(int) (sorted.length * part)];
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import java.util.Arrays;

final class Stats {

    private Stats() {}

    /** Returns the median, the larger of two middle values. Does not change the values. */
    static double median(double... values) {
        return quantile(values, 0.5);
    }

    /** Returns the quantile of a fraction from 0 to 1; 0 without values. */
    static double quantile(double[] values, double part) {
        double[] sorted = values.clone();
        Arrays.sort(sorted);
        return sorted.length == 0 ? 0 : sorted[(int) (sorted.length * part)];
    }
}

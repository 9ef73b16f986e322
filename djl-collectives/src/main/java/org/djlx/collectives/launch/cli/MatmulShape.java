// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch.cli;

import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

/** The sizes of a fused operator over all ranks: A (M, K) times B (K, N). */
public record MatmulShape(long m, long n, long k) {

    /** Parses M,N,K, the value of {@code --shape}. */
    public static MatmulShape parse(String text) {
        String size = "[1-9]\\d{0,8}";
        refuseIf(
                !text.matches(size + "," + size + "," + size),
                "--shape must be M,N,K, three positive numbers such as 512,8192,8192, not %s"
                        .formatted(text));
        String[] sizes = text.split(",");
        return new MatmulShape(
                Long.parseLong(sizes[0]), Long.parseLong(sizes[1]), Long.parseLong(sizes[2]));
    }

    @Override
    public String toString() {
        return m + ", " + n + ", " + k;
    }
}

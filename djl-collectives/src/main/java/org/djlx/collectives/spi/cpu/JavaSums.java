// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import org.djlx.nativeops.host.HostCopier;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Sums float32 contributions in Java, in rank order. Results equal libtorch's bit for bit. For
 * contributions so small that a call to libtorch costs more than the additions. Works in blocks
 * that fit the L1 cache. One instance serves one rank.
 */
final class JavaSums implements Reducer.Sums {

    // Above this size libtorch is faster, because it does not copy to arrays.
    private static final long MAX_BYTES = 64 << 10;
    private static final int BLOCK = 4 << 10; // elements

    private final HostCopier copier = new HostCopier();
    private final float[] sum = new float[BLOCK];
    private final float[] part = new float[BLOCK];

    @Override
    public boolean canAdd(long count, ScalarType type) {
        return type == ScalarType.FLOAT32 && count * Float.BYTES <= MAX_BYTES;
    }

    @Override
    public void add(long result, long[] parts, long count, ScalarType type) {
        for (long first = 0; first < count; first += BLOCK) {
            addBlock(result, parts, first * Float.BYTES, (int) Math.min(BLOCK, count - first));
        }
    }

    private void addBlock(long result, long[] parts, long offset, int count) {
        copier.read(parts[0] + offset, sum, count);
        for (int rank = 1; rank < parts.length; rank++) {
            copier.read(parts[rank] + offset, part, count);
            accumulate(sum, part, count);
        }
        copier.write(result + offset, sum, count);
    }

    /** Adds in a loop that the JIT compiler vectorises. */
    private static void accumulate(float[] sum, float[] part, int count) {
        for (int i = 0; i < count; i++) {
            sum[i] += part[i];
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cpu;

import org.djlx.nativeops.host.HostCopier;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Sums contributions in Java, in rank order and in the precision of the elements. Results equal
 * libtorch's bit for bit. For contributions so small that a call to libtorch costs more than the
 * additions. Works in blocks that fit the L1 cache. One instance serves one rank.
 */
final class JavaSums implements Reducer.Sums {

    // Above this size libtorch is faster, because it does not copy to arrays.
    private static final long MAX_BYTES = 64 << 10;
    private static final int BLOCK = 16 << 10;

    private final HostCopier copier = new HostCopier();
    private final float[] floatSum = new float[BLOCK / Float.BYTES];
    private final float[] floatPart = new float[BLOCK / Float.BYTES];
    private final double[] doubleSum = new double[BLOCK / Double.BYTES];
    private final double[] doublePart = new double[BLOCK / Double.BYTES];

    @Override
    public boolean canAdd(long count, ScalarType type) {
        return (type == ScalarType.FLOAT32 || type == ScalarType.FLOAT64)
                && count * type.itemSize() <= MAX_BYTES;
    }

    @Override
    public void add(long result, long[] parts, long count, ScalarType type) {
        long byteSize = count * type.itemSize();
        for (long offset = 0; offset < byteSize; offset += BLOCK) {
            int size = (int) Math.min(BLOCK, byteSize - offset);
            if (type == ScalarType.FLOAT32) {
                addFloats(result, parts, offset, size / Float.BYTES);
            } else {
                addDoubles(result, parts, offset, size / Double.BYTES);
            }
        }
    }

    private void addFloats(long result, long[] parts, long offset, int count) {
        copier.read(parts[0] + offset, floatSum, count);
        for (int rank = 1; rank < parts.length; rank++) {
            copier.read(parts[rank] + offset, floatPart, count);
            accumulate(floatSum, floatPart, count);
        }
        copier.write(result + offset, floatSum, count);
    }

    private void addDoubles(long result, long[] parts, long offset, int count) {
        copier.read(parts[0] + offset, doubleSum, count);
        for (int rank = 1; rank < parts.length; rank++) {
            copier.read(parts[rank] + offset, doublePart, count);
            accumulate(doubleSum, doublePart, count);
        }
        copier.write(result + offset, doubleSum, count);
    }

    // The JIT compiler vectorises these loops.

    private static void accumulate(float[] sum, float[] part, int count) {
        for (int i = 0; i < count; i++) {
            sum[i] += part[i];
        }
    }

    private static void accumulate(double[] sum, double[] part, int count) {
        for (int i = 0; i < count; i++) {
            sum[i] += part[i];
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import ai.djl.Device;
import java.util.Arrays;
import org.djlx.collectives.spi.OpType;
import org.djlx.nativeops.cuda.TensorMap;
import org.djlx.nativeops.torch.TensorInfo;

/** Key of a plan: an operator and its arguments, without array contents. */
public final class PlanKey {

    private static final int HEADER = 4;

    private final OpType operator;
    private final long[] words;

    /**
     * Encodes a call. A plan depends on the paths that are forced, too.
     *
     * @param dimension the gather or scatter dimension, as the caller passed it
     * @param option a number for everything else that a plan depends on
     */
    public PlanKey(OpType operator, int dimension, int option, Operands operands) {
        this.operator = operator;
        TensorInfo[] infos = operands.infos();
        int size = HEADER;
        for (TensorInfo info : infos) {
            size += 4 + 2 * info.sizes().length;
        }
        words = new long[size];
        words[0] = dimension;
        words[1] = option;
        words[2] = Fallbacks.forced(operator);
        words[3] = infos.length;
        int next = HEADER;
        for (int i = 0; i < infos.length; i++) {
            Device device = operands.array(i).getDevice();
            long[] sizes = infos[i].sizes();
            words[next] = device.isGpu() ? device.getDeviceId() : -1;
            words[next + 1] = infos[i].type().ordinal();
            words[next + 2] = infos[i].address() % TensorMap.ALIGNMENT;
            words[next + 3] = sizes.length;
            System.arraycopy(sizes, 0, words, next + 4, sizes.length);
            System.arraycopy(infos[i].strides(), 0, words, next + 4 + sizes.length, sizes.length);
            next += 4 + 2 * sizes.length;
        }
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof PlanKey key
                && operator.equals(key.operator)
                && Arrays.equals(words, key.words);
    }

    @Override
    public int hashCode() {
        return 31 * operator.hashCode() + Arrays.hashCode(words);
    }
}

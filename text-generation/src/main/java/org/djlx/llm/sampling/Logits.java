// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.sampling;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.jni.JniUtils;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.CpuKernels;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * The logits of the next tokens of several sequences. They stay on the device, which may still
 * compute them; methods that copy from the device wait for it.
 *
 * <p>All methods can be called after the next forward pass has started.
 */
public interface Logits {

    /**
     * The token that the device selects for a sequence: the sampled one, with the most probable
     * ones if the parameters ask for them, or the argmax.
     *
     * @param token the token; for the argmax, the first token with the highest logit
     * @param logSumExp the logarithm of the sum of the exponentials of all logits; not finite if a
     *     logit is NaN or the highest is infinite
     */
    record DeviceToken(
            int token,
            float logit,
            boolean sampled,
            double logSumExp,
            List<TokenLogProbability> top) {}

    /** Waits until the logits are computed. All ranks call this. Throws if a rank has failed. */
    default void await() {}

    int count();

    /** {@return the token that the device selects for each sequence} Waits for the device. */
    List<DeviceToken> deviceTokens();

    /**
     * Copies the logits of all tokens of a sequence to the host. Call it only for a sequence whose
     * token the device has not {@linkplain DeviceToken#sampled sampled}.
     */
    float[] toArray(int sequence);

    /**
     * Wraps an array of shape (sequences, vocabulary), in float32; intermediate results go to its
     * manager.
     */
    static Logits of(NDArray logits) {
        return new Logits() {
            @Override
            public List<DeviceToken> deviceTokens() {
                NDArray[] tokensMaximaSums = argMax(logits);
                long[] tokens = tokensMaximaSums[0].toLongArray();
                float[] maxima = tokensMaximaSums[1].toFloatArray();
                float[] sums = tokensMaximaSums[2].toFloatArray();
                List<DeviceToken> result = new ArrayList<>();
                for (int i = 0; i < tokens.length; i++) {
                    double logSumExp = maxima[i] + Math.log(sums[i]);
                    int token = (int) tokens[i];
                    result.add(new DeviceToken(token, maxima[i], false, logSumExp, List.of()));
                }
                return result;
            }

            @Override
            public float[] toArray(int sequence) {
                return logits.get(sequence).toFloatArray();
            }

            @Override
            public int count() {
                return Math.toIntExact(logits.getShape().get(0));
            }
        };
    }

    private static boolean fitsKernel(NDArray rows) {
        return !rows.getDevice().isGpu()
                && NativeLibrary.CPU_KERNELS.isAvailable()
                && Torch.scalarType(rows) == ScalarType.FLOAT32
                && Torch.isContiguous(rows);
    }

    /**
     * Returns three arrays with an element for each row: the first token with the maximum, the
     * maximum, and the sum of the exponentials of the row less the maximum.
     */
    private static NDArray[] argMax(NDArray rows) {
        if (!fitsKernel(rows)) {
            NDArray maxima = rows.max(new int[] {1}, true);
            NDArray sums = rows.sub(maxima).exp().sum(new int[] {1});
            return new NDArray[] {rows.argMax(1), maxima, sums};
        }
        Shape shape = rows.getShape();
        Shape count = new Shape(shape.get(0));
        NDArray tokens = Torch.empty(rows.getManager(), count, ScalarType.INT64);
        NDArray maxima = Torch.empty(rows.getManager(), count, ScalarType.FLOAT32);
        NDArray sums = Torch.empty(rows.getManager(), count, ScalarType.FLOAT32);
        CpuKernels.djlx_cpu_argmax(
                JniUtils.getNumThreads(),
                shape.get(0),
                shape.get(1),
                Torch.dataPointer(rows),
                Torch.dataPointer(tokens),
                Torch.dataPointer(maxima),
                Torch.dataPointer(sums));
        return new NDArray[] {tokens, maxima, sums};
    }

    /** Concatenates logits, in order. Computes and copies nothing. */
    static Logits concat(List<Logits> parts) {
        if (parts.size() == 1) {
            return parts.get(0);
        }
        int count = parts.stream().mapToInt(Logits::count).sum();
        return concat(parts, IntStream.range(0, count).boxed().toList());
    }

    /**
     * As {@link #concat(List)}; then reorders the sequences by their indices in the concatenation.
     */
    static Logits concat(List<Logits> parts, List<Integer> order) {
        return new Logits() {
            @Override
            public void await() {
                parts.forEach(Logits::await);
            }

            @Override
            public List<DeviceToken> deviceTokens() {
                List<DeviceToken> all =
                        parts.stream().flatMap(part -> part.deviceTokens().stream()).toList();
                return order.stream().map(all::get).toList();
            }

            @Override
            public float[] toArray(int sequence) {
                int index = order.get(sequence);
                for (Logits part : parts) {
                    if (index < part.count()) {
                        return part.toArray(index);
                    }
                    index -= part.count();
                }
                throw new IndexOutOfBoundsException(order.get(sequence));
            }

            @Override
            public int count() {
                return order.size();
            }
        };
    }
}

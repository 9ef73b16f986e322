// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDArray;
import java.util.List;
import org.djlx.collectives.Work;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** Hooks that send each gradient as it is, or rounded. */
public enum GradientCompression implements GradientHook {
    /** All-reduces gradients in their own type. */
    NONE,
    /**
     * All-reduces float32 and float64 gradients as bfloat16, as PyTorch's {@code
     * bf16_compress_hook}, except that a mean is divided after the sum. Each rank's gradient is
     * rounded to 8 bits of precision, and so is the result; NCCL may round partial sums too.
     */
    BFLOAT16 {
        @Override
        List<NDArray> sent(List<NDArray> gradients) {
            ScalarType type = Torch.scalarType(gradients.get(0));
            return type.isFloatingPoint() && type.itemSize() >= 4
                    ? gradients.stream().map(each -> Torch.cast(each, ScalarType.BFLOAT16)).toList()
                    : gradients;
        }

        @Override
        public void finish(GradientBucket bucket, Work sent) {
            for (int i = 0; i < sent.result().size(); i++) {
                NDArray gradient = bucket.gradients().get(i);
                NDArray rounded = sent.result().get(i);
                if (rounded != gradient) {
                    Torch.copy(gradient, rounded);
                    rounded.close();
                }
            }
        }
    };

    List<NDArray> sent(List<NDArray> gradients) {
        return gradients;
    }

    @Override
    public Work reduce(GradientBucket bucket) {
        return bucket.group().allReduceCoalesced(sent(bucket.gradients()), bucket.op());
    }
}

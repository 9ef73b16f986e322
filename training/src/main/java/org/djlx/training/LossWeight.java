// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import org.djlx.nativeops.cuda.CurrentStreams;

/**
 * How many items the loss of a batch counts: its rows, or those of its tokens that have a label.
 *
 * @see DataParallelConfig#optLossWeight
 */
@FunctionalInterface
public interface LossWeight {

    /** The rows of the batch: the first dimension of the first array of data. */
    LossWeight ROWS = (data, labels) -> data.head().getShape().get(0);

    /**
     * {@return the number of elements of the first array of labels that are not {@code ignored}}
     */
    static LossWeight tokens(long ignored) {
        return (data, labels) -> {
            if (labels == null) {
                throw new IllegalArgumentException(
                        "forward: LossWeight.tokens counts labels, but there are none; call"
                                + " trainer.forward(data, labels)");
            }
            try (NDArray counted = labels.head().neq(ignored);
                    NDArray sum = counted.sum();
                    NDArray count = sum.toType(DataType.INT64, true)) {
                CurrentStreams.await(count.getDevice());
                return count.getLong();
            }
        };
    }

    /**
     * {@return the weight of a batch, 0 or more}
     *
     * @param labels as passed to {@link DataParallelTrainer#forward(NDList, NDList)}; null without
     */
    double of(NDList data, NDList labels);
}

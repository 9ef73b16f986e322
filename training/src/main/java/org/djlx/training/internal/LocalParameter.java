// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;

/**
 * A parameter and a rank's whole array of it.
 *
 * @param name its name in the block, the same in all JVMs
 * @param id the parameter's id in optimizers
 * @param original the block's own array when training began; {@code array} itself if they share
 *     memory
 */
public record LocalParameter(
        String name, String id, Parameter parameter, NDArray array, NDArray original) {

    public boolean isTrained() {
        return parameter.requiresGradient();
    }

    public boolean isStatistic() {
        return isStatistic(parameter);
    }

    public static boolean isStatistic(Parameter parameter) {
        Parameter.Type type = parameter.getType();
        return type == Parameter.Type.RUNNING_MEAN || type == Parameter.Type.RUNNING_VAR;
    }

    boolean isBuffer() {
        return isBuffer(parameter);
    }

    /** Returns whether passes may write to a parameter, as to PyTorch's buffers. */
    public static boolean isBuffer(Parameter parameter) {
        boolean frozen = !parameter.requiresGradient();
        return isStatistic(parameter) || frozen && parameter.getType() == Parameter.Type.OTHER;
    }
}

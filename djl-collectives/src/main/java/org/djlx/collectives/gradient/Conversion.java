// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;

/**
 * Adds the gradient of a converted array to the gradients of its originals. If an original already
 * has a gradient, this takes one pass over memory; autograd needs two.
 */
final class Conversion implements GradientRule {

    /**
     * Checks that an array has the shape of the originals, concatenated along the last dimension.
     */
    static void check(String operator, List<NDArray> originals, NDArray converted) {
        if (originals == null || originals.isEmpty() || converted == null) {
            throw new IllegalArgumentException(
                    operator + ": there are no originals, or the converted array is null");
        }
        long[] joined = Torch.sizes(originals.get(0));
        for (NDArray original : originals.subList(1, originals.size())) {
            long[] sizes = Torch.sizes(original);
            if (sizes.length != 2 || joined.length != 2 || sizes[0] != joined[0]) {
                throw new IllegalArgumentException(
                        String.format(
                                "%s: originals of shapes %s and %s cannot be concatenated",
                                operator, originals.get(0).getShape(), original.getShape()));
            }
            joined[1] += sizes[1];
        }
        if (!Arrays.equals(joined, Torch.sizes(converted))) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: the concatenated originals have shape %s, but the converted"
                                    + " array has shape %s",
                            operator, Arrays.toString(joined), converted.getShape()));
        }
    }

    @Override
    public List<NDArray> differentiate(
            List<NDArray> originals, List<NDArray> kept, List<NDArray> gradients) {
        NDArray whole = gradients.get(0);
        List<NDArray> results = new ArrayList<>();
        long from = 0;
        for (NDArray original : originals) {
            NDArray gradient = whole;
            if (originals.size() > 1) {
                long columns = original.getShape().get(1);
                gradient = Torch.narrow(whole, 1, from, columns);
                from += columns;
            }
            results.add(Torch.requiresGradient(original) ? converted(gradient, original) : null);
        }
        return results;
    }

    /** Converts a gradient; returns null if it was added to an existing one. */
    private static NDArray converted(NDArray gradient, NDArray original) {
        if (original.hasGradient()) {
            try (NDArray own = JniUtils.getGradient((PtNDArray) original)) {
                if (own != null) {
                    TorchInPlace.add(own, gradient);
                    return null;
                }
            }
            try (NDArray own = Torch.cast(gradient, Torch.scalarType(original))) {
                Torch.setGradient(original, own); // Autograd would make a copy.
                return null;
            }
        }
        return Torch.cast(gradient, Torch.scalarType(original));
    }
}

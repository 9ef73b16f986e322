// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.precision;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.LayoutType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.convolutional.Conv1d;
import ai.djl.nn.convolutional.Conv2d;
import ai.djl.nn.convolutional.Conv3d;
import ai.djl.nn.convolutional.Convolution;
import ai.djl.nn.core.Linear;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;
import java.util.ArrayList;
import java.util.List;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.internal.BlockReplacement;
import org.djlx.training.internal.BlockReplacement.Substitute;
import org.djlx.training.internal.RankStore;

/**
 * Layers that a trainer with a {@link MixedPrecisionPolicy} computes in its type. A layer casts its
 * input and its weights, computes, and casts the result back, so other blocks see float32 only:
 * DJL's operators cannot name bfloat16, and some abort the JVM for it. Autograd records the casts,
 * so gradients of the float32 weights are float32. With other parameter stores the layers compute
 * what DJL's compute.
 */
public final class Autocast {

    private Autocast() {}

    /** Replaces the {@link Linear} and {@link Convolution} layers of DJL in a block. */
    public static Block convert(Block block, MixedPrecisionPolicy policy) {
        Block converted =
                BlockReplacement.apply(
                        block,
                        Autocast::replace,
                        "newTrainer: the layers in %s cannot be computed in " + policy);
        if (!isIn(converted)) {
            throw new IllegalArgumentException(
                    String.format(
                            "newTrainer: mixed precision computes DJL's Linear, Conv1d, Conv2d and"
                                    + " Conv3d layers in %s, but %s has none; use"
                                    + " MixedPrecisionPolicy.NONE",
                            policy, block.getClass().getName()));
        }
        return converted;
    }

    private static Block replace(Block layer) {
        Class<?> type = layer.getClass();
        if (type == Linear.class) {
            return new Product(layer);
        }
        boolean convolution = type == Conv1d.class || type == Conv2d.class || type == Conv3d.class;
        return convolution ? new Convolved(layer) : layer;
    }

    private static boolean isIn(Block block) {
        return block instanceof Product
                || block instanceof Convolved
                || block.getChildren().values().stream().anyMatch(Autocast::isIn);
    }

    /** Computes a layer with a store and inputs. */
    private interface Layer {
        NDList forward(ParameterStore store, NDList inputs);
    }

    private static NDList compute(Layer layer, ParameterStore store, NDList inputs) {
        ScalarType type = store instanceof RankStore own ? own.computeType() : null;
        NDArray input = inputs.singletonOrThrow();
        ScalarType outer = Torch.scalarType(input);
        if (type == null || !outer.isFloatingPoint()) {
            return layer.forward(store, inputs);
        }
        List<NDArray> casts = new ArrayList<>(); // Autograd keeps what it needs of them.
        try {
            casts.add(Torch.cast(input, type));
            ParameterStore lower =
                    new ParameterStore(input.getManager(), false) {
                        @Override
                        public NDArray getValue(
                                Parameter parameter, Device device, boolean training) {
                            NDArray array = store.getValue(parameter, device, training);
                            if (array != null) {
                                array = Torch.cast(array, type);
                                casts.add(array);
                            }
                            return array;
                        }
                    };
            try (NDArray result = layer.forward(lower, new NDList(casts.get(0))).head()) {
                NDArray output = Torch.cast(result, outer);
                output.attach(input.getManager());
                return new NDList(output);
            }
        } finally {
            casts.forEach(NDArray::close);
        }
    }

    /** A {@link Linear} layer. */
    private static final class Product extends Linear implements Substitute, RankStore.Casting {

        private final Block original;

        Product(Block original) {
            super(Linear.builder().setUnits(1));
            BlockReplacement.copyFields(original, this);
            this.original = original;
        }

        @Override
        public Block original() {
            return original;
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            return compute(
                    (own, list) -> super.forwardInternal(own, list, training, params),
                    store,
                    inputs);
        }
    }

    /** A convolution of 1 to 3 dimensions. Only Conv2d has a constructor for subclasses. */
    private static final class Convolved extends Conv2d implements Substitute, RankStore.Casting {

        private static final List<LayoutType> LAYOUT =
                List.of(LayoutType.DEPTH, LayoutType.HEIGHT, LayoutType.WIDTH);

        private final Block original;

        Convolved(Block original) {
            super(Conv2d.builder().setKernelShape(new Shape(1, 1)).setFilters(1));
            BlockReplacement.copyFields(original, this);
            this.original = original;
        }

        @Override
        public Block original() {
            return original;
        }

        @Override
        protected LayoutType[] getExpectedLayout() {
            List<LayoutType> layout =
                    new ArrayList<>(List.of(LayoutType.BATCH, LayoutType.CHANNEL));
            layout.addAll(LAYOUT.subList(3 - kernelShape.dimension(), 3));
            return layout.toArray(LayoutType[]::new);
        }

        @Override
        protected String getStringLayout() {
            return LayoutType.toString(getExpectedLayout());
        }

        @Override
        protected int numDimensions() {
            return 2 + kernelShape.dimension();
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            return compute(
                    (own, list) -> super.forwardInternal(own, list, training, params),
                    store,
                    inputs);
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.BlockList;
import ai.djl.nn.Parameter;
import ai.djl.nn.core.Linear;
import ai.djl.nn.transformer.ScaledDotProductAttentionBlock;
import ai.djl.training.ParameterStore;
import ai.djl.util.Pair;
import ai.djl.util.PairList;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.djlx.collectives.ProcessGroup;
import org.djlx.training.internal.PrivateFields;

/**
 * Divides linear layers of an existing block among ranks by a plan, as PyTorch's {@code
 * parallelize_module}.
 *
 * <pre>{@code
 * TensorParallel.apply(
 *         block,
 *         Map.of(
 *                 "*.query", Style.COLUMN,
 *                 "*.key", Style.COLUMN,
 *                 "*.value", Style.COLUMN,
 *                 "*.output", Style.ROW),
 *         group);
 * }</pre>
 *
 * <ul>
 *   <li>Each rank applies the plan to a block of its own; then all ranks make the same calls in the
 *       same order, as with {@link ShardedBlock}.
 *   <li>A name is the path of child blocks from the root, with dots, such as {@code
 *       layer.attention.query}. DJL puts two digits in front of each child's name: a path has them
 *       everywhere or nowhere. {@code *} stands for any characters.
 *   <li>{@link Style#COLUMN} divides a layer's outputs. {@link Style#ROW} divides the inputs of a
 *       later layer. Between the two, each rank has a part of the values: use only operators on
 *       single values or on whole heads.
 *   <li>A block that reshapes to heads must take their number from the shape of its input.
 *   <li>Load parameters into the block before. Parameters that are not initialised are initialised
 *       on rank 0 and divided. Frozen parameters stay frozen.
 *   <li>A layer must be a child of a {@code SequentialBlock}, or a child and a field of its parent.
 *       A layer that its parent holds in a collection throws when it is used.
 * </ul>
 */
public final class TensorParallel {

    /** The dimension along which a linear layer is divided. */
    public enum Style {
        /** By outputs, as {@link ColumnParallelLinear}. */
        COLUMN,
        /** By inputs, as {@link RowParallelLinear}. */
        ROW
    }

    private record Match(AbstractBlock parent, Linear layer, Style style) {}

    /** A divided layer. A subclass of DJL's layer, so that fields of that type can hold it. */
    private static final class DividedLinear extends Linear {

        private final ShardedBlock divided;

        DividedLinear(ShardedBlock divided, long units) {
            super(Linear.builder().setUnits(units));
            parameters.clear();
            this.divided = addChildBlock("divided", divided);
        }

        @Override
        public void prepare(Shape[] inputShapes) {
            // The child block has the parameters.
        }

        @Override
        protected void initializeChildBlocks(
                NDManager manager, DataType dataType, Shape... inputShapes) {
            divided.initialize(manager, dataType, inputShapes);
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            return divided.forward(store, inputs, training, params);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return divided.getOutputShapes(inputShapes);
        }
    }

    private TensorParallel() {}

    /**
     * Divides the layers of a plan, by their names, each of which matches one layer or more. If a
     * layer cannot be divided, this throws and replaces none. The caller closes the group.
     *
     * @return the block
     * @throws IllegalArgumentException if a name matches no linear layer, a layer has two styles,
     *     or a layer cannot be divided among the ranks
     */
    public static <B extends Block> B apply(B block, Map<String, Style> plan, ProcessGroup group) {
        if (block == null || plan == null || group == null) {
            throw new IllegalArgumentException(
                    "TensorParallel: the block, the plan or the group is null");
        }
        plan.forEach(
                (name, style) -> {
                    if (name == null || style == null) {
                        throw new IllegalArgumentException(
                                "TensorParallel: the plan has the style %s for the name %s"
                                        .formatted(style, name));
                    }
                });
        Set<String> unused = new TreeSet<>(plan.keySet());
        List<String> seen = new ArrayList<>();
        List<Match> matches = new ArrayList<>();
        find(block, List.of(), plan, unused, seen, matches);
        if (!unused.isEmpty()) {
            throw new IllegalArgumentException(
                    "TensorParallel: no linear layer has a name of %s; there are %s"
                            .formatted(unused, seen));
        }
        List<DividedLinear> divided = new ArrayList<>();
        for (Match match : matches) {
            divided.add(divide(match, group));
        }
        for (int i = 0; i < matches.size(); i++) {
            replace(matches.get(i), divided.get(i));
        }
        return block;
    }

    private static boolean matches(String name, String path) {
        return path.matches(Pattern.quote(name).replace("*", "\\E.*\\Q"));
    }

    private static void find(
            Block parent,
            List<String> path,
            Map<String, Style> plan,
            Set<String> unused,
            List<String> seen,
            List<Match> matches) {
        for (Pair<String, Block> child : parent.getChildren()) {
            List<String> own = new ArrayList<>(path);
            own.add(child.getKey());
            String digits = String.join(".", own);
            String plain =
                    own.stream()
                            .map(each -> each.replaceFirst("^\\d\\d", ""))
                            .collect(Collectors.joining("."));
            if (!(child.getValue() instanceof Linear layer)) {
                find(child.getValue(), own, plan, unused, seen, matches);
                continue;
            }
            seen.add(plain);
            Set<Style> styles = EnumSet.noneOf(Style.class);
            plan.forEach(
                    (name, style) -> {
                        if (matches(name, plain) || matches(name, digits)) {
                            styles.add(style);
                            unused.remove(name);
                        }
                    });
            if (styles.isEmpty()) {
                continue;
            }
            String problem = null;
            if (styles.size() > 1) {
                problem = "a layer is divided by one style";
            } else if (layer instanceof DividedLinear) {
                problem = "it is divided already";
            } else if (matches.stream().anyMatch(match -> match.layer == layer)) {
                problem = "it is the child of two blocks";
            } else if (parent instanceof ScaledDotProductAttentionBlock) {
                problem = "the number of heads of DJL's attention is fixed";
            } else if (!(parent instanceof AbstractBlock)) {
                problem = "its parent is no AbstractBlock";
            }
            if (problem != null) {
                throw new IllegalArgumentException(
                        "TensorParallel: %s of a %s cannot be divided by %s: %s"
                                .formatted(
                                        plain, parent.getClass().getSimpleName(), styles, problem));
            }
            matches.add(new Match((AbstractBlock) parent, layer, styles.iterator().next()));
        }
    }

    private static DividedLinear divide(Match match, ProcessGroup group) {
        Linear layer = match.layer;
        boolean bias = layer.getDirectParameters().contains("bias");
        long units = layer.getOutputShapes(new Shape[] {new Shape(1, 1)})[0].get(1);
        ShardedBlock divided =
                match.style == Style.COLUMN
                        ? ColumnParallelLinear.builder()
                                .setGroup(group)
                                .setUnits(units)
                                .optBias(bias)
                                .build()
                        : RowParallelLinear.builder()
                                .setGroup(group)
                                .setUnits(units)
                                .optBias(bias)
                                .build();
        for (Pair<String, Parameter> each : layer.getDirectParameters()) {
            Parameter parameter = each.getValue();
            Parameter part = divided.getDirectParameters().get(each.getKey());
            if (parameter.isInitialized()) {
                NDArray full = parameter.getArray();
                divided.take(each.getKey(), full, full.getManager());
            } else {
                part.setInitializer(parameter.getInitializer());
            }
            if (!parameter.requiresGradient()) {
                part.freeze(true);
            }
        }
        return new DividedLinear(divided, units);
    }

    /** Replaces a layer in its parent's children and fields. The old layer throws when used. */
    private static void replace(Match match, DividedLinear divided) {
        try {
            Field field = AbstractBlock.class.getDeclaredField("children");
            field.setAccessible(true);
            BlockList children = (BlockList) field.get(match.parent);
            int index = children.values().indexOf(match.layer);
            String name = children.keyAt(index);
            children.remove(name);
            children.add(index, name, divided);
            for (Field each : PrivateFields.of(match.parent)) {
                if (each.getType().isInstance(divided) && each.get(match.parent) == match.layer) {
                    each.set(match.parent, divided);
                }
            }
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(
                    "TensorParallel: cannot replace a layer of " + match.parent.getClass(), e);
        }
        for (Parameter parameter : match.layer.getDirectParameters().values()) {
            if (parameter.isInitialized()) {
                parameter.close();
            }
            parameter.setInitializer(
                    (manager, shape, type) -> {
                        throw new IllegalStateException(
                                "TensorParallel has divided this layer, but its block still uses"
                                        + " it; hold layers in fields or a SequentialBlock");
                    });
        }
    }
}

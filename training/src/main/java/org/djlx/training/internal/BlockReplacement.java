// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.BlockList;
import java.lang.reflect.Field;
import java.lang.reflect.InaccessibleObjectException;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;

/** Replaces layers of a block and its descendants, in fields and child lists. */
public final class BlockReplacement {

    /** Returns a layer's replacement, or the layer itself. */
    public interface Rule {
        Block replace(Block layer) throws ReflectiveOperationException;
    }

    private final Rule rule;
    private final String problem;
    private final Map<Block, Block> done = new IdentityHashMap<>();

    private BlockReplacement(Rule rule, String problem) {
        this.rule = rule;
        this.problem = problem;
    }

    /**
     * Applies a rule to a block and its descendants. {@code problem} begins the error; {@code %s}
     * in it is the block's class.
     */
    public static Block apply(Block block, Rule rule, String problem) {
        return new BlockReplacement(rule, problem).convert(block);
    }

    /** A layer in place of one that the program has made, and may hold. */
    public interface Substitute extends Block {
        Block original();
    }

    /** Copies the fields of the classes that both blocks have; the parameters are shared. */
    public static void copyFields(Block from, Block to) {
        try {
            for (Class<?> each = from.getClass(); each != Object.class; ) {
                for (Field field : each.isInstance(to) ? fields(each) : List.<Field>of()) {
                    field.set(to, field.get(from));
                }
                each = each.getSuperclass();
            }
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e); // Not thrown: the fields are accessible.
        }
    }

    /** Copies to the program's layers what {@code initialize} has set in their substitutes. */
    public static void copyBack(Block block) {
        if (block instanceof Substitute substitute) {
            copyFields(substitute, substitute.original());
        }
        block.getChildren().values().forEach(BlockReplacement::copyBack);
    }

    private static List<Field> fields(Class<?> type) {
        List<Field> fields = new ArrayList<>();
        for (Field field : type.getDeclaredFields()) {
            if (!Modifier.isStatic(field.getModifiers())) {
                field.setAccessible(true);
                fields.add(field);
            }
        }
        return fields;
    }

    private Block convert(Block block) {
        Block known = done.get(block);
        if (known != null) {
            return known;
        }
        try {
            done.put(block, block);
            for (Class<?> type = block.getClass();
                    block instanceof AbstractBlock && type != Object.class;
                    type = type.getSuperclass()) {
                for (Field field : fields(type)) {
                    convert(field, block);
                }
            }
            Block result = rule.replace(block);
            done.put(block, result);
            done.put(result, result);
            return result;
        } catch (ReflectiveOperationException
                | InaccessibleObjectException
                | UnsupportedOperationException e) {
            throw refusal(block, e);
        }
    }

    private void convert(Field field, Block owner) throws IllegalAccessException {
        Object value = field.get(owner);
        if (value instanceof Block child) {
            Block converted = convert(child);
            if (converted == child) {
                return;
            }
            if (!field.getType().isInstance(converted)) {
                throw refusal(owner, new ClassCastException(field.toString()));
            }
            field.set(owner, converted);
        } else if (value instanceof BlockList children) {
            convert(children.values(), Block.class, owner);
        } else if (value instanceof List<?> list) {
            convert(list, elements(field), owner);
        } else if (value instanceof Block[] array) {
            convert(Arrays.asList(array), array.getClass().getComponentType(), owner);
        }
    }

    private static Class<?> elements(Field list) {
        return list.getGenericType() instanceof ParameterizedType type
                        && type.getActualTypeArguments()[0] instanceof Class<?> element
                ? element
                : Object.class;
    }

    private IllegalArgumentException refusal(Block block, Exception cause) {
        return new IllegalArgumentException(
                problem.formatted(block.getClass().getName())
                        + ", because its fields cannot be written, or hold only one class; keep"
                        + " layers in private fields of the type Block that are not final",
                cause);
    }

    @SuppressWarnings("unchecked") // A block is replaced by one of its class, or a subclass.
    private void convert(List<?> list, Class<?> type, Block owner) {
        for (int i = 0; i < list.size(); i++) {
            if (list.get(i) instanceof Block child) {
                Block converted = convert(child);
                if (!type.isInstance(converted)) {
                    throw refusal(owner, new ClassCastException("a list of " + type));
                }
                if (converted != child) {
                    ((List<Object>) list).set(i, converted);
                }
            }
        }
    }
}

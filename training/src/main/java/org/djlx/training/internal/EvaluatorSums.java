// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import ai.djl.ndarray.NDList;
import ai.djl.training.Trainer;
import ai.djl.training.evaluator.Evaluator;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The sums that a trainer's loss and evaluators have accumulated in an epoch so far. DJL's
 * evaluators keep them in fields of the type {@code Map<String, Long>} or {@code Map<String,
 * Float>}, by accumulator. Evaluators count as sums if methods of DJL's classes update and read
 * their accumulators, as in subclasses of {@code AbstractAccuracy} and {@code Loss}.
 */
public final class EvaluatorSums {

    private static final Set<String> TYPES =
            Set.of(
                    "java.util.Map<java.lang.String, java.lang.Long>",
                    "java.util.Map<java.lang.String, java.lang.Float>");

    private final Map<String, List<Map<String, Number>>> sums = new LinkedHashMap<>();
    private final List<Evaluator> others = new ArrayList<>();

    private EvaluatorSums() {}

    /** Finds the sums of a trainer's evaluators; they change as the evaluators do. */
    public static EvaluatorSums of(Trainer trainer) {
        EvaluatorSums all = new EvaluatorSums();
        for (Evaluator evaluator : trainer.getEvaluators()) {
            List<Map<String, Number>> maps = new ArrayList<>();
            Set<Object> seen = Collections.newSetFromMap(new IdentityHashMap<>());
            if (collect(evaluator, seen, maps)) {
                all.sums.put(all.sums.size() + " " + evaluator.getName(), maps);
            } else {
                all.others.add(evaluator);
            }
        }
        return all;
    }

    /** {@return the evaluators whose accumulators are not known to be sums} */
    public List<Evaluator> others() {
        return others;
    }

    /**
     * {@return the current sums of each evaluator, by its index and name; 0 if it has none} {@code
     * accumulator} is such as {@code EvaluatorTrainingListener.TRAIN_EPOCH}.
     */
    public Map<String, double[]> values(String accumulator) {
        Map<String, double[]> values = new LinkedHashMap<>();
        sums.forEach(
                (name, maps) ->
                        values.put(
                                name,
                                maps.stream()
                                        .map(map -> map.getOrDefault(accumulator, 0))
                                        .mapToDouble(Number::doubleValue)
                                        .toArray()));
        return values;
    }

    /**
     * Sets the sums of evaluators, except those that this trainer does not have, or that have no
     * such accumulator.
     */
    public void set(String accumulator, Map<String, double[]> values) {
        values.forEach(
                (name, own) -> {
                    List<Map<String, Number>> maps = sums.getOrDefault(name, List.of());
                    for (int i = 0; i < maps.size() && maps.size() == own.length; i++) {
                        double sum = own[i];
                        maps.get(i)
                                .computeIfPresent(
                                        accumulator,
                                        (key, before) ->
                                                before instanceof Long
                                                        ? (Number) (long) sum
                                                        : (float) sum);
                    }
                });
    }

    /**
     * Collects the maps of an evaluator, and of evaluators in its fields and lists. Returns whether
     * all are known to be sums.
     */
    @SuppressWarnings("unchecked")
    private static boolean collect(Object owner, Set<Object> seen, List<Map<String, Number>> maps) {
        boolean known = true;
        if (owner instanceof List<?> list) {
            for (Object element : list) {
                known &= collect(element, seen, maps);
            }
        }
        if (!(owner instanceof Evaluator) || !seen.add(owner)) {
            return known;
        }
        for (Field field : PrivateFields.of(owner)) {
            Object value = PrivateFields.get(field, owner);
            if (value instanceof Map<?, ?>
                    && TYPES.contains(field.getGenericType().getTypeName())) {
                maps.add((Map<String, Number>) value);
            } else {
                known &= collect(value, seen, maps);
            }
        }
        return known && isAccumulatedByDjl(owner.getClass());
    }

    private static boolean isAccumulatedByDjl(Class<?> type) {
        try {
            for (Method method :
                    List.of(
                            type.getMethod("addAccumulator", String.class),
                            type.getMethod("resetAccumulator", String.class),
                            type.getMethod("getAccumulator", String.class),
                            type.getMethod(
                                    "updateAccumulator", String.class, NDList.class, NDList.class),
                            type.getMethod(
                                    "updateAccumulators",
                                    String[].class,
                                    NDList.class,
                                    NDList.class))) {
                if (!method.getDeclaringClass().getName().startsWith("ai.djl.training.")) {
                    return false;
                }
            }
            return true;
        } catch (NoSuchMethodException e) {
            throw new IllegalStateException(e); // Not thrown: Evaluator has them.
        }
    }
}

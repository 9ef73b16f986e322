// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.train;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.training.Trainer;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.listener.EvaluatorTrainingListener;
import ai.djl.training.listener.TrainingListenerAdapter;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.nativeops.cuda.CurrentStreams;

/**
 * Sums the loss and the evaluators of an epoch over processes, so that metrics and {@code
 * TrainingResult} are those of the whole job. It is the first listener, so DJL's listeners read the
 * sums. Calls {@link DataParallelTrainer#join} first: other processes may have more batches.
 *
 * <p>DJL's evaluators keep their sums, by name, in fields of the type {@code Map<String, Long>} or
 * {@code Map<String, Float>}.
 */
final class JobEvaluators extends TrainingListenerAdapter {

    private static final List<String> EPOCH =
            List.of(
                    EvaluatorTrainingListener.TRAIN_EPOCH,
                    EvaluatorTrainingListener.VALIDATE_EPOCH);

    private static final Set<String> SUMS =
            Set.of(
                    "java.util.Map<java.lang.String, java.lang.Long>",
                    "java.util.Map<java.lang.String, java.lang.Float>");

    @Override
    public void onEpoch(Trainer trainer) {
        DataParallelTrainer own = (DataParallelTrainer) trainer;
        ProcessGroup group = own.group();
        if (group == null || group.worldSize() == 1) {
            return;
        }
        own.join();
        List<Map<String, Number>> all = new ArrayList<>();
        Set<Object> seen = Collections.newSetFromMap(new IdentityHashMap<>());
        own.getEvaluators().forEach(evaluator -> collect(evaluator, seen, all));
        double[] sums =
                all.stream()
                        .flatMap(map -> EPOCH.stream().map(name -> map.getOrDefault(name, 0)))
                        .mapToDouble(Number::doubleValue)
                        .toArray();
        try (NDManager manager = own.replicas().get(0).manager().newSubManager();
                NDArray array = manager.create(sums)) {
            group.allReduce(array, ReduceOp.SUM).await();
            CurrentStreams.await(array.getDevice());
            sums = array.toDoubleArray();
        }
        for (int i = 0; i < sums.length; i++) {
            Map<String, Number> map = all.get(i / EPOCH.size());
            Number local = map.get(EPOCH.get(i % EPOCH.size()));
            if (local != null) {
                Number sum = local instanceof Long ? (Number) (long) sums[i] : (float) sums[i];
                map.put(EPOCH.get(i % EPOCH.size()), sum);
            }
        }
    }

    /** Collects the maps of an evaluator, and of evaluators in its fields and lists. */
    @SuppressWarnings("unchecked")
    private static void collect(Object owner, Set<Object> seen, List<Map<String, Number>> all) {
        if (owner instanceof List<?> list) {
            list.forEach(element -> collect(element, seen, all));
        }
        if (!(owner instanceof Evaluator) || !seen.add(owner)) {
            return;
        }
        for (Class<?> type = owner.getClass(); type != Object.class; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                boolean isStatic = Modifier.isStatic(field.getModifiers());
                Object value = isStatic || !field.trySetAccessible() ? null : get(field, owner);
                String name = field.getGenericType().getTypeName();
                if (value instanceof Map<?, ?> && SUMS.contains(name)) {
                    all.add((Map<String, Number>) value);
                } else {
                    collect(value, seen, all);
                }
            }
        }
    }

    private static Object get(Field field, Object owner) {
        try {
            return field.get(owner);
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e); // Not thrown: the field is accessible.
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.checkpoint;

import ai.djl.training.Trainer;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.listener.EvaluatorTrainingListener;
import ai.djl.training.listener.TrainingListener;
import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonParseException;
import com.google.gson.reflect.TypeToken;
import java.io.IOException;
import java.lang.reflect.Field;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.djlx.training.internal.EvaluatorSums;
import org.djlx.training.internal.PrivateFields;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Sums of the loss and the evaluators in the current epoch. A checkpoint holds them, so that a job
 * that is resumed within the epoch reports the whole epoch. It excludes the current batch, whose
 * optimizer step follows. Whether the evaluators have counted that batch already depends on the
 * order of the listeners.
 */
final class EpochSums {

    private static final Logger LOG = LoggerFactory.getLogger(EpochSums.class);
    private static final Gson GSON =
            new GsonBuilder().serializeSpecialFloatingPointValues().create(); // An infinite loss.

    // Fields of EpochTrainingListener, LoggingTrainingListener and SaveModelTrainingListener.
    private static final Set<String> EPOCHS = Set.of("numEpochs", "epoch");

    private Trainer trainer; // of the sums; null before the first batch
    private EvaluatorSums sums;
    private boolean countsFirst; // whether evaluators count a batch before the manager is called
    private Map<String, double[]> last = Map.of(); // at the last call of onBatch
    private Map<String, double[]> complete = Map.of(); // without the current batch

    void onBatch(Trainer of, CheckpointManager manager) {
        if (trainer != of) {
            trainer = of;
            sums = EvaluatorSums.of(of);
            TrainingListener[] first = new TrainingListener[1];
            of.notifyListeners(
                    listener -> {
                        boolean counts = listener instanceof EvaluatorTrainingListener;
                        if (first[0] == null && (counts || listener == manager)) {
                            first[0] = listener;
                        }
                    });
            countsFirst = first[0] instanceof EvaluatorTrainingListener;
        }
        Map<String, double[]> current = sums.values(EvaluatorTrainingListener.TRAIN_EPOCH);
        complete = countsFirst ? last : current;
        last = current;
    }

    void onEpoch() {
        last = Map.of();
        complete = last;
    }

    String toJson() {
        return GSON.toJson(complete);
    }

    static String toJson(Trainer of) {
        return GSON.toJson(EvaluatorSums.of(of).values(EvaluatorTrainingListener.TRAIN_EPOCH));
    }

    /** Parses the sums of all processes; null for none. */
    static List<Map<String, double[]>> parse(String json) throws IOException {
        try {
            List<Map<String, double[]>> all =
                    GSON.fromJson(json == null ? "[]" : json, new TypeToken<>() {});
            all.forEach(own -> own.values().forEach(double[]::clone)); // Throws on null.
            return all;
        } catch (JsonParseException | NullPointerException e) {
            throw new IOException("'evaluators' is not a list of sums: " + json, e);
        }
    }

    /**
     * Restores the sums of each process that saved. Another number of processes adds them up on the
     * first one.
     */
    void restore(
            Trainer to, List<Map<String, double[]>> all, int process, int processes, long batch) {
        Map<String, double[]> own = new HashMap<>();
        if (all.size() == processes) {
            own.putAll(all.get(process));
        } else if (process == 0) {
            all.forEach(each -> each.forEach((name, sum) -> own.merge(name, sum, EpochSums::add)));
        }
        EvaluatorSums found = EvaluatorSums.of(to);
        found.set(EvaluatorTrainingListener.TRAIN_EPOCH, own);
        last = found.values(EvaluatorTrainingListener.TRAIN_EPOCH);
        complete = last;
        if (batch > 0 && !found.others().isEmpty()) {
            LOG.warn(
                    "Evaluators {} cover only the rest of the epoch, from batch {}: checkpoints"
                            + " keep evaluators whose accumulators are those of DJL's classes.",
                    found.others().stream().map(Evaluator::getName).toList(),
                    batch);
        }
    }

    /**
     * Sets the number of finished epochs in DJL's listeners, which count from 0 and name files by
     * it. Their fields have no setters.
     */
    static void setEpochs(Trainer trainer, int epochs) {
        trainer.notifyListeners(listener -> setEpochs(listener, epochs));
    }

    private static void setEpochs(TrainingListener listener, int epochs) {
        for (Field field : PrivateFields.of(listener)) {
            if (field.getDeclaringClass().getName().startsWith("ai.djl.")
                    && field.getType() == int.class
                    && EPOCHS.contains(field.getName())) {
                try {
                    field.setInt(listener, epochs);
                } catch (IllegalAccessException e) {
                    throw new IllegalStateException("restore: " + field + " cannot be set", e);
                }
            }
        }
    }

    private static double[] add(double[] a, double[] b) {
        double[] sum = a.clone();
        for (int i = 0; i < Math.min(a.length, b.length); i++) {
            sum[i] += b[i];
        }
        return sum;
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.ndarray.NDManager;
import ai.djl.training.listener.EarlyStoppingListener.EarlyStoppedException;
import ai.djl.training.listener.LoggingTrainingListener;
import ai.djl.training.listener.MemoryTrainingListener;
import ai.djl.training.listener.TimeMeasureTrainingListener;
import ai.djl.training.listener.TrainingListener;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import org.djlx.collectives.Agreement;

/**
 * The listeners of one of several processes. If a listener of one process throws {@link
 * EarlyStoppedException} at the end of an epoch, as DJL's {@code EarlyStoppingListener} does, all
 * processes stop after this epoch. The processes agree on it, because a listener may decide by the
 * time, which differs between them. They agree after all listeners have been called, because later
 * listeners may run collectives.
 */
final class JobListeners extends ArrayList<TrainingListener> {

    private static final long serialVersionUID = 1L;

    private final transient JobEvaluators evaluators =
            new JobEvaluators(Runtime.getRuntime().maxMemory() / 4);

    /** Unless this is the first process, leaves out DJL's listeners that log. */
    JobListeners(List<TrainingListener> listeners, boolean isFirst) {
        add(evaluators);
        listeners.stream().filter(each -> isFirst || !logs(each)).forEach(this::add);
    }

    private static boolean logs(TrainingListener listener) {
        return listener instanceof LoggingTrainingListener
                || listener instanceof TimeMeasureTrainingListener
                || listener instanceof MemoryTrainingListener;
    }

    @Override
    public void forEach(Consumer<? super TrainingListener> action) {
        DataParallelTrainer ended = null;
        EarlyStoppedException stopped = null;
        for (TrainingListener listener : this) {
            try {
                action.accept(listener);
            } catch (EarlyStoppedException e) {
                if (ended == null) {
                    throw e;
                }
                stopped = stopped == null ? e : stopped;
            }
            ended = listener == evaluators ? evaluators.takeEnded() : ended;
        }
        if (ended == null) {
            return;
        }
        NDManager manager = ended.replicas().get(0).manager();
        boolean any = Agreement.any(ended.group(), manager, stopped != null);
        if (any && stopped == null) {
            int epoch = ended.getTrainingResult().getEpoch();
            stopped = new EarlyStoppedException(epoch, "a listener of another process has stopped");
        }
        if (stopped != null) {
            throw stopped;
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.training.Trainer;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.listener.EvaluatorTrainingListener;
import ai.djl.training.listener.TrainingListenerAdapter;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.djlx.collectives.ObjectCollectives;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.training.internal.DataTypes;
import org.djlx.training.internal.EvaluatorSums;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Combines the loss and the evaluators of all processes at the end of an epoch, so that metrics and
 * {@code TrainingResult} describe the whole job. It is the first listener, so DJL's listeners read
 * the combined values. Calls {@link DataParallelTrainer#join} first, because other processes may
 * have more batches.
 *
 * <ul>
 *   <li>{@linkplain EvaluatorSums Sums} are added up.
 *   <li>For all other evaluators, such as F1 or AUC, each process keeps labels and predictions of
 *       the epoch on the heap, up to a limit. At its end all processes update their evaluators with
 *       all batches, in rank order.
 * </ul>
 */
final class JobEvaluators extends TrainingListenerAdapter {

    private static final Logger LOG = LoggerFactory.getLogger(JobEvaluators.class);

    private static final List<String> EPOCH =
            List.of(
                    EvaluatorTrainingListener.TRAIN_EPOCH,
                    EvaluatorTrainingListener.VALIDATE_EPOCH);

    private final Map<String, List<byte[]>> batches = new HashMap<>(); // labels, predictions, ...
    private final long maxBytes;
    private long bytes; // of all batches
    private List<Evaluator> gathered; // need all predictions; null before they are known
    private DataParallelTrainer ended; // the trainer whose epoch has ended; null after takeEnded

    JobEvaluators(long maxBytes) {
        this.maxBytes = maxBytes;
    }

    @Override
    public void onTrainingBatch(Trainer trainer, BatchData batch) {
        keep(trainer, batch, EvaluatorTrainingListener.TRAIN_EPOCH);
    }

    @Override
    public void onValidationBatch(Trainer trainer, BatchData batch) {
        keep(trainer, batch, EvaluatorTrainingListener.VALIDATE_EPOCH);
    }

    private void keep(Trainer trainer, BatchData batch, String accumulator) {
        if (!gathered(trainer).isEmpty()) {
            batch.getLabels()
                    .forEach(
                            (device, labels) -> {
                                NDList predictions = batch.getPredictions().get(device);
                                List<byte[]> kept =
                                        batches.computeIfAbsent(
                                                accumulator, key -> new ArrayList<>());
                                for (NDList list : List.of(labels, predictions)) {
                                    byte[] encoded = storable(list).encode();
                                    bytes += encoded.length;
                                    kept.add(encoded);
                                }
                            });
            checkSize();
        }
    }

    private static NDList storable(NDList list) {
        return list.stream().map(DataTypes::storable).collect(Collectors.toCollection(NDList::new));
    }

    private void checkSize() {
        if (bytes > maxBytes) {
            throw new IllegalStateException(
                    String.format(
                            "the evaluators %s are not known to be sums, so each process keeps"
                                + " labels and predictions until the end of the epoch: now %d"
                                + " bytes, and the limit is %d, a quarter of the maximum heap. End"
                                + " the epoch after each evaluation, on all processes, by"
                                + " trainer.notifyListeners(listener -> listener.onEpoch(trainer));"
                                + " or leave these evaluators out, or raise -Xmx",
                            names(), bytes, maxBytes));
        }
    }

    private List<String> names() {
        return gathered.stream().map(Evaluator::getName).toList();
    }

    /** Returns the evaluators that need all predictions; empty if no listener reads evaluators. */
    private List<Evaluator> gathered(Trainer trainer) {
        ProcessGroup group = ((DataParallelTrainer) trainer).group();
        if (gathered == null) {
            boolean[] isRead = new boolean[1];
            trainer.notifyListeners(
                    listener -> isRead[0] |= listener instanceof EvaluatorTrainingListener);
            boolean one = group == null || group.worldSize() == 1;
            gathered = one || !isRead[0] ? List.of() : EvaluatorSums.of(trainer).others();
            if (!gathered.isEmpty()) {
                LOG.info(
                        "Evaluators {} are not known to be sums: processes keep labels and"
                                + " predictions of an epoch, and gather them at its end.",
                        names());
            }
        }
        return gathered;
    }

    @Override
    public void onEpoch(Trainer trainer) {
        DataParallelTrainer own = (DataParallelTrainer) trainer;
        ProcessGroup group = own.group();
        if (group == null || group.worldSize() == 1) {
            return;
        }
        own.join();
        try (NDManager manager = own.replicas().get(0).manager().newSubManager()) {
            EvaluatorSums sums = EvaluatorSums.of(trainer);
            for (String accumulator : EPOCH) {
                sums.set(accumulator, addUp(sums.values(accumulator), group, manager));
                gather(trainer, accumulator, group, manager);
            }
        }
        batches.clear();
        bytes = 0;
        ended = own;
    }

    /**
     * Returns the trainer of several processes whose epoch has ended since the last call, or null.
     */
    DataParallelTrainer takeEnded() {
        DataParallelTrainer trainer = ended;
        ended = null;
        return trainer;
    }

    private static Map<String, double[]> addUp(
            Map<String, double[]> values, ProcessGroup group, NDManager manager) {
        Map<String, double[]> sums = new LinkedHashMap<>();
        values.forEach(
                (name, own) -> {
                    NDArray array = manager.create(own);
                    if (own.length > 0) {
                        group.allReduce(array, ReduceOp.SUM).await();
                        CurrentStreams.await(array.getDevice());
                    }
                    sums.put(name, array.toDoubleArray());
                });
        return sums;
    }

    private void gather(Trainer trainer, String accumulator, ProcessGroup group, NDManager parent) {
        List<Evaluator> evaluators = gathered(trainer);
        if (evaluators.isEmpty()) {
            return;
        }
        evaluators.forEach(evaluator -> evaluator.resetAccumulator(accumulator));
        ObjectCollectives objects = new ObjectCollectives(group).withMaxBytes(Integer.MAX_VALUE);
        List<byte[]> own = batches.getOrDefault(accumulator, List.of());
        for (int rank = 0; rank < group.worldSize(); rank++) {
            boolean mine = rank == group.rank();
            int count = objects.broadcastObject(own.size(), rank);
            for (int i = 0; i < count; i += 2) {
                try (NDManager manager = parent.newSubManager()) {
                    byte[] first = objects.broadcastObject(mine ? own.get(i) : null, rank);
                    NDList labels = NDList.decode(manager, first);
                    byte[] next = objects.broadcastObject(mine ? own.get(i + 1) : null, rank);
                    NDList predictions = NDList.decode(manager, next);
                    for (Evaluator evaluator : evaluators) {
                        evaluator.updateAccumulator(accumulator, labels, predictions);
                    }
                }
            }
        }
    }
}

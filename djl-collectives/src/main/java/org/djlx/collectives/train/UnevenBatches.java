// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.train;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.collectives.train.SplitCheck.Layout;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.Torch;

/**
 * Lets processes have different numbers of batches, as PyTorch's Join. Those that train tell those
 * in {@link DataParallelTrainer#join} of each call, and these repeat it with a row that counts for
 * nothing.
 */
final class UnevenBatches {

    /** The calls that ranks in join repeat; JOINED if no rank makes one. */
    enum Call {
        JOINED,
        FORWARD,
        BACKWARD,
        STEP,
        LISTENER // plus the index of the JoinListener: the last one
    }

    private final DataParallelTrainer trainer;
    private NDList firstData; // a row of the first batch; null before
    private NDList firstLabels; // of that row; null if there are none
    private NDArray told; // the last call that was all-reduced; null before
    private Work telling; // the all-reduce of told

    UnevenBatches(DataParallelTrainer trainer) {
        this.trainer = trainer;
    }

    private Replica replica() {
        return trainer.replicas().get(0);
    }

    /** Tells ranks in join of a call. */
    void tell(Call call) {
        tell(call.ordinal());
    }

    /** Returns the classes of the trainer's listeners, in their order. */
    List<String> names() {
        return listeners().stream().map(listener -> listener.getClass().getName()).toList();
    }

    /** Tells ranks in join that a listener is called. */
    void tell(JoinListener listener) {
        int index = listeners().indexOf(listener);
        if (index < 0) {
            throw new IllegalArgumentException(
                    "callInJoin: the trainer's configuration does not have this listener; call"
                            + " config.addTrainingListeners before newTrainer");
        }
        tell(Call.LISTENER.ordinal() + index);
    }

    private List<JoinListener> listeners() {
        List<JoinListener> listeners = new ArrayList<>();
        trainer.notifyListeners(
                listener -> {
                    if (listener instanceof JoinListener own) {
                        listeners.add(own);
                    }
                });
        return listeners;
    }

    /**
     * Tells ranks in join of a call, by an all-reduce of its number.
     *
     * @return the call, or, for JOINED, the call of the ranks that still train
     */
    private int tell(int call) {
        ProcessGroup group = trainer.group();
        if (told != null) {
            telling.await();
            told.close();
        }
        told = replica().manager().create(new long[] {call});
        telling = group.allReduce(told, ReduceOp.MAX);
        if (call != Call.JOINED.ordinal()) {
            return call;
        }
        telling.await();
        CurrentStreams.await(told.getDevice());
        return (int) told.getLong(0);
    }

    /** Repeats the calls of other processes until all have joined. */
    void join() {
        replica().setIdle(true);
        NDManager manager = null;
        DataParallelTrainer.Collector collector = null;
        List<NDArray> targets = new ArrayList<>();
        try {
            int joined = Call.JOINED.ordinal();
            for (int number = tell(joined); number != joined; number = tell(joined)) {
                Call call = Call.values()[Math.min(number, Call.LISTENER.ordinal())];
                if (collector == null && (call == Call.FORWARD || call == Call.BACKWARD)) {
                    manager = trainer.getManager().newSubManager();
                    collector = (DataParallelTrainer.Collector) trainer.newGradientCollector();
                }
                switch (call) {
                    case FORWARD -> {
                        requireBatch();
                        trainer.pass(copy(firstData, manager), copy(firstLabels, manager)).stream()
                                .filter(Torch::requiresGradient)
                                .forEach(targets::add);
                    }
                    case BACKWARD -> {
                        GradientScope scope = collector.scope();
                        List<NDArray> zeros = targets.stream().map(NDArray::zerosLike).toList();
                        collector.backward(() -> scope.backward(targets, zeros));
                        targets.clear();
                    }
                    case LISTENER ->
                            listeners()
                                    .get(number - Call.LISTENER.ordinal())
                                    .onJoinedBatch(trainer);
                    default -> {
                        trainer.update();
                        if (collector != null) {
                            collector.close();
                            manager.close();
                            collector = null;
                        }
                    }
                }
            }
        } finally {
            replica().setIdle(false);
            if (collector != null) {
                collector.close();
                manager.close();
            }
        }
    }

    private void requireBatch() {
        if (firstData == null) {
            throw new IllegalStateException(
                    "join: this process had no batch yet, so it cannot take part in the other"
                            + " processes' steps; give each process at least one batch, also after"
                            + " a restart within an epoch");
        }
    }

    /** Keeps a row of the first batch. */
    void keepFirst(NDList data, NDList labels) {
        if (firstData == null) {
            Layout of = Layout.of(data, labels, null);
            firstData = firstRow(data, of.data());
            firstLabels = labels == null ? null : firstRow(labels, of.labels());
        }
    }

    private NDList firstRow(NDList arrays, boolean[] divided) {
        NDList rows = new NDList();
        for (int k = 0; k < arrays.size(); k++) {
            NDArray array = arrays.get(k);
            NDArray row = replica().copy(divided[k] ? array.get("0:1") : array);
            row.setName(array.getName());
            rows.add(row);
        }
        return rows;
    }

    private static NDList copy(NDList arrays, NDManager manager) {
        NDList copies = arrays == null ? null : new NDList();
        for (int k = 0; arrays != null && k < arrays.size(); k++) {
            NDArray copy = Torch.alias(manager, arrays.get(k));
            copy.setName(arrays.get(k).getName());
            copies.add(copy);
        }
        return copies;
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.data.JoinListener;
import org.djlx.training.internal.ForwardPass;
import org.djlx.training.internal.Replica;

/**
 * Lets processes train on different numbers of batches, like PyTorch's {@code Join}.
 *
 * <ul>
 *   <li>A process that trains announces each {@link Call} that changes gradients or runs
 *       collectives.
 *   <li>A process in {@link DataParallelTrainer#join} repeats the call, so that its collectives
 *       match. Its passes use its first batch, which adds nothing to gradients.
 * </ul>
 */
final class UnevenBatches {

    /** The calls that processes in join repeat; JOINED: all processes are in join. */
    enum Call {
        JOINED,
        FORWARD,
        BACKWARD,
        ACCUMULATE, // a backward pass within noSync
        CLIP_NORM,
        CLIP_VALUE,
        ZERO_GRADIENTS,
        STEP,
        LISTENER; // keep last: its number plus the index of the JoinListener is announced

        boolean isPass() {
            return this == FORWARD || this == BACKWARD || this == ACCUMULATE;
        }
    }

    /** The passes of a step, which join repeats. */
    private static final class Passes implements AutoCloseable {

        private final NDManager manager;
        private final BackwardPasses.Collector collector;
        private final List<NDArray> outputs = new ArrayList<>(); // without a backward pass yet

        Passes(DataParallelTrainer trainer) {
            manager = trainer.getManager().newSubManager();
            collector = (BackwardPasses.Collector) trainer.newGradientCollector();
        }

        void backward() {
            List<NDArray> zeros = outputs.stream().map(Torch::zerosLike).toList();
            collector.backward(outputs, zeros);
            outputs.clear();
        }

        @Override
        public void close() {
            try (manager) {
                collector.close();
            }
        }
    }

    private final DataParallelTrainer trainer;
    private final boolean allowed;
    private NDList firstData; // the first batch; null before
    private NDList firstLabels; // its labels; null without
    private NDArray announced; // the number of the last announced call; null before the first
    private Work announcement; // the all-reduce of that number

    UnevenBatches(DataParallelTrainer trainer, boolean allowed) {
        this.trainer = trainer;
        this.allowed = allowed;
    }

    /** Returns whether processes may train on different numbers of batches. */
    boolean areAllowed() {
        return allowed && trainer.group() != null;
    }

    private Replica replica() {
        return trainer.replicas().get(0);
    }

    @SuppressWarnings("try") // It is open while the pass runs, and not used.
    private void accumulate(Passes passes) {
        try (DataParallelTrainer.NoSync accumulating = trainer.noSync()) {
            passes.backward();
        }
    }

    /** Announces a call to the processes in join. */
    void announce(Call call) {
        if (areAllowed()) {
            announce(call.ordinal());
        }
    }

    /** As {@link #announce(Call)}; returns the call's number, which all processes then have. */
    double announce(Call call, double number) {
        announce(call);
        return agree(number);
    }

    private double agree(double number) {
        if (!areAllowed()) {
            return number;
        }
        try (NDArray all = replica().manager().create(new double[] {number})) {
            trainer.group().allReduce(all, ReduceOp.MAX).await();
            CurrentStreams.await(all.getDevice());
            return all.getDouble(0);
        }
    }

    /** Returns the class names of the trainer's JoinListeners, in their order. */
    List<String> names() {
        return listeners().stream().map(listener -> listener.getClass().getName()).toList();
    }

    /** Announces a call of a listener to the processes in join. */
    void announce(JoinListener listener) {
        if (!areAllowed()) {
            return;
        }
        int index = listeners().indexOf(listener);
        if (index < 0) {
            throw new IllegalArgumentException(
                    "callInJoin: the trainer's configuration does not have this listener; call"
                            + " config.addTrainingListeners before newTrainer");
        }
        announce(Call.LISTENER.ordinal() + index);
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
     * Announces a call by an all-reduce (MAX) of its number.
     *
     * @return the call; for JOINED, the call of the processes that still train
     */
    private int announce(int call) {
        ProcessGroup group = trainer.group();
        if (announced != null) {
            announcement.await();
            announced.close();
        }
        announced = replica().manager().create(new long[] {call});
        announcement = group.allReduce(announced, ReduceOp.MAX);
        if (call != Call.JOINED.ordinal()) {
            return call;
        }
        announcement.await();
        CurrentStreams.await(announced.getDevice());
        return (int) announced.getLong(0);
    }

    /** Repeats the calls of processes that still train until all are in join. */
    void join() {
        if (!areAllowed()) {
            return;
        }
        replica().store().setIdle(true);
        Passes passes = null;
        try {
            int joined = Call.JOINED.ordinal();
            for (int number = announce(joined); number != joined; number = announce(joined)) {
                Call call = Call.values()[Math.min(number, Call.LISTENER.ordinal())];
                if (passes == null && call.isPass()) {
                    passes = new Passes(trainer);
                }
                switch (call) {
                    case FORWARD -> {
                        requireBatch();
                        NDList data = ForwardPass.copy(firstData, passes.manager);
                        NDList labels = ForwardPass.copy(firstLabels, passes.manager);
                        trainer.pass(data, labels).stream()
                                .filter(Torch::requiresGradient)
                                .forEach(passes.outputs::add);
                    }
                    case BACKWARD -> passes.backward();
                    case ACCUMULATE -> accumulate(passes);
                    case CLIP_NORM -> trainer.optimizerStep().clipNorm(agree(0));
                    case CLIP_VALUE -> trainer.optimizerStep().clipValue(agree(0));
                    case ZERO_GRADIENTS -> trainer.dropGradients();
                    case LISTENER ->
                            listeners()
                                    .get(number - Call.LISTENER.ordinal())
                                    .onJoinedBatch(trainer);
                    default -> {
                        trainer.update();
                        if (passes != null) {
                            Passes ended = passes;
                            passes = null;
                            ended.close();
                        }
                    }
                }
            }
        } finally {
            replica().store().setIdle(false);
            if (passes != null) {
                passes.close();
            }
        }
    }

    /** Returns the first rank that is not in join. All processes call it. */
    int firstBusy() {
        if (!areAllowed()) {
            return 0;
        }
        ProcessGroup group = trainer.group();
        int own = replica().store().isIdle() ? group.worldSize() : group.rank();
        try (NDArray first = replica().manager().create(new long[] {own})) {
            group.allReduce(first, ReduceOp.MIN).await();
            CurrentStreams.await(first.getDevice());
            return (int) first.getLong(0);
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

    /** Copies the first batch, with which join repeats passes. */
    void keepFirst(NDList data, NDList labels) {
        if (areAllowed() && firstData == null) {
            NDManager manager = replica().manager();
            firstData = ForwardPass.copy(data, manager);
            firstLabels = ForwardPass.copy(labels, manager);
        }
    }
}

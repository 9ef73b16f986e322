// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.train;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.IntConsumer;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;

/**
 * One forward pass in which several ranks compute parts of a batch. The caller's autograd sees one
 * operator whose outputs are the predictions. Each rank's autograd records the graph from its part
 * of the batch to its part of the predictions.
 */
final class SplitForward implements AutoCloseable {

    /** Computes a rank's predictions from its part of the batch. */
    interface Body {
        NDList forward(int rank, NDList data, NDList labels);
    }

    /** A rank's part of the batch, its predictions and its gradient scope. */
    private static final class Part implements AutoCloseable {

        private final NDManager manager;
        private final GradientScope scope = GradientScope.create();
        private NDList data;
        private NDList labels;
        private NDList predictions;
        private long rows;

        Part(NDManager manager) {
            this.manager = manager;
        }

        @Override
        public void close() {
            scope.close();
            manager.close();
        }
    }

    private final RankWorkers workers;
    private final List<Part> parts = new ArrayList<>();
    private boolean closed;

    private SplitForward(RankWorkers workers) {
        this.workers = workers;
    }

    /**
     * Computes the predictions for a batch.
     *
     * @param labels null if there are none
     * @param scope the caller's gradient scope; null if gradients are not recorded
     * @param incomplete called on each rank's thread before the pass, if the pass is recorded and
     *     some ranks have no part of the batch
     * @param back called after the backward pass of a recorded pass
     * @param started called with a recorded pass, which the receiver must close
     */
    static NDList run(
            RankWorkers workers,
            List<Device> devices,
            NDList data,
            NDList labels,
            GradientScope scope,
            Body body,
            IntConsumer incomplete,
            Runnable back,
            Consumer<SplitForward> started) {
        SplitForward pass = new SplitForward(workers);
        boolean kept = false;
        try {
            NoGradient.run(() -> pass.split(devices, data, labels));
            if (scope != null && pass.parts.size() < devices.size()) {
                workers.runApart(
                        devices.size(),
                        rank -> {
                            incomplete.accept(rank);
                            return null;
                        });
            }
            workers.runApart(
                    pass.parts.size(),
                    rank -> {
                        Part part = pass.parts.get(rank);
                        if (scope == null) {
                            part.predictions =
                                    NoGradient.get(
                                            () -> body.forward(rank, part.data, part.labels));
                        } else {
                            part.predictions =
                                    part.scope.within(
                                            () -> body.forward(rank, part.data, part.labels));
                        }
                        return null;
                    });
            NDManager owner = data.head().getManager();
            NDList whole = NoGradient.get(() -> pass.join(owner, devices.get(0)));
            if (scope != null) {
                kept = pass.record(scope, whole, back);
            }
            if (kept) {
                started.accept(pass);
            }
            return whole;
        } finally {
            if (!kept) {
                pass.close();
            }
        }
    }

    private void split(List<Device> devices, NDList data, NDList labels) {
        long batch = checkRows("data", data, data);
        boolean labelled = labels != null && !labels.isEmpty();
        if (labelled) {
            checkRows("labels", labels, data);
        }
        NDManager parent = data.head().getManager();
        int count = (int) Math.min(devices.size(), batch);
        for (int rank = 0; rank < count; rank++) {
            long begin = batch * rank / count;
            long end = batch * (rank + 1) / count;
            Part part = new Part(parent.newSubManager(devices.get(rank)));
            parts.add(part);
            part.rows = end - begin;
            part.data = moved(rows(data, begin, end), part.manager);
            part.labels = labelled ? moved(rows(labels, begin, end), part.manager) : labels;
        }
    }

    private static long checkRows(String role, NDList list, NDList data) {
        Shape first = data.head().getShape();
        for (NDArray array : list) {
            Shape shape = array.getShape();
            if (shape.dimension() == 0
                    || first.dimension() == 0
                    || shape.get(0) != first.get(0)
                    || shape.get(0) == 0) {
                throw new IllegalArgumentException(
                        String.format(
                                "forward: the %s has shape %s and the first data %s: the first"
                                        + " dimension of all must be the batch, of 1 row or more,"
                                        + " to divide it among ranks",
                                role, shape, first));
            }
        }
        return first.get(0);
    }

    /** Returns rows of all arrays. */
    private static NDList rows(NDList list, long begin, long end) {
        NDList rows = new NDList();
        for (NDArray array : list) {
            NDArray part = array.get(begin + ":" + end);
            part.setName(array.getName());
            rows.add(part);
        }
        return rows;
    }

    private static NDList moved(NDList list, NDManager manager) {
        NDList result = new NDList();
        for (NDArray array : list) {
            NDArray moved = moved(array, manager);
            moved.setName(array.getName());
            result.add(moved);
        }
        return result;
    }

    /** Moves an array to a manager; copies it if it is on another device. */
    private static NDArray moved(NDArray array, NDManager manager) {
        if (array.getDevice().equals(manager.getDevice())) {
            array.attach(manager);
            return array;
        }
        NDArray copy = Torch.empty(manager, array.getShape(), Torch.scalarType(array));
        Torch.copy(copy, array);
        array.close();
        return copy;
    }

    private NDList join(NDManager owner, Device device) {
        NDList whole = new NDList();
        NDList first = parts.get(0).predictions;
        try (NDManager temporary = owner.newSubManager(device)) {
            for (int k = 0; k < first.size(); k++) {
                NDList rows = new NDList();
                for (Part part : parts) {
                    NDArray own = part.predictions.get(k);
                    Shape shape = own.getShape();
                    if (shape.dimension() == 0 || shape.get(0) != part.rows) {
                        throw new IllegalArgumentException(
                                String.format(
                                        "forward: prediction %d has shape %s for %d rows of the"
                                                + " batch: its first dimension must be the batch,"
                                                + " because the batch is divided among %d ranks",
                                        k, shape, part.rows, parts.size()));
                    }
                    rows.add(moved(Torch.alias(own.getManager(), own), temporary));
                }
                NDArray joined = NDArrays.concat(rows, 0);
                joined.attach(owner);
                joined.setName(first.get(k).getName());
                whole.add(joined);
            }
        }
        return whole;
    }

    /** Records the predictions that require a gradient; returns whether there are any. */
    private boolean record(GradientScope scope, NDList whole, Runnable back) {
        List<Integer> recorded = new ArrayList<>();
        for (int k = 0; k < whole.size(); k++) {
            int index = k;
            if (parts.stream()
                    .anyMatch(part -> Torch.requiresGradient(part.predictions.get(index)))) {
                recorded.add(k);
            }
        }
        if (recorded.isEmpty()) {
            return false;
        }
        scope.record(
                "the forward pass of " + parts.size() + " ranks",
                List.of(),
                List.of(),
                recorded.stream().map(whole::get).toList(),
                (inputs, kept, gradients) -> {
                    try {
                        goBack(recorded, gradients);
                        back.run();
                    } finally {
                        close();
                    }
                    return List.of();
                });
        return true;
    }

    private void goBack(List<Integer> recorded, List<NDArray> gradients) {
        List<List<NDArray>> own = new ArrayList<>();
        long row = 0;
        for (Part part : parts) {
            List<NDArray> of = new ArrayList<>();
            for (NDArray gradient : gradients) {
                of.add(moved(gradient.get(row + ":" + (row + part.rows)), part.manager));
            }
            own.add(of);
            row += part.rows;
        }
        workers.run(
                parts.size(),
                rank -> {
                    Part part = parts.get(rank);
                    List<NDArray> targets = recorded.stream().map(part.predictions::get).toList();
                    return part.scope.within(
                            () -> {
                                part.scope.backward(targets, own.get(rank));
                                return null;
                            });
                });
    }

    @Override
    public void close() {
        if (!closed) {
            closed = true;
            parts.forEach(Part::close);
        }
    }
}

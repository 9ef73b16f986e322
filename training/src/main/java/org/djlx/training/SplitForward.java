// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

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
import org.djlx.training.SplitCheck.Layout;

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

    /** Tells a rank whether it has no rows. */
    interface Idle {
        void set(int rank, boolean idle);
    }

    /**
     * The predictions for the whole batch.
     *
     * @param layout which arrays have the batch; its outputs are null if no shapes were expected
     */
    record Result(NDList predictions, Layout layout) {}

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
    private Layout layout;
    private final long batch;
    private final IntConsumer ended;
    private final List<Part> parts = new ArrayList<>();
    private boolean closed;

    private SplitForward(RankWorkers workers, Layout layout, long batch, IntConsumer ended) {
        this.ended = ended;
        this.workers = workers;
        this.layout = layout;
        this.batch = batch;
    }

    /**
     * Computes the predictions for a batch.
     *
     * @param apart whether the block runs no collectives, so that no rank waits for another
     * @param labels null if there are none
     * @param layout which arrays have the batch; its outputs may be unknown
     * @param expected the shapes of one rank's predictions for the whole batch, to find out which
     *     dimension is the batch; null if they are not known
     * @param scope the caller's gradient scope; null if gradients are not recorded
     * @param all whether ranks without rows compute a row that counts for nothing, so that all
     *     ranks take part in the block's collectives, as PyTorch's Join does
     * @param idle called on each rank's thread before the pass: whether it has no rows
     * @param started called with a recorded pass, which the receiver must close
     * @param ended called on each rank's thread after its backward pass
     */
    static Result run(
            RankWorkers workers,
            boolean apart,
            List<Device> devices,
            NDList data,
            NDList labels,
            Layout layout,
            Shape[] expected,
            GradientScope scope,
            boolean all,
            Body body,
            Idle idle,
            Consumer<SplitForward> started,
            IntConsumer ended) {
        long batch = data.head().getShape().get(0);
        SplitForward pass = new SplitForward(workers, layout, batch, ended);
        List<Integer> inputs = new ArrayList<>(); // that require a gradient
        for (int k = 0; scope != null && k < data.size(); k++) {
            if (NoGradient.isRecorded(data.get(k))) {
                inputs.add(k);
            }
        }
        boolean kept = false;
        try {
            NoGradient.run(() -> pass.split(devices, data, labels, all));
            pass.parts.forEach(
                    part -> inputs.forEach(k -> part.data.get(k).setRequiresGradient(true)));
            workers.run(
                    pass.parts.size(),
                    apart,
                    rank -> {
                        Part part = pass.parts.get(rank);
                        idle.set(rank, part.rows == 0);
                        if (scope == null) {
                            part.predictions =
                                    NoGradient.get(
                                            () -> body.forward(rank, part.data, part.labels));
                        } else {
                            part.predictions =
                                    part.scope.within(
                                            () -> body.forward(rank, part.data, part.labels));
                        }
                    });
            List<Shape[]> shapes = pass.parts.stream().map(p -> p.predictions.getShapes()).toList();
            long[] rows = pass.parts.stream().mapToLong(part -> part.rows).toArray();
            layout.requirePredictions(shapes.get(0).length);
            pass.layout = expected == null ? layout : layout.withOutputs(expected, shapes, rows);
            NDManager owner = data.head().getManager();
            NDList whole = NoGradient.get(() -> pass.join(owner, devices.get(0)));
            if (scope != null) {
                kept = pass.record(scope, data, inputs, whole);
            }
            if (kept) {
                started.accept(pass);
            }
            return new Result(whole, pass.layout);
        } finally {
            if (!kept) {
                pass.close();
            }
        }
    }

    private void split(List<Device> devices, NDList data, NDList labels, boolean all) {
        NDManager parent = data.head().getManager();
        int busy = (int) Math.min(devices.size(), batch);
        int count = all ? devices.size() : busy;
        for (int rank = 0; rank < count; rank++) {
            long begin = rank < busy ? batch * rank / busy : 0;
            long end = rank < busy ? batch * (rank + 1) / busy : 1;
            Part part = new Part(parent.newSubManager(devices.get(rank)));
            parts.add(part);
            part.rows = rank < busy ? end - begin : 0;
            part.data = rows(data, layout.data(), begin, end, part);
            part.labels = labels == null ? null : rows(labels, layout.labels(), begin, end, part);
        }
    }

    /**
     * Returns rows of the arrays that have the batch, and the others whole. What several ranks get
     * is copied for all but the first, because a block may change it in place.
     */
    private NDList rows(NDList list, boolean[] divided, long begin, long end, Part of) {
        boolean first = of == parts.get(0);
        NDList rows = new NDList();
        for (int k = 0; k < list.size(); k++) {
            NDArray array = list.get(k);
            Shape shape = array.getShape();
            if (divided[k] && (shape.dimension() == 0 || shape.get(0) != batch)) {
                throw new IllegalArgumentException(
                        String.format(
                                "forward: array %d has shape %s, but the batch has %d rows, and in"
                                        + " the first batch this array had as many rows",
                                k, shape, batch));
            }
            NDArray part =
                    divided[k]
                            ? Torch.narrow(array, 0, begin, end - begin)
                            : Torch.alias(of.manager, array).stopGradient();
            if (!first && (!divided[k] || of.rows == 0)) {
                try (NDArray shared = part) {
                    part = shared.duplicate();
                }
            }
            part = moved(part, of.manager);
            part.setName(array.getName());
            rows.add(part);
        }
        return rows;
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
                int output = k;
                int dimension = dimension(k);
                boolean divided = dimension != Layout.NONE;
                int most =
                        parts.stream()
                                .mapToInt(
                                        part -> part.predictions.get(output).getShape().dimension())
                                .max()
                                .orElse(0);
                NDArray joined = null;
                for (Part part : parts) {
                    if (part.rows == 0) {
                        continue;
                    }
                    NDArray own = part.predictions.get(k);
                    if (!own.getDevice().equals(device)) {
                        own = moved(Torch.alias(own.getManager(), own), temporary);
                    }
                    Shape shape = own.getShape();
                    boolean squeezed = shape.dimension() < most || most == 0 || shape.get(0) != 1;
                    if (dimension == 0 && part.rows == 1 && squeezed) {
                        own = own.expandDims(0); // BertBlock drops the dimension of a single row.
                    }
                    rows.add(own);
                    if (!divided && !shape.equals(rows.head().getShape())) {
                        throw SplitCheck.refusal(
                                parts.size(),
                                String.format(
                                        "prediction %d without the batch has shape %s on one rank"
                                                + " and %s on another",
                                        k, rows.head().getShape(), shape));
                    }
                    if (!divided && own.getDataType().isFloating()) {
                        NDArray share = own.mul((float) part.rows / batch);
                        joined = joined == null ? share : joined.add(share);
                    }
                }
                if (divided) {
                    joined = NDArrays.concat(rows, dimension);
                } else if (joined == null) {
                    joined = rows.get(0).duplicate();
                }
                joined.attach(owner);
                joined.setName(first.get(k).getName());
                whole.add(joined);
            }
        }
        return whole;
    }

    /** Returns which dimension of a prediction is the batch; {@code NONE}: ranks are averaged. */
    private int dimension(int prediction) {
        if (layout.outputs() != null) {
            return layout.outputs()[prediction];
        }
        boolean divided =
                parts.stream()
                        .filter(part -> part.rows > 0)
                        .allMatch(
                                part -> {
                                    Shape shape = part.predictions.get(prediction).getShape();
                                    return shape.dimension() > 0 && shape.get(0) == part.rows;
                                });
        return divided ? 0 : Layout.NONE;
    }

    /** Records the predictions that require a gradient; returns whether there are any. */
    private boolean record(
            GradientScope scope, NDList data, List<Integer> differentiated, NDList whole) {
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
                differentiated.stream().map(data::get).toList(),
                List.of(),
                recorded.stream().map(whole::get).toList(),
                (inputs, kept, gradients) -> {
                    try {
                        goBack(recorded, gradients);
                        NDManager owner = gradients.get(0).getManager();
                        return differentiated.stream().map(k -> ofInput(k, owner)).toList();
                    } finally {
                        close();
                    }
                });
        return true;
    }

    private void goBack(List<Integer> recorded, List<NDArray> gradients) {
        List<List<NDArray>> own = new ArrayList<>();
        long row = 0;
        for (Part part : parts) {
            List<NDArray> of = new ArrayList<>();
            for (int k = 0; k < gradients.size(); k++) {
                NDArray gradient = gradients.get(k);
                int dimension = dimension(recorded.get(k));
                if (part.rows == 0) {
                    of.add(part.predictions.get(recorded.get(k)).zerosLike());
                } else if (dimension != Layout.NONE) {
                    Shape shape = part.predictions.get(recorded.get(k)).getShape();
                    NDArray rows = Torch.narrow(gradient, dimension, row, part.rows).reshape(shape);
                    of.add(moved(rows, part.manager));
                } else {
                    of.add(moved(gradient.mul((float) part.rows / batch), part.manager));
                }
            }
            own.add(of);
            row += part.rows;
        }
        workers.run(
                parts.size(),
                rank -> {
                    Part part = parts.get(rank);
                    List<NDArray> targets = recorded.stream().map(part.predictions::get).toList();
                    part.scope.within(
                            () -> {
                                part.scope.backward(targets, own.get(rank));
                                return null;
                            });
                    ended.accept(rank);
                });
    }

    /** Joins the gradients of the ranks' parts of an input. */
    private NDArray ofInput(int input, NDManager owner) {
        NDList own = new NDList();
        NDArray sum = null;
        for (Part part : parts) {
            NDArray gradient = moved(part.data.get(input).getGradient(), owner);
            sum = sum == null ? gradient : layout.data()[input] ? sum : sum.add(gradient);
            if (part.rows > 0) {
                own.add(gradient);
            }
        }
        return layout.data()[input] ? NDArrays.concat(own, 0) : sum;
    }

    @Override
    public void close() {
        if (!closed) {
            closed = true;
            parts.forEach(Part::close);
        }
    }
}

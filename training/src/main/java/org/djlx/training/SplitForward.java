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
import java.util.function.Supplier;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.SplitCheck.Layout;
import org.djlx.training.internal.Ranks;
import org.djlx.training.internal.Replica;

/**
 * One forward pass in which several ranks compute parts of a batch. The caller's autograd sees one
 * operator whose outputs are the predictions. Each rank's autograd records the graph from its part
 * of the batch to its part of the predictions.
 */
final class SplitForward implements AutoCloseable {

    interface Body {
        NDList forward(Replica replica, NDList data, NDList labels);
    }

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

    private final Ranks ranks;
    private final BackwardPasses backward;
    private Layout layout;
    private final long batch;
    private final List<Part> parts = new ArrayList<>();
    private boolean closed;

    /**
     * {@code layout} says which arrays have the batch, of {@code batch} rows; its outputs may be
     * unknown.
     */
    SplitForward(Ranks ranks, BackwardPasses backward, Layout layout, long batch) {
        this.ranks = ranks;
        this.backward = backward;
        this.layout = layout;
        this.batch = batch;
    }

    /** How ranks take part in a pass. */
    enum Meeting {
        /** The block runs no collectives; a rank without rows has no part. */
        NONE,
        /** As {@link #NONE}, but a rank without rows computes one that counts for nothing. */
        ALL_RANKS,
        /** As {@link #ALL_RANKS}, and the block runs collectives, as with PyTorch's Join. */
        COLLECTIVES
    }

    /**
     * Computes a batch's predictions. A recorded pass is added to the backward passes, which close
     * it. {@code expected} are the shapes of one rank's predictions for the whole batch, null if
     * they are not known; labels and scope may be null.
     */
    NDList run(
            NDList data,
            NDList labels,
            Shape[] expected,
            GradientScope scope,
            Meeting meeting,
            Body body) {
        List<Integer> inputs = new ArrayList<>(); // that require a gradient
        for (int k = 0; scope != null && k < data.size(); k++) {
            if (NoGradient.isRecorded(data.get(k))) {
                inputs.add(k);
            }
        }
        boolean kept = false;
        try {
            NoGradient.run(() -> split(data, labels, meeting != Meeting.NONE));
            parts.forEach(part -> inputs.forEach(k -> part.data.get(k).setRequiresGradient(true)));
            ranks.workers()
                    .run(
                            parts.size(),
                            meeting != Meeting.COLLECTIVES,
                            rank -> compute(ranks.get(rank), parts.get(rank), scope, body));
            List<Shape[]> shapes = parts.stream().map(p -> p.predictions.getShapes()).toList();
            long[] rows = parts.stream().mapToLong(part -> part.rows).toArray();
            layout.requirePredictions(shapes.get(0).length);
            layout = expected == null ? layout : layout.withOutputs(expected, shapes, rows);
            NDManager owner = data.head().getManager();
            NDList whole = NoGradient.get(() -> join(owner));
            if (scope != null && record(scope, data, inputs, whole)) {
                kept = true;
                backward.add(this);
            }
            return whole;
        } finally {
            if (!kept) {
                close();
            }
        }
    }

    /** Returns which arrays have the batch; its outputs are null if no shapes were expected. */
    Layout layout() {
        return layout;
    }

    private static void compute(Replica replica, Part part, GradientScope scope, Body body) {
        replica.store().setIdle(part.rows == 0);
        Supplier<NDList> pass = () -> body.forward(replica, part.data, part.labels);
        part.predictions = scope == null ? NoGradient.get(pass) : part.scope.within(pass);
    }

    private void split(NDList data, NDList labels, boolean all) {
        NDManager parent = data.head().getManager();
        int most = ranks.replicas().size();
        int busy = (int) Math.min(most, batch);
        int count = all ? most : busy;
        for (int rank = 0; rank < count; rank++) {
            long begin = rank < busy ? batch * rank / busy : 0;
            long end = rank < busy ? batch * (rank + 1) / busy : 1;
            Part part = new Part(parent.newSubManager(ranks.get(rank).device()));
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

    private NDList join(NDManager owner) {
        Device device = ranks.first().device();
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
                    if (!divided && Torch.scalarType(own).isFloatingPoint()) {
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
                    of.add(Torch.zerosLike(part.predictions.get(recorded.get(k))));
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
        ranks.workers()
                .run(
                        parts.size(),
                        false,
                        rank -> {
                            Part part = parts.get(rank);
                            List<NDArray> targets =
                                    recorded.stream().map(part.predictions::get).toList();
                            part.scope.within(
                                    () -> {
                                        part.scope.backward(targets, own.get(rank));
                                        return null;
                                    });
                            backward.end(ranks.get(rank));
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

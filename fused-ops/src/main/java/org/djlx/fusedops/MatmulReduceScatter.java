/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.collectives.OpType;
import org.djlx.collectives.Operation.Agreed;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.fusedops.internal.Pipeline;
import org.djlx.nativeops.NoGradient;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * One call of {@link FusedOps#matmulReduceScatter}.
 *
 * <p>With the scatter dimension moved to the front, the part for a rank is a block of A's rows
 * times B; or, if the product's last dimension is scattered, A times a block of B's columns.
 */
final class MatmulReduceScatter {

    private static final OpType TYPE = new OpType("matmulReduceScatter");

    private final ProcessGroup group;
    private final NDArray a;
    private final NDArray b;
    private final ReduceOp op;
    private final ScalarType type;
    private final int scatterDim;
    private final int lastDim;
    private final int worldSize;
    private final Shape product;

    MatmulReduceScatter(NDArray a, NDArray b, ReduceOp op, int scatterDim, ProcessGroup group) {
        Arguments arguments = new Arguments(TYPE.toString());
        arguments.checkNotNull("the group", group);
        this.group = group;
        this.worldSize = group.worldSize();
        this.type = arguments.checkA("A", a);
        int dimensions = a.getShape().dimension();
        this.lastDim = dimensions - 1;
        arguments.checkB("B", b, a, type, a.getShape().get(lastDim));
        arguments.checkSum(op);
        this.scatterDim = arguments.dimension("scatterDim", scatterDim, dimensions);
        this.product = Axes.with(a.getShape(), lastDim, b.getShape().get(1));
        long size = product.get(this.scatterDim);
        if (size % worldSize != 0) {
            throw arguments.wrong(
                    "dimension %d of the product %s is not divisible by the world size %d",
                    scatterDim, product, worldSize);
        }
        this.a = a;
        this.b = b;
        this.op = op;
    }

    NDArray run() {
        FallbackReason reason = fallbackReason();
        UsageCounter.count(reason);
        try (NDManager temporary = a.getManager().newSubManager()) {
            return NoGradient.get(() -> reason == null ? pipelined(temporary) : plain(temporary));
        }
    }

    /** The shape of a rank's part of the product. */
    private Shape part() {
        return Axes.with(product, scatterDim, product.get(scatterDim) / worldSize);
    }

    private FallbackReason fallbackReason() {
        if (FusedOps.isFallbackForced()) {
            return FallbackReason.FORCED;
        }
        if (group.p2pBuffers().isEmpty()) {
            return FallbackReason.NO_P2P_BUFFERS;
        }
        return Pipeline.fits(group, part(), type) ? null : FallbackReason.BUFFER_TOO_SMALL;
    }

    private NDArray pipelined(NDManager temporary) {
        NDArray view = Torch.alias(temporary, a);
        boolean columns = scatterDim == lastDim;
        NDArray front = columns ? view : Axes.move(view, scatterDim, 0);
        NDArray left = Axes.matrix(Axes.contiguous(temporary, front, type));
        NDArray right = Torch.alias(temporary, b);
        long rowsOfPart = left.getShape().get(0) / (columns ? 1 : worldSize);
        long columnsOfPart = product.get(lastDim) / (columns ? worldSize : 1);
        NDArray result = Torch.empty(a.getManager(), new Shape(rowsOfPart, columnsOfPart), type);
        Agreed agreed = new Agreed(type, product.getShape(), op, scatterDim);
        FusedOps.complete(
                group,
                group.execute(
                        TYPE,
                        agreed,
                        operation ->
                                new Pipeline(group, operation, temporary)
                                        .produceAndScatter(
                                                result,
                                                type,
                                                op,
                                                (stream, rank, out) ->
                                                        stream.matmul(
                                                                out,
                                                                columns
                                                                        ? left
                                                                        : block(
                                                                                left,
                                                                                rank,
                                                                                rowsOfPart),
                                                                columns
                                                                        ? columnBlock(
                                                                                right,
                                                                                rank,
                                                                                columnsOfPart)
                                                                        : right))));
        return columns ? Axes.detached(result, r -> r.reshape(part())) : restore(result);
    }

    /** The rows for a rank. */
    private static NDArray block(NDArray matrix, int rank, long rows) {
        return matrix.get(rank * rows + ":" + (rank + 1) * rows);
    }

    /** The columns for a rank. */
    private static NDArray columnBlock(NDArray matrix, int rank, long columns) {
        return matrix.get(":, " + rank * columns + ":" + (rank + 1) * columns);
    }

    /** Gives the result its shape and brings the scatter dimension back to its place. */
    private NDArray restore(NDArray result) {
        Shape front = Axes.move(part(), scatterDim, 0);
        return Axes.detached(result, r -> Axes.move(r.reshape(front), 0, scatterDim));
    }

    private NDArray plain(NDManager temporary) {
        NDArray view = Torch.alias(temporary, a);
        NDArray matrix = Axes.matrix(Axes.contiguous(temporary, view, type));
        NDArray whole =
                Torch.empty(
                        temporary, new Shape(matrix.getShape().get(0), product.get(lastDim)), type);
        Torch.mmOut(whole, matrix, b);
        NDArray front = Axes.move(whole.reshape(product), scatterDim, 0);
        NDArray result = Torch.empty(a.getManager(), Axes.move(part(), scatterDim, 0), type);
        FusedOps.complete(group, group.reduceScatterTensor(result, front, op));
        return restore(result);
    }
}

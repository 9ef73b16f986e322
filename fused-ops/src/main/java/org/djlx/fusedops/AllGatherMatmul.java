/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.OpType;
import org.djlx.collectives.Operation.Agreed;
import org.djlx.collectives.ProcessGroup;
import org.djlx.fusedops.internal.Pipeline;
import org.djlx.nativeops.NoGradient;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * One call of {@link FusedOps#allGatherMatmul}.
 *
 * <p>With the gather dimension moved to the front, the gathered A is the ranks' shards one after
 * the other, and so is each product: the rows that a shard yields depend on no other shard.
 */
final class AllGatherMatmul {

    private static final OpType TYPE = new OpType("allGatherMatmul");

    private final ProcessGroup group;
    private final NDArray aShard;
    private final List<NDArray> bs;
    private final boolean returnGathered;
    private final ScalarType type;
    private final int gatherDim;
    private final int lastDim;
    private final int worldSize;

    AllGatherMatmul(
            NDArray aShard,
            List<NDArray> bs,
            int gatherDim,
            ProcessGroup group,
            boolean returnGathered) {
        Arguments arguments = new Arguments(TYPE.toString());
        arguments.checkNotNull("the group", group);
        this.group = group;
        this.worldSize = group.worldSize();
        this.type = arguments.checkA("aShard", aShard);
        this.aShard = aShard;
        int dimensions = aShard.getShape().dimension();
        this.lastDim = dimensions - 1;
        this.gatherDim = arguments.dimension("gatherDim", gatherDim, dimensions);
        if (bs == null || bs.isEmpty()) {
            throw arguments.wrong("there is no B to multiply with");
        }
        long inner = gatheredShape().get(lastDim);
        for (int i = 0; i < bs.size(); i++) {
            arguments.checkB(
                    bs.size() == 1 ? "B" : "B number " + i, bs.get(i), aShard, type, inner);
        }
        this.bs = List.copyOf(bs);
        this.returnGathered = returnGathered;
    }

    private Shape gatheredShape() {
        Shape shape = aShard.getShape();
        return Axes.with(shape, gatherDim, shape.get(gatherDim) * worldSize);
    }

    GatheredMatmul run() {
        FallbackReason reason = fallbackReason();
        UsageCounter.count(reason);
        try (NDManager temporary = aShard.getManager().newSubManager()) {
            return NoGradient.get(() -> reason == null ? pipelined(temporary) : plain(temporary));
        }
    }

    private FallbackReason fallbackReason() {
        if (FusedOps.isFallbackForced()) {
            return FallbackReason.FORCED;
        }
        if (gatherDim == lastDim) {
            return FallbackReason.GATHER_ALONG_LAST_DIMENSION;
        }
        if (group.p2pBuffers().isEmpty()) {
            return FallbackReason.NO_P2P_BUFFERS;
        }
        return Pipeline.fits(group, aShard.getShape(), type)
                ? null
                : FallbackReason.BUFFER_TOO_SMALL;
    }

    private GatheredMatmul pipelined(NDManager temporary) {
        NDManager manager = aShard.getManager();
        NDArray view = Torch.alias(temporary, aShard);
        NDArray front = Axes.contiguous(temporary, Axes.move(view, gatherDim, 0), type);
        NDArray shard = Axes.matrix(front);
        long rows = shard.getShape().get(0);

        // One block of rows for each rank.
        NDArray gathered =
                returnGathered
                        ? Torch.empty(manager, Axes.stacked(worldSize, shard.getShape()), type)
                        : null;
        List<NDArray> products = new ArrayList<>();
        for (NDArray b : bs) {
            products.add(
                    Torch.empty(manager, new Shape(worldSize, rows, b.getShape().get(1)), type));
        }
        Agreed agreed = new Agreed(type, Torch.sizes(aShard), null, gatherDim);
        FusedOps.complete(
                group,
                group.execute(
                        TYPE,
                        agreed,
                        operation ->
                                new Pipeline(group, operation, temporary)
                                        .gatherAndConsume(
                                                shard,
                                                type,
                                                (stream, rank, part) -> {
                                                    for (int i = 0; i < bs.size(); i++) {
                                                        NDArray out = products.get(i).get(rank);
                                                        out.attach(temporary);
                                                        stream.matmul(out, part, bs.get(i));
                                                    }
                                                    if (returnGathered) {
                                                        NDArray block = gathered.get(rank);
                                                        block.attach(temporary);
                                                        stream.copy(block, part);
                                                    }
                                                })));
        List<NDArray> outputs = new ArrayList<>();
        Shape shape = Axes.move(gatheredShape(), gatherDim, 0);
        for (int i = 0; i < bs.size(); i++) {
            Shape full = Axes.with(shape, lastDim, bs.get(i).getShape().get(1));
            outputs.add(restore(products.get(i), full));
        }
        return new GatheredMatmul(returnGathered ? restore(gathered, shape) : null, outputs);
    }

    /** Gives blocks of rows their shape and brings the gather dimension back to its place. */
    private NDArray restore(NDArray blocks, Shape shape) {
        return Axes.detached(blocks, b -> Axes.move(b.reshape(shape), 0, gatherDim));
    }

    private GatheredMatmul plain(NDManager temporary) {
        NDManager manager = aShard.getManager();
        NDArray stacked = Torch.empty(temporary, Axes.stacked(worldSize, aShard.getShape()), type);
        FusedOps.complete(group, group.allGatherIntoTensor(stacked, aShard));
        NDArray inOrder = Axes.move(stacked, 0, gatherDim);
        NDArray gathered = Axes.contiguous(temporary, inOrder, type).reshape(gatheredShape());
        NDArray matrix = Axes.matrix(gathered);
        List<NDArray> outputs = new ArrayList<>();
        for (NDArray b : bs) {
            long columns = b.getShape().get(1);
            NDArray out = Torch.empty(manager, new Shape(matrix.getShape().get(0), columns), type);
            Torch.mmOut(out, matrix, b);
            Shape full = Axes.with(gatheredShape(), lastDim, columns);
            outputs.add(Axes.detached(out, o -> o.reshape(full)));
        }
        return new GatheredMatmul(returnGathered ? Torch.alias(manager, gathered) : null, outputs);
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.allgathermatmul;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.path.Axes;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.OperationScope;
import org.djlx.fusedops.internal.path.Pipeline;
import org.djlx.fusedops.internal.path.Slots;
import org.djlx.fusedops.kernel.Compute;
import org.djlx.fusedops.kernel.Product;
import org.djlx.nativeops.cuda.MatrixLayout;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * All-gather along the last dimension + matmul: multiplies each rank's shard with its block of B's
 * rows, and adds the products in rank order.
 */
final class GatherLastDim extends P2pGatherPath {

    private final Compute compute;
    private final Pipeline pipeline;
    private final Product[] products;
    private final Compute.Reduction[] sums;
    private final long[] productBytes; // from one rank's product to the next
    private final long[] blockBytes; // from one rank's block of B to the next

    GatherLastDim(AllGatherMatmul operator, ProcessGroup group, Operands operands, Choice choice) {
        super(operator, group, choice, InPlace.of(operator, operands));
        compute = GroupPlans.of(group).compute();
        pipeline = GroupPlans.of(group).pipeline(group);
        int count = inPlace.layouts().length;
        products = new Product[count];
        sums = new Compute.Reduction[count];
        productBytes = new long[count];
        blockBytes = new long[count];
        ScalarType type = operator.type();
        long rows = operator.rows();
        long inner = operator.inner();
        for (int i = 0; i < count; i++) {
            MatrixLayout b = inPlace.layouts()[i];
            long columns = operator.columns().get(i);
            products[i] =
                    compute.product(
                            type,
                            MatrixLayout.contiguous(rows, columns),
                            MatrixLayout.contiguous(rows, inner),
                            new MatrixLayout(inner, columns, b.rowStride(), b.columnStride()));
            sums[i] = compute.reduction(type, rows * columns, operator.worldSize(), ReduceOp.SUM);
            productBytes[i] = Slots.align(rows * columns * type.itemSize());
            blockBytes[i] = inner * b.rowStride() * type.itemSize();
        }
    }

    @Override
    protected void enqueue(Operation operation, Call call) {
        compute.begin();
        try (OperationScope scope = plans.scope()) {
            enqueue(operation, call, scope);
        }
    }

    private void enqueue(Operation operation, Call call, OperationScope scope) {
        int count = products.length;
        NDArray[] used = Arrays.copyOf(call.used(), call.used().length + count + 1);
        long[] parts = new long[count];
        for (int i = 0; i < count; i++) {
            Shape shape = new Shape(operator.worldSize() * productBytes[i]);
            NDArray ofRanks = scope.empty(shape, ScalarType.UINT8);
            parts[i] = Torch.dataPointer(ofRanks);
            used[call.used().length + i] = ofRanks;
        }
        long stackedRanks = returnsA() || slots.hasRounds() ? operator.worldSize() : 0;
        NDArray stacked =
                scope.empty(Axes.stacked(stackedRanks, operator.shard()), operator.type());
        used[used.length - 1] = stacked;
        long shards = Torch.dataPointer(stacked);
        pipeline.gatherAndConsume(
                operation,
                slots,
                call.shard(),
                partBytes,
                shards,
                (stream, rank, part) -> {
                    for (int i = 0; i < count; i++) {
                        long b = call.bs()[i] + rank * blockBytes[i];
                        products[i].run(parts[i] + rank * productBytes[i], part, b, null);
                    }
                    long place = shards + rank * partBytes;
                    if (returnsA() && place != part) {
                        stream.copy(place, part, partBytes);
                    }
                },
                used);
        for (int i = 0; i < count; i++) {
            sums[i].run(call.outs()[i], parts[i], productBytes[i]);
        }
        if (returnsA()) {
            NDArray gathered = scope.alias(call.gatheredA());
            NoGradient.run(() -> unstack(scope, gathered, stacked));
        }
    }

    /** Copies shards, one after the other, side by side. */
    private void unstack(OperationScope scope, NDArray gathered, NDArray stacked) {
        long ranks = operator.worldSize();
        NDArray rows = scope.add(gathered.reshape(operator.rows(), ranks, operator.inner()));
        NDArray shards = scope.add(stacked.reshape(ranks, operator.rows(), operator.inner()));
        Torch.copy(rows, scope.add(shards.transpose(1, 0, 2)));
    }

    @Override
    public void close() {
        for (Product product : products) {
            product.close();
        }
    }
}

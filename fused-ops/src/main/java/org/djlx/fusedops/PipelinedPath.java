// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.p2p.P2pStream;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.Compute;
import org.djlx.fusedops.internal.Pipeline;
import org.djlx.fusedops.internal.Product;
import org.djlx.nativeops.torch.Torch;

/** The path PIPELINED: matmuls of parts, overlapped with copies to and from other ranks. */
final class PipelinedPath {

    private PipelinedPath() {}

    /** All-gather + matmul. */
    static final class Gather extends P2pGatherPath {

        private final Compute compute;
        private final Pipeline pipeline;
        private final RowProducts products;

        Gather(AllGatherMatmul operator, ProcessGroup group, Operands operands, Choice choice) {
            super(operator, group, choice, InPlace.of(operator, operands));
            compute = GroupPlans.of(group).compute();
            pipeline = GroupPlans.of(group).pipeline(group);
            products = new RowProducts(operator, compute, inPlace, operator.rows());
        }

        @Override
        void enqueue(Operation operation, Call call) {
            compute.begin();
            pipeline.gatherAndConsume(
                    operation,
                    slots,
                    call.shard(),
                    shardBytes,
                    (stream, rank, part) -> {
                        products.multiplyShard(call, part, rank);
                        if (returnsA()) {
                            stream.copy(call.gathered() + rank * shardBytes, part, shardBytes);
                        }
                    },
                    call.used());
        }

        @Override
        public void close() {
            products.close();
        }
    }

    /** Matmul + reduce-scatter. */
    static final class Scatter extends P2pScatterPath {

        private static final int MAX_STAGING = 2; // one is computed while the other is sent

        private final Compute compute;
        private final Pipeline pipeline;
        private final Product product;
        private final Compute.Reduction reduction;
        private final long blockBytes; // from one rank's block of A or B to the next
        private final Shape stagingShape;

        Scatter(
                MatmulReduceScatter operator,
                ProcessGroup group,
                Operands operands,
                Choice choice) {
            super(operator, group, choice, InPlace.of(operator, operands));
            compute = GroupPlans.of(group).compute();
            pipeline = GroupPlans.of(group).pipeline(group);
            long rows = operator.partRows();
            long columns = operator.partColumns();
            product = inPlace.product(operator, compute, rows, columns);
            reduction =
                    compute.reduction(
                            operator.typeOfProduct(),
                            rows * columns,
                            operator.worldSize(),
                            operator.op());
            long elements =
                    operator.isByRows()
                            ? rows * inPlace.left().rowStride()
                            : columns * inPlace.right().columnStride();
            blockBytes = elements * operator.type().itemSize();
            stagingShape = new Shape(rows * columns);
        }

        @Override
        NDArray[] staging(OperationScope scope, NDManager manager) {
            NDArray[] arrays = new NDArray[Math.min(MAX_STAGING, operator.worldSize() - 1)];
            for (int i = 0; i < arrays.length; i++) {
                arrays[i] = scope.add(Torch.empty(manager, stagingShape, operator.typeOfProduct()));
            }
            return arrays;
        }

        @Override
        void enqueue(Operation operation, Call call) {
            compute.begin();
            if (operator.worldSize() == 1) {
                product.run(call.result(), call.a(), call.b(), call.scales());
                try (P2pStream current = slots.buffers().currentStream(operation)) {
                    current.keepAlive(call.used());
                }
                return;
            }
            pipeline.produceAndScatter(
                    operation,
                    slots,
                    call.staging(),
                    operator.partBytes(),
                    (rank, out) -> {
                        long offset = rank * blockBytes;
                        product.run(
                                out,
                                operator.isByRows() ? call.a() + offset : call.a(),
                                operator.isByRows() ? call.b() : call.b() + offset,
                                Product.Scales.fromRow(call.scales(), rank * operator.partRows()));
                    },
                    (first, distance) -> reduction.run(call.result(), first, distance),
                    call.used());
        }

        @Override
        public void close() {
            product.close();
        }
    }
}

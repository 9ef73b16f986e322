// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.p2p.P2pStream;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.Compute;
import org.djlx.fusedops.internal.Pipeline;
import org.djlx.fusedops.internal.Product;
import org.djlx.fusedops.internal.Slots;
import org.djlx.nativeops.cuda.MatrixLayout;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorTemplate;
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
        TensorTemplate.Created workspace(OperationScope scope, TensorTemplate.Created none) {
            return slots.hasRounds() && operator.worldSize() > 1 ? scope.create(gathered) : none;
        }

        @Override
        void multiplyOnce(Call call) {
            products.multiplyShard(call, call.shard(), 0);
        }

        @Override
        void enqueue(Operation operation, Call call) {
            compute.begin();
            loadOnce(call);
            pipeline.gatherAndConsume(
                    operation,
                    slots,
                    call.shard(),
                    partBytes,
                    call.gathered(),
                    (stream, rank, part) -> {
                        products.multiplyShard(call, part, rank);
                        long place = call.gathered() + rank * partBytes;
                        if (returnsA() && place != part) {
                            stream.copy(place, part, partBytes);
                        }
                    },
                    call.used());
        }

        @Override
        public void close() {
            products.close();
        }
    }

    /**
     * All-gather along the last dimension + matmul: multiplies each rank's shard with its block of
     * B's rows, and adds the products in rank order.
     */
    static final class LastGather extends P2pGatherPath {

        private final Compute compute;
        private final Pipeline pipeline;
        private final Product[] products;
        private final Compute.Reduction[] sums;
        private final long[] productBytes; // from one rank's product to the next
        private final long[] blockBytes; // from one rank's block of B to the next

        LastGather(AllGatherMatmul operator, ProcessGroup group, Operands operands, Choice choice) {
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
                sums[i] =
                        compute.reduction(type, rows * columns, operator.worldSize(), ReduceOp.SUM);
                productBytes[i] = Slots.align(rows * columns * type.itemSize());
                blockBytes[i] = inner * b.rowStride() * type.itemSize();
            }
        }

        @Override
        void enqueue(Operation operation, Call call) {
            compute.begin();
            OperationScope scope = plans.scope();
            try {
                enqueue(operation, call, scope);
            } finally {
                scope.close();
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

    /** Matmul + reduce-scatter. */
    static final class Scatter extends P2pScatterPath {

        private final Compute compute;
        private final Pipeline pipeline;
        private final Product product;
        private final Compute.Reduction reduction;
        private final long blockBytes; // from one rank's block of A or B to the next
        private final long rows; // of a part
        private final TensorTemplate[] staging;

        Scatter(
                MatmulReduceScatter operator,
                ProcessGroup group,
                Operands operands,
                Choice choice) {
            super(operator, group, choice, InPlace.of(operator, operands));
            compute = GroupPlans.of(group).compute();
            pipeline = GroupPlans.of(group).pipeline(group);
            rows = operator.partRows();
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
            staging = staging(group, new Shape(rows * columns));
        }

        private TensorTemplate[] staging(ProcessGroup group, Shape part) {
            int count = Pipeline.stagingBuffers(operator.worldSize());
            TensorTemplate[] templates =
                    new TensorTemplate[count > 0 && slots.hasRounds() ? count + 1 : count];
            for (int i = 0; i < templates.length; i++) {
                templates[i] =
                        i < count
                                ? new TensorTemplate(group.device(), part, operator.typeOfProduct())
                                : new TensorTemplate(
                                        group.device(), slots.receivedShape(), ScalarType.UINT8);
            }
            return templates;
        }

        @Override
        TensorTemplate.Created[] staging(OperationScope scope) {
            return Arrays.stream(staging).map(scope::create).toArray(TensorTemplate.Created[]::new);
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
                    partBytes,
                    call.staging()[call.staging().length - 1],
                    (rank, out) -> {
                        long offset = rank * blockBytes;
                        product.run(
                                out,
                                operator.isByRows() ? call.a() + offset : call.a(),
                                operator.isByRows() ? call.b() : call.b() + offset,
                                Product.Scales.fromRow(call.scales(), rank * rows));
                    },
                    (stream, first, distance) -> reduction.run(call.result(), first, distance),
                    call.used());
        }

        @Override
        public void close() {
            product.close();
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.types.Shape;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.internal.Compute;
import org.djlx.fusedops.internal.GatheredExchange;
import org.djlx.fusedops.internal.Pipeline;
import org.djlx.fusedops.internal.Product;
import org.djlx.nativeops.torch.TensorTemplate;

/**
 * The path GATHERED: one matmul, with all communication before or after it. Kernels move the data
 * between GPUs. On the CPU, ranks copy the data into each other's P2P buffers.
 */
final class GatheredPath {

    private GatheredPath() {}

    /** All-gather by a kernel, then matmul. */
    static final class Gather extends P2pGatherPath {

        private final Compute compute;
        private final GatheredExchange exchange;
        private final RowProducts products;

        Gather(AllGatherMatmul operator, ProcessGroup group, Operands operands, Choice choice) {
            super(operator, group, choice, inPlace(operator, operands));
            compute = GroupPlans.of(group).compute();
            exchange = compute.gatheredExchange();
            long rows = operator.worldSize() * operator.rows();
            products = new RowProducts(operator, compute, inPlace, rows);
        }

        private static InPlace inPlace(AllGatherMatmul operator, Operands operands) {
            InPlace given = InPlace.of(operator, operands);
            boolean shard = given.shard() && GatheredExchange.isUsable(operands.address(0));
            return new InPlace(shard, given.bs(), given.layouts());
        }

        @Override
        TensorTemplate.Created workspace(OperationScope scope, TensorTemplate.Created none) {
            return scope.create(gathered);
        }

        @Override
        void enqueue(Operation operation, Call call) {
            compute.begin();
            loadOnce(call);
            exchange.gather(
                    operation,
                    slots.buffers(),
                    call.shard(),
                    partBytes,
                    call.gathered(),
                    call.used());
            products.multiply(call, call.gathered());
        }

        /**
         * Multiplies before the first gather. cuBLAS loads a kernel at its first product. After a
         * gather, the load would deadlock: it waits for the gather, the gather waits for other
         * ranks, and ranks that share this GPU wait for the load.
         */
        @Override
        void multiplyOnce(Call call) {
            products.multiply(call, call.gathered());
        }

        @Override
        public void close() {
            products.close();
        }
    }

    /**
     * All-gather into this rank's P2P buffer, then matmul from there: on the CPU, and on GPUs for
     * the path PIPELINED with small shards.
     */
    static final class BufferGather extends P2pGatherPath {

        private final Compute compute;
        private final Pipeline pipeline;
        private final RowProducts products;

        BufferGather(
                AllGatherMatmul operator, ProcessGroup group, Operands operands, Choice choice) {
            super(operator, group, choice, InPlace.of(operator, operands));
            compute = GroupPlans.of(group).compute();
            pipeline = GroupPlans.of(group).pipeline(group);
            long rows = operator.worldSize() * operator.rows();
            products = new RowProducts(operator, compute, inPlace, rows);
        }

        @Override
        void enqueue(Operation operation, Call call) {
            compute.begin();
            loadOnce(call);
            pipeline.gatherThenConsume(
                    operation,
                    slots,
                    call.shard(),
                    partBytes,
                    (stream, shards) -> {
                        products.multiply(call, shards);
                        if (returnsA()) {
                            stream.copy(call.gathered(), shards, operator.worldSize() * partBytes);
                        }
                    },
                    call.used());
        }

        /** On a GPU, multiplies what is in the buffer. */
        @Override
        void multiplyOnce(Call call) {
            if (choice.path() == Path.PIPELINED) {
                products.multiply(call, slots.buffers().address(slots.buffers().rank(), 0));
            }
        }

        @Override
        public void close() {
            products.close();
        }
    }

    /** One matmul into staging memory, then its reduce-scatter. */
    private abstract static class StagedScatter extends P2pScatterPath {

        final Compute compute;
        private final Product product;
        private final TensorTemplate staging;

        StagedScatter(
                MatmulReduceScatter operator,
                ProcessGroup group,
                Operands operands,
                Choice choice) {
            super(operator, group, choice, InPlace.of(operator, operands));
            compute = GroupPlans.of(group).compute();
            long columns = operator.partColumns();
            product = inPlace.product(operator, compute, operator.rows(), columns);
            staging =
                    new TensorTemplate(
                            group.device(),
                            new Shape(operator.rows() * columns),
                            operator.typeOfProduct());
        }

        @Override
        final TensorTemplate.Created[] staging(OperationScope scope) {
            return new TensorTemplate.Created[] {scope.create(staging)};
        }

        @Override
        final void enqueue(Operation operation, Call call) {
            compute.begin();
            product.run(call.staging()[0], call.a(), call.b(), call.scales());
            scatter(operation, call);
        }

        abstract void scatter(Operation operation, Call call);

        @Override
        public final void close() {
            product.close();
        }
    }

    /** Matmul, then reduce-scatter by a kernel. */
    static final class Scatter extends StagedScatter {

        private final GatheredExchange exchange;

        Scatter(
                MatmulReduceScatter operator,
                ProcessGroup group,
                Operands operands,
                Choice choice) {
            super(operator, group, operands, choice);
            exchange = compute.gatheredExchange();
        }

        @Override
        void scatter(Operation operation, Call call) {
            exchange.scatter(
                    operation,
                    slots.buffers(),
                    operator.typeOfProduct(),
                    call.staging()[0],
                    partBytes,
                    call.result(),
                    operator.op(),
                    call.used());
        }
    }

    /** Matmul, then reduce-scatter through the P2P buffers. */
    static final class BufferScatter extends StagedScatter {

        private final Pipeline pipeline;
        private final Compute.Reduction reduction;

        BufferScatter(
                MatmulReduceScatter operator,
                ProcessGroup group,
                Operands operands,
                Choice choice) {
            super(operator, group, operands, choice);
            pipeline = GroupPlans.of(group).pipeline(group);
            long count = operator.partRows() * operator.partColumns();
            reduction =
                    compute.reduction(
                            operator.typeOfProduct(), count, operator.worldSize(), operator.op());
        }

        @Override
        void scatter(Operation operation, Call call) {
            pipeline.scatterAndReduce(
                    operation,
                    slots,
                    call.staging()[0],
                    partBytes,
                    0,
                    (stream, first, distance) -> reduction.run(call.result(), first, distance),
                    call.used());
        }
    }
}

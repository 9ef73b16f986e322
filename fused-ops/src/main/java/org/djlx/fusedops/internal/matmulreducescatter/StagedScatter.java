// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.matmulreducescatter;

import ai.djl.ndarray.types.Shape;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.path.GatheredExchange;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.OperationScope;
import org.djlx.fusedops.internal.path.Pipeline;
import org.djlx.fusedops.kernel.Compute;
import org.djlx.fusedops.kernel.Product;
import org.djlx.nativeops.torch.TensorTemplate;

/** One matmul into staging memory, then its reduce-scatter, by a kernel or by copies. */
final class StagedScatter extends P2pScatterPath {

    private final Compute compute;
    private final Product product;
    private final TensorTemplate staging;
    private final Exchange exchange;

    private interface Exchange {
        void run(Operation operation, Call call);
    }

    StagedScatter(
            MatmulReduceScatter operator, ProcessGroup group, Operands operands, Choice choice) {
        super(operator, group, choice, InPlace.of(operator, operands));
        compute = GroupPlans.of(group).compute();
        long columns = operator.partColumns();
        product = inPlace.product(operator, compute, operator.rows(), columns);
        staging =
                new TensorTemplate(
                        group.device(),
                        new Shape(operator.rows() * columns),
                        operator.typeOfProduct());
        exchange = group.device().isGpu() ? kernel() : copies(GroupPlans.of(group).pipeline(group));
    }

    private Exchange kernel() {
        GatheredExchange kernels = GatheredExchange.of(compute);
        return (operation, call) ->
                kernels.scatter(
                        operation,
                        slots.buffers(),
                        operator.typeOfProduct(),
                        call.staging()[0],
                        partBytes,
                        call.result(),
                        operator.op(),
                        call.used());
    }

    private Exchange copies(Pipeline pipeline) {
        long count = operator.partRows() * operator.partColumns();
        Compute.Reduction reduction =
                compute.reduction(
                        operator.typeOfProduct(), count, operator.worldSize(), operator.op());
        return (operation, call) ->
                pipeline.scatterAndReduce(
                        operation,
                        slots,
                        call.staging()[0],
                        partBytes,
                        0,
                        (stream, first, distance) -> reduction.run(call.result(), first, distance),
                        call.used());
    }

    @Override
    TensorTemplate.Created[] staging(OperationScope scope) {
        return new TensorTemplate.Created[] {scope.create(staging)};
    }

    @Override
    protected void enqueue(Operation operation, Call call) {
        compute.begin();
        product.run(call.staging()[0], call.a(), call.b(), call.scales());
        exchange.run(operation, call);
    }

    @Override
    public void close() {
        product.close();
    }
}

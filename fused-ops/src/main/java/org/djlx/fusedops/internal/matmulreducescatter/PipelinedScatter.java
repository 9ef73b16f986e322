// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.matmulreducescatter;

import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.p2p.P2pStream;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.OperationScope;
import org.djlx.fusedops.internal.path.Pipeline;
import org.djlx.fusedops.kernel.Compute;
import org.djlx.fusedops.kernel.Product;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorTemplate;

/** Matmul + reduce-scatter. */
final class PipelinedScatter extends P2pScatterPath {

    private final Compute compute;
    private final Pipeline pipeline;
    private final Product product;
    private final Compute.Reduction reduction;
    private final long blockBytes; // from one rank's block of A or B to the next
    private final long rows; // of a part
    private final TensorTemplate[] staging;

    PipelinedScatter(
            MatmulReduceScatter operator, ProcessGroup group, Operands operands, Choice choice) {
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
    protected void enqueue(Operation operation, Call call) {
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

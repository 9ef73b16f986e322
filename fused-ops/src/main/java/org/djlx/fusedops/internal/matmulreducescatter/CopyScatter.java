// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.matmulreducescatter;

import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.Pipeline;
import org.djlx.fusedops.kernel.Compute;

/** Matmul, then reduce-scatter through the P2P buffers. */
final class CopyScatter extends StagedScatter {

    private final Pipeline pipeline;
    private final Compute.Reduction reduction;

    CopyScatter(
            MatmulReduceScatter operator, ProcessGroup group, Operands operands, Choice choice) {
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

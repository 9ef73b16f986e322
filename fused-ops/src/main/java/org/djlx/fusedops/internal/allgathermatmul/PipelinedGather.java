// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.allgathermatmul;

import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.OperationScope;
import org.djlx.fusedops.internal.path.Pipeline;
import org.djlx.nativeops.torch.TensorTemplate;

/** All-gather + matmul. */
final class PipelinedGather extends LibraryGather {

    private final Pipeline pipeline;

    PipelinedGather(
            AllGatherMatmul operator, ProcessGroup group, Operands operands, Choice choice) {
        super(operator, group, choice, InPlace.of(operator, operands), operator.rows());
        pipeline = GroupPlans.of(group).pipeline(group);
    }

    @Override
    TensorTemplate.Created workspace(OperationScope scope, TensorTemplate.Created none) {
        return slots.hasRounds() && operator.worldSize() > 1 ? scope.create(gathered) : none;
    }

    @Override
    void multiplyOnce(Call call) {
        multiply(call, call.shard(), 0);
    }

    @Override
    void gatherAndMultiply(Operation operation, Call call) {
        pipeline.gatherAndConsume(
                operation,
                slots,
                call.shard(),
                partBytes,
                call.gathered(),
                (stream, rank, part) -> {
                    multiply(call, part, rank);
                    long place = call.gathered() + rank * partBytes;
                    if (returnsA() && place != part) {
                        stream.copy(place, part, partBytes);
                    }
                },
                call.used());
    }
}

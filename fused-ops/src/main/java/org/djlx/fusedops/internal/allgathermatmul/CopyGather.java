// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.allgathermatmul;

import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.Pipeline;

/**
 * All-gather into this rank's P2P buffer, then matmul from there: on the CPU, and on GPUs for the
 * path PIPELINED with small shards.
 */
final class CopyGather extends LibraryGather {

    private final Pipeline pipeline;

    CopyGather(AllGatherMatmul operator, ProcessGroup group, Operands operands, Choice choice) {
        super(
                operator,
                group,
                choice,
                InPlace.of(operator, operands),
                operator.worldSize() * operator.rows());
        pipeline = GroupPlans.of(group).pipeline(group);
    }

    @Override
    void gatherAndMultiply(Operation operation, Call call) {
        pipeline.gatherThenConsume(
                operation,
                slots,
                call.shard(),
                partBytes,
                (stream, shards) -> {
                    multiply(call, shards, 0);
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
            multiply(call, slots.buffers().address(slots.buffers().rank(), 0), 0);
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.allgathermatmul;

import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.Pipeline;
import org.djlx.fusedops.kernel.Compute;

/**
 * All-gather into this rank's P2P buffer, then matmul from there: on the CPU, and on GPUs for the
 * path PIPELINED with small shards.
 */
final class CopyGather extends P2pGatherPath {

    private final Compute compute;
    private final Pipeline pipeline;
    private final RowProducts products;

    CopyGather(AllGatherMatmul operator, ProcessGroup group, Operands operands, Choice choice) {
        super(operator, group, choice, InPlace.of(operator, operands));
        compute = GroupPlans.of(group).compute();
        pipeline = GroupPlans.of(group).pipeline(group);
        long rows = operator.worldSize() * operator.rows();
        products = new RowProducts(operator, compute, inPlace, rows);
    }

    @Override
    protected void enqueue(Operation operation, Call call) {
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

// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.matmulreducescatter;

import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.path.GatheredExchange;
import org.djlx.fusedops.internal.path.Operands;

/** Matmul, then reduce-scatter by a kernel. */
final class KernelScatter extends StagedScatter {

    private final GatheredExchange exchange;

    KernelScatter(
            MatmulReduceScatter operator, ProcessGroup group, Operands operands, Choice choice) {
        super(operator, group, operands, choice);
        exchange = GatheredExchange.of(compute);
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

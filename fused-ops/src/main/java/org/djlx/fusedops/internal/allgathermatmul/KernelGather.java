// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.allgathermatmul;

import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.path.GatheredExchange;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.OperationScope;
import org.djlx.nativeops.torch.TensorTemplate;

/** All-gather by a kernel, then matmul. */
final class KernelGather extends LibraryGather {

    private final GatheredExchange exchange;

    KernelGather(AllGatherMatmul operator, ProcessGroup group, Operands operands, Choice choice) {
        super(
                operator,
                group,
                choice,
                inPlace(operator, operands),
                operator.worldSize() * operator.rows());
        exchange = GatheredExchange.of(compute);
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
    void gatherAndMultiply(Operation operation, Call call) {
        exchange.gather(
                operation, slots.buffers(), call.shard(), partBytes, call.gathered(), call.used());
        multiply(call, call.gathered(), 0);
    }

    /**
     * Multiplies before the first gather. cuBLAS loads a kernel at its first product. After a
     * gather, the load would deadlock: it waits for the gather, the gather waits for other ranks,
     * and ranks that share this GPU wait for the load.
     */
    @Override
    void multiplyOnce(Call call) {
        multiply(call, call.gathered(), 0);
    }
}

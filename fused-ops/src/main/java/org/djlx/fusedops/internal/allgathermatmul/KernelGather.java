// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.allgathermatmul;

import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.path.GatheredExchange;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.OperationScope;
import org.djlx.fusedops.kernel.Compute;
import org.djlx.nativeops.torch.TensorTemplate;

/** All-gather by a kernel, then matmul. */
final class KernelGather extends P2pGatherPath {

    private final Compute compute;
    private final GatheredExchange exchange;
    private final RowProducts products;

    KernelGather(AllGatherMatmul operator, ProcessGroup group, Operands operands, Choice choice) {
        super(operator, group, choice, inPlace(operator, operands));
        compute = GroupPlans.of(group).compute();
        exchange = GatheredExchange.of(compute);
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
    protected void enqueue(Operation operation, Call call) {
        compute.begin();
        loadOnce(call);
        exchange.gather(
                operation, slots.buffers(), call.shard(), partBytes, call.gathered(), call.used());
        products.multiply(call, call.gathered());
    }

    /**
     * Multiplies before the first gather. cuBLAS loads a kernel at its first product. After a
     * gather, the load would deadlock: it waits for the gather, the gather waits for other ranks,
     * and ranks that share this GPU wait for the load.
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

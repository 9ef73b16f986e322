// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.allgathermatmul;

import ai.djl.ndarray.NDArray;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.allgathermatmul.AllGatherMatmul.Output;
import org.djlx.fusedops.internal.fused.FusedCopies;
import org.djlx.fusedops.internal.fused.FusedMatmul;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.OperationScope;
import org.djlx.nativeops.cuda.MatrixLayout;

/** All-gather + matmul. */
final class FusedGather extends P2pGatherPath {

    private final FusedMatmul.Gather launch;

    FusedGather(AllGatherMatmul operator, ProcessGroup group, Operands operands, Choice choice) {
        super(operator, group, choice, inPlace(operator, operands));
        FusedMatmul kernels = FusedMatmul.of(GroupPlans.of(group).compute()).orElseThrow();
        launch =
                operator.output() == Output.GATED_PRODUCT
                        ? kernels.gatherGated(slots, operator.workload(), inPlace.layouts()[0])
                        : kernels.gather(slots, operator.workload(), inPlace.layouts());
    }

    private static InPlace inPlace(AllGatherMatmul operator, Operands operands) {
        MatrixLayout rows = MatrixLayout.contiguous(operator.rows(), operator.inner());
        boolean shard =
                InPlace.isFront(operator, operands)
                        && FusedMatmul.isUsable(operator.type(), rows, operands.address(0));
        MatrixLayout[] layouts = InPlace.layouts(operands);
        long[] addresses = new long[layouts.length];
        for (int i = 0; i < layouts.length; i++) {
            addresses[i] = operands.address(1 + i);
        }
        boolean[] bs = FusedMatmul.usable(operator.type(), layouts, addresses);
        for (int i = 0; i < bs.length; i++) {
            layouts[i] =
                    bs[i]
                            ? layouts[i]
                            : FusedMatmul.layoutOfB(
                                    operator.type(), layouts[i].rows(), layouts[i].columns());
        }
        return new InPlace(shard, bs, layouts);
    }

    @Override
    NDArray copyOfB(OperationScope scope, NDArray b) {
        return FusedCopies.copyOfB(scope, b, operator.type());
    }

    @Override
    protected void enqueue(Operation operation, Call call) {
        launch.run(
                operation,
                call.shard(),
                call.bs(),
                call.outs(),
                call.gathered(),
                call.scales(),
                call.used());
    }
}

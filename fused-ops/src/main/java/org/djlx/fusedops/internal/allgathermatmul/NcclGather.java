// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.allgathermatmul;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.fusedops.FallbackReason;
import org.djlx.fusedops.GatheredMatmul;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.allgathermatmul.AllGatherMatmul.Output;
import org.djlx.fusedops.internal.path.Axes;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.NcclPath;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.OperationScope;
import org.djlx.nativeops.torch.Torch;

/** All-gather, then matmul. */
final class NcclGather extends NcclPath<GatheredMatmul> {

    private final AllGatherMatmul operator;

    NcclGather(AllGatherMatmul operator, GroupPlans plans, Choice choice, FallbackReason reason) {
        super(plans, operator.opType(), choice, reason);
        this.operator = operator;
    }

    @Override
    protected GatheredMatmul run(OperationScope scope, ProcessGroup group, Operands operands) {
        NDArray shard = operands.array(0);
        NDManager manager = shard.getManager();
        Shape shape = operator.gathered();
        NDArray stacked =
                scope.empty(Axes.stacked(operator.worldSize(), shard.getShape()), operator.type());
        GroupPlans.complete(group, group.allGatherIntoTensor(stacked, shard));
        NDArray inOrder = scope.add(Axes.move(stacked, 0, operator.gatherDim()));
        NDArray gathered = scope.add(scope.contiguous(inOrder, operator.type()).reshape(shape));
        NDArray matrix = scope.add(Axes.matrix(gathered));
        List<NDArray> outputs = new ArrayList<>();
        for (int i = 0; i < operands.arrays().size() - 1; i++) {
            NDArray b = operands.array(1 + i);
            long columns = b.getShape().get(1);
            Shape rows = new Shape(matrix.getShape().get(0), columns);
            NDArray out = Torch.empty(manager, rows, operator.typeOfProduct());
            multiply(out, matrix, b, operands.scales(i));
            Shape full = Axes.with(shape, operator.lastDim(), columns);
            outputs.add(Axes.detached(out, o -> o.reshape(full)));
        }
        boolean returnsA = operator.output() == Output.PRODUCTS_AND_A;
        return new GatheredMatmul(returnsA ? Torch.alias(manager, gathered) : null, outputs);
    }
}

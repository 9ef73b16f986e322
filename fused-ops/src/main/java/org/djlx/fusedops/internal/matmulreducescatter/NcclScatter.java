// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.matmulreducescatter;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import org.djlx.collectives.ProcessGroup;
import org.djlx.fusedops.FallbackReason;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.path.Axes;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.NcclPath;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.OperationScope;
import org.djlx.nativeops.torch.Torch;

/** Matmul, then reduce-scatter. */
final class NcclScatter extends NcclPath<NDArray> {

    private final MatmulReduceScatter operator;

    NcclScatter(
            MatmulReduceScatter operator, GroupPlans plans, Choice choice, FallbackReason reason) {
        super(plans, operator.opType(), choice, reason);
        this.operator = operator;
    }

    @Override
    protected NDArray run(OperationScope scope, ProcessGroup group, Operands operands) {
        NDArray a = operands.array(0);
        int scatterDim = operator.scatterDim();
        NDArray rows = scope.contiguous(scope.alias(a), operator.type());
        NDArray matrix = scope.add(Axes.matrix(rows));
        long columns = operator.product().get(operator.lastDim());
        Shape shape = new Shape(matrix.getShape().get(0), columns);
        NDArray product = scope.empty(shape, operator.typeOfProduct());
        multiply(product, matrix, operands.array(1), operands.scales(0));
        NDArray reshaped = scope.add(product.reshape(operator.product()));
        NDArray front = scope.add(Axes.move(reshaped, scatterDim, 0));
        Shape part = Axes.move(operator.part(), scatterDim, 0);
        NDArray result = Torch.empty(a.getManager(), part, operator.typeOfProduct());
        GroupPlans.complete(group, group.reduceScatterTensor(result, front, operator.op()));
        return Axes.restore(result, scatterDim);
    }
}

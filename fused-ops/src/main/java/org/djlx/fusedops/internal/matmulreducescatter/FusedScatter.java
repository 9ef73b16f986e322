// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.matmulreducescatter;

import ai.djl.ndarray.NDArray;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.fused.FusedCopies;
import org.djlx.fusedops.internal.fused.FusedMatmul;
import org.djlx.fusedops.internal.path.Axes;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.OperationScope;
import org.djlx.nativeops.cuda.MatrixLayout;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorTemplate;

/** Matmul + reduce-scatter. */
final class FusedScatter extends P2pScatterPath {

    private final FusedMatmul.Scatter launch;

    FusedScatter(
            MatmulReduceScatter operator, ProcessGroup group, Operands operands, Choice choice) {
        super(operator, group, choice, inPlace(operator, operands));
        launch =
                FusedMatmul.of(GroupPlans.of(group).compute())
                        .orElseThrow()
                        .scatter(
                                slots,
                                operator.workload(),
                                inPlace.left(),
                                inPlace.right(),
                                operator.op());
    }

    private static InPlace inPlace(MatmulReduceScatter operator, Operands operands) {
        InPlace given = InPlace.of(operator, operands);
        ScalarType type = operator.type();
        MatrixLayout left = given.left();
        MatrixLayout right = given.right();
        boolean a = given.a() && FusedMatmul.isUsable(type, left, operands.address(0));
        boolean b = given.b() && FusedMatmul.isUsableB(type, right, operands.address(1));
        return new InPlace(
                a,
                b,
                a ? left : FusedMatmul.layout(left.rows(), left.columns()),
                b ? right : FusedMatmul.layoutOfB(type, right.rows(), right.columns()));
    }

    /** Pads the rows to the whole units that the kernel loads. */
    @Override
    NDArray copyOfA(OperationScope scope, NDArray a) {
        NDArray matrix = scope.add(Axes.matrix(super.copyOfA(scope, a)));
        return FusedCopies.padded(scope, matrix, operator.type());
    }

    @Override
    NDArray copyOfB(OperationScope scope, NDArray b) {
        return FusedCopies.copyOfB(scope, b, operator.type());
    }

    @Override
    TensorTemplate.Created[] staging(OperationScope scope) {
        return new TensorTemplate.Created[0];
    }

    @Override
    protected void enqueue(Operation operation, Call call) {
        launch.run(operation, call.a(), call.b(), call.result(), call.scales(), call.used());
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.AllGatherMatmul.Output;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.FusedMatmul;
import org.djlx.nativeops.cuda.MatrixLayout;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorTemplate;

/** The path FUSED: one kernel pushes data to peers, waits for the peers' data, and multiplies. */
final class FusedPath {

    private FusedPath() {}

    private static FusedMatmul kernels(ProcessGroup group) {
        return GroupPlans.of(group).compute().fusedMatmul().orElseThrow();
    }

    private static NDArray padded(OperationScope scope, NDArray matrix, ScalarType type) {
        NDArray wide = scope.empty(FusedMatmul.copyShape(matrix.getShape()), type);
        FusedMatmul.copy(wide, matrix, type);
        return wide;
    }

    /** Copies a B to the {@link FusedMatmul#layoutOfB}. */
    private static NDArray copyOfB(OperationScope scope, NDArray b, ScalarType type) {
        if (type != ScalarType.FLOAT8_E4M3FN) {
            return scope.copy(b, type);
        }
        NDArray view = scope.alias(b);
        return padded(scope, NoGradient.get(() -> scope.add(view.transpose())), type);
    }

    /** All-gather + matmul. */
    static final class Gather extends P2pGatherPath {

        private final FusedMatmul.Gather launch;

        Gather(AllGatherMatmul operator, ProcessGroup group, Operands operands, Choice choice) {
            super(operator, group, choice, inPlace(operator, operands));
            FusedMatmul kernels = kernels(group);
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
            return FusedPath.copyOfB(scope, b, operator.type());
        }

        @Override
        void enqueue(Operation operation, Call call) {
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

    /** Matmul + reduce-scatter. */
    static final class Scatter extends P2pScatterPath {

        private final FusedMatmul.Scatter launch;

        Scatter(
                MatmulReduceScatter operator,
                ProcessGroup group,
                Operands operands,
                Choice choice) {
            super(operator, group, choice, inPlace(operator, operands));
            launch =
                    kernels(group)
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
            return padded(scope, matrix, operator.type());
        }

        @Override
        NDArray copyOfB(OperationScope scope, NDArray b) {
            return FusedPath.copyOfB(scope, b, operator.type());
        }

        @Override
        TensorTemplate.Created[] staging(OperationScope scope) {
            return new TensorTemplate.Created[0];
        }

        @Override
        void enqueue(Operation operation, Call call) {
            launch.run(operation, call.a(), call.b(), call.result(), call.scales(), call.used());
        }
    }
}

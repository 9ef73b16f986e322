// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.AllGatherMatmul.Output;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.FusedMatmul;
import org.djlx.nativeops.cuda.MatrixLayout;

/** The path FUSED: one kernel pushes data to peers, waits for the peers' data, and multiplies. */
final class FusedPath {

    private FusedPath() {}

    private static FusedMatmul kernels(ProcessGroup group) {
        return GroupPlans.of(group).compute().fusedMatmul().orElseThrow();
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
                            && FusedMatmul.isUsable(rows, operands.address(0));
            MatrixLayout[] layouts = InPlace.layouts(operands);
            long[] addresses = new long[layouts.length];
            for (int i = 0; i < layouts.length; i++) {
                addresses[i] = operands.address(1 + i);
            }
            return new InPlace(operator, shard, FusedMatmul.usable(layouts, addresses), layouts);
        }

        @Override
        void enqueue(Operation operation, Call call) {
            launch.run(
                    operation, call.shard(), call.bs(), call.outs(), call.gathered(), call.used());
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
            MatrixLayout left = given.left();
            MatrixLayout right = given.right();
            boolean a = given.a() && FusedMatmul.isUsable(left, operands.address(0));
            boolean b = given.b() && FusedMatmul.isUsableB(right, operands.address(1));
            return new InPlace(
                    a,
                    b,
                    a ? left : FusedMatmul.layout(left.rows(), left.columns()),
                    b ? right : MatrixLayout.contiguous(right.rows(), right.columns()));
        }

        /** Pads the rows to the whole units that the kernel loads. */
        @Override
        NDArray copyOfA(OperationScope scope, NDArray a) {
            NDArray matrix = scope.add(Axes.matrix(super.copyOfA(scope, a)));
            NDArray wide = scope.empty(FusedMatmul.copyShape(matrix.getShape()), operator.type());
            FusedMatmul.copy(wide, matrix, operator.type());
            return wide;
        }

        @Override
        NDArray[] staging(OperationScope scope, NDManager manager) {
            return new NDArray[0];
        }

        @Override
        void enqueue(Operation operation, Call call) {
            launch.run(operation, call.a(), call.b(), call.result(), call.used());
        }
    }
}

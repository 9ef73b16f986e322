// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.matmulreducescatter;

import ai.djl.ndarray.NDArray;
import org.djlx.collectives.ProcessGroup;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.path.Axes;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.OperationScope;
import org.djlx.fusedops.internal.path.P2pPath;
import org.djlx.fusedops.kernel.Compute;
import org.djlx.fusedops.kernel.Product;
import org.djlx.fusedops.kernel.Product.Scales;
import org.djlx.nativeops.cuda.MatrixLayout;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.TensorTemplate;
import org.djlx.nativeops.torch.Torch;

/** A matmul + reduce-scatter over P2P buffers. */
abstract class P2pScatterPath extends P2pPath<NDArray, P2pScatterPath.Call> {

    final MatmulReduceScatter operator;
    final InPlace inPlace;
    private final TensorTemplate partFront; // this rank's part, the scatter dimension in front

    /**
     * The arrays of a call.
     *
     * @param staging the addresses of the staging arrays, which hold products until they are sent
     * @param scales the scales of A and B; null without scales
     */
    record Call(
            long a,
            long b,
            long result,
            long[] staging,
            NDArray part,
            Scales scales,
            NDArray[] used) {}

    /**
     * The operands that the path reads without a copy. Other operands are copied to row-major
     * memory.
     */
    record InPlace(boolean a, boolean b, MatrixLayout left, MatrixLayout right) {

        /** Returns the operands that library matmuls read without a copy. */
        static InPlace of(MatmulReduceScatter operator, Operands operands) {
            TensorInfo info = operands.infos()[0];
            boolean isMatrix = operator.lastDim() == 1 && operands.scales().isEmpty();
            MatrixLayout rows = MatrixLayout.contiguous(operator.rows(), operator.inner());
            MatrixLayout left = isMatrix ? Axes.layout(info) : rows;
            boolean a =
                    operator.frontDim() == 0
                            && (info.isContiguous() || isMatrix && Axes.isUsable(left));
            MatrixLayout right = Axes.layout(operands.infos()[1]);
            boolean b = Axes.isUsable(right);
            return new InPlace(
                    a,
                    b,
                    a ? left : rows,
                    b ? right : MatrixLayout.contiguous(right.rows(), right.columns()));
        }

        /** Prepares matmuls of {@code rows} rows of A and {@code columns} columns of B. */
        Product product(MatmulReduceScatter operator, Compute compute, long rows, long columns) {
            return compute.product(
                    operator.type(),
                    MatrixLayout.contiguous(rows, columns),
                    new MatrixLayout(rows, left.columns(), left.rowStride(), left.columnStride()),
                    new MatrixLayout(
                            right.rows(), columns, right.rowStride(), right.columnStride()));
        }
    }

    P2pScatterPath(
            MatmulReduceScatter operator, ProcessGroup group, Choice choice, InPlace inPlace) {
        super(group, operator, choice, operator.partBytes());
        this.operator = operator;
        this.inPlace = inPlace;
        partFront =
                new TensorTemplate(
                        group.device(),
                        Axes.move(operator.part(), operator.frontDim(), 0),
                        operator.typeOfProduct());
    }

    /** Copies A to row-major memory, with {@code frontDim} moved to the front. */
    NDArray copyOfA(OperationScope scope, NDArray a) {
        return scope.front(a, operator.frontDim(), operator.type());
    }

    NDArray copyOfB(OperationScope scope, NDArray b) {
        return scope.copy(b, operator.type());
    }

    /** Allocates arrays that hold products until they are sent. */
    abstract TensorTemplate.Created[] staging(OperationScope scope);

    @Override
    protected final Call arrays(OperationScope scope, Operands operands) {
        NDArray a = operands.array(0);
        NDArray left = inPlace.a ? a : copyOfA(scope, a);
        NDArray right = inPlace.b ? operands.array(1) : copyOfB(scope, operands.array(1));
        TensorTemplate.Created part = scope.result(a.getManager(), partFront);
        TensorTemplate.Created[] staging = staging(scope);
        NDArray[] used = new NDArray[3 + staging.length + operands.scales().size()];
        used[0] = left;
        used[1] = right;
        used[2] = part.array();
        long[] addresses = new long[staging.length];
        for (int i = 0; i < staging.length; i++) {
            addresses[i] = staging[i].address();
            used[3 + i] = staging[i].array();
        }
        for (int i = 0; i < operands.scales().size(); i++) {
            used[3 + staging.length + i] = operands.scales().get(i);
            scope.hold(operands.scales().get(i));
        }
        scope.hold(left, right, part.array());
        return new Call(
                inPlace.a ? operands.address(0) : Torch.dataPointer(left),
                inPlace.b ? operands.address(1) : Torch.dataPointer(right),
                part.address(),
                addresses,
                part.array(),
                operands.scales(0),
                used);
    }

    @Override
    protected final NDArray result(Call call) {
        return Axes.restore(call.part, operator.frontDim());
    }
}

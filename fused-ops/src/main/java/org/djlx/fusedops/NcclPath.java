// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.OpType;
import org.djlx.fusedops.AllGatherMatmul.Output;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.Compute;
import org.djlx.fusedops.internal.Product;
import org.djlx.fusedops.internal.Product.Scales;
import org.djlx.nativeops.cuda.MatrixLayout;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * The path NCCL, which is the fallback: the group's own collective, and one matmul by libtorch
 * after or before it. On the CPU the group's backend runs the collective.
 *
 * @param <R> the result of the operator
 */
abstract class NcclPath<R> implements MatmulPath<R> {

    final GroupPlans plans;
    private final OpType type;
    private final Choice choice;
    private final FallbackReason reason;

    private NcclPath(GroupPlans plans, OpType type, Choice choice, FallbackReason reason) {
        this.plans = plans;
        this.type = type;
        this.choice = choice;
        this.reason = reason;
    }

    abstract R run(OperationScope scope, ProcessGroup group, Operands operands);

    @Override
    public final Issued<R> run(ProcessGroup group, Operands operands) {
        UsageCounter.count(type, choice, reason);
        OperationScope scope = plans.scope();
        try {
            R result = NoGradient.get(() -> run(scope, group, operands));
            return new Issued<>(result, Optional.empty());
        } finally {
            scope.close();
        }
    }

    final void multiply(NDArray out, NDArray a, NDArray b, Scales scales) {
        if (scales == null) {
            Torch.mmOut(out, a, b);
            return;
        }
        Compute compute = plans.compute();
        compute.begin();
        TensorInfo left = Torch.info(a);
        TensorInfo right = Torch.info(b);
        MatrixLayout product =
                MatrixLayout.contiguous(out.getShape().get(0), out.getShape().get(1));
        try (Product scaled =
                compute.product(left.type(), product, Axes.layout(left), Axes.layout(right))) {
            scaled.run(Torch.dataPointer(out), left.address(), right.address(), scales);
        }
    }

    /** All-gather, then matmul. */
    static final class Gather extends NcclPath<GatheredMatmul> {

        private final AllGatherMatmul operator;

        Gather(AllGatherMatmul operator, GroupPlans plans, Choice choice, FallbackReason reason) {
            super(plans, operator.opType(), choice, reason);
            this.operator = operator;
        }

        @Override
        GatheredMatmul run(OperationScope scope, ProcessGroup group, Operands operands) {
            NDArray shard = operands.array(0);
            NDManager manager = shard.getManager();
            Shape shape = operator.gathered();
            NDArray stacked =
                    scope.empty(
                            Axes.stacked(operator.worldSize(), shard.getShape()), operator.type());
            FusedOps.complete(group, group.allGatherIntoTensor(stacked, shard));
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

    /** Matmul, then reduce-scatter. */
    static final class Scatter extends NcclPath<NDArray> {

        private final MatmulReduceScatter operator;

        Scatter(
                MatmulReduceScatter operator,
                GroupPlans plans,
                Choice choice,
                FallbackReason reason) {
            super(plans, operator.opType(), choice, reason);
            this.operator = operator;
        }

        @Override
        NDArray run(OperationScope scope, ProcessGroup group, Operands operands) {
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
            FusedOps.complete(group, group.reduceScatterTensor(result, front, operator.op()));
            return Axes.restore(result, scatterDim);
        }
    }
}

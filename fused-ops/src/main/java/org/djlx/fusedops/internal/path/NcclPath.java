// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import ai.djl.ndarray.NDArray;
import java.util.Optional;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.OpType;
import org.djlx.fusedops.FallbackReason;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.kernel.Compute;
import org.djlx.fusedops.kernel.Product;
import org.djlx.fusedops.kernel.Product.Scales;
import org.djlx.nativeops.cuda.MatrixLayout;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * The path NCCL, which is the fallback: the group's own collective, and one matmul by libtorch
 * after or before it. On the CPU the group's backend runs the collective.
 */
public abstract class NcclPath<R> implements MatmulPath<R> {

    private final GroupPlans plans;
    private final OpType type;
    private final Choice choice;
    private final FallbackReason reason;

    protected NcclPath(GroupPlans plans, OpType type, Choice choice, FallbackReason reason) {
        this.plans = plans;
        this.type = type;
        this.choice = choice;
        this.reason = reason;
    }

    protected abstract R run(OperationScope scope, ProcessGroup group, Operands operands);

    @Override
    public final Issued<R> run(ProcessGroup group, Operands operands) {
        Usage.count(type, choice, reason);
        try (OperationScope scope = plans.scope()) {
            R result = NoGradient.get(() -> run(scope, group, operands));
            return new Issued<>(result, Optional.empty());
        }
    }

    protected final void multiply(NDArray out, NDArray a, NDArray b, Scales scales) {
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
}

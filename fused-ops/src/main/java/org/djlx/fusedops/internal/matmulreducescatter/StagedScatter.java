// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.matmulreducescatter;

import ai.djl.ndarray.types.Shape;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.OperationScope;
import org.djlx.fusedops.kernel.Compute;
import org.djlx.fusedops.kernel.Product;
import org.djlx.nativeops.torch.TensorTemplate;

/** One matmul into staging memory, then its reduce-scatter. */
abstract class StagedScatter extends P2pScatterPath {

    final Compute compute;
    private final Product product;
    private final TensorTemplate staging;

    StagedScatter(
            MatmulReduceScatter operator, ProcessGroup group, Operands operands, Choice choice) {
        super(operator, group, choice, InPlace.of(operator, operands));
        compute = GroupPlans.of(group).compute();
        long columns = operator.partColumns();
        product = inPlace.product(operator, compute, operator.rows(), columns);
        staging =
                new TensorTemplate(
                        group.device(),
                        new Shape(operator.rows() * columns),
                        operator.typeOfProduct());
    }

    @Override
    final TensorTemplate.Created[] staging(OperationScope scope) {
        return new TensorTemplate.Created[] {scope.create(staging)};
    }

    @Override
    protected final void enqueue(Operation operation, Call call) {
        compute.begin();
        product.run(call.staging()[0], call.a(), call.b(), call.scales());
        scatter(operation, call);
    }

    abstract void scatter(Operation operation, Call call);

    @Override
    public final void close() {
        product.close();
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.allgathermatmul;

import java.util.HashSet;
import java.util.Set;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.OperationScope;
import org.djlx.fusedops.kernel.Compute;
import org.djlx.fusedops.kernel.Product;
import org.djlx.fusedops.kernel.Product.Scales;
import org.djlx.nativeops.cuda.MatrixLayout;

/** A path whose products of rows of A with each B a library computes. */
abstract class LibraryGather extends P2pGatherPath {

    final Compute compute;
    private final Product[] products;
    private final long[] shardOutBytes; // of a shard's rows of each product
    // Whether rows are scaled, of products whose kernels the library has loaded.
    private final Set<Boolean> loaded = new HashSet<>();

    /**
     * Prepares the products.
     *
     * @param rows the rows of A that are multiplied at a time
     */
    LibraryGather(
            AllGatherMatmul operator,
            ProcessGroup group,
            Choice choice,
            InPlace inPlace,
            long rows) {
        super(operator, group, choice, inPlace);
        compute = GroupPlans.of(group).compute();
        products = new Product[inPlace.layouts().length];
        shardOutBytes = new long[products.length];
        for (int i = 0; i < products.length; i++) {
            long columns = operator.columns().get(i);
            shardOutBytes[i] = operator.rows() * columns * operator.typeOfProduct().itemSize();
            products[i] =
                    compute.product(
                            operator.type(),
                            MatrixLayout.contiguous(rows, columns),
                            MatrixLayout.contiguous(rows, operator.inner()),
                            inPlace.layouts()[i]);
        }
    }

    @Override
    protected final void enqueue(Operation operation, Call call) {
        compute.begin();
        loadOnce(call);
        gatherAndMultiply(operation, call);
    }

    abstract void gatherAndMultiply(Operation operation, Call call);

    /** Multiplies once, on arbitrary data. */
    abstract void multiplyOnce(Call call);

    /** Loads the kernels of the products, unless they are loaded or the call is recorded. */
    private void loadOnce(Call call) {
        if (!compute.isRecorded() && loaded.add(call.isScaledByRow())) {
            multiplyOnce(call);
        }
    }

    @Override
    public final void load(Operands operands) {
        if (!loaded.contains(operands.isScaledByRow())) {
            OperationScope scope = plans.scope();
            try {
                compute.begin();
                loadOnce(arrays(scope, operands));
            } finally {
                scope.abandon();
            }
        }
    }

    /** Multiplies rows from an address. The products start at the rows of a rank's shard. */
    final void multiply(Call call, long rows, int rank) {
        for (int i = 0; i < products.length; i++) {
            products[i].run(
                    call.outs()[i] + rank * shardOutBytes[i],
                    rows,
                    call.bs()[i],
                    Scales.fromRow(call.scales()[i], rank * operator.rows()));
        }
    }

    @Override
    public final void close() {
        for (Product product : products) {
            product.close();
        }
    }
}

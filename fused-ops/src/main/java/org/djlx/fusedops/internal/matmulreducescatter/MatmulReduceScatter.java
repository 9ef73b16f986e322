// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.matmulreducescatter;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.fusedops.FallbackReason;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.FusedOperator;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.cost.Workload;
import org.djlx.fusedops.internal.fused.FusedMatmul;
import org.djlx.fusedops.internal.path.Axes;
import org.djlx.fusedops.internal.path.GatheredExchange;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.MatmulPath;
import org.djlx.fusedops.internal.path.MatmulPlan;
import org.djlx.fusedops.internal.path.OperandChecks;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.Pipeline;
import org.djlx.fusedops.internal.path.PlanKey;
import org.djlx.fusedops.kernel.Compute;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;

/**
 * The checked sizes of a matmul + reduce-scatter.
 *
 * <p>If the product's last dimension is scattered, a rank's part is A times a block of B's columns.
 * Otherwise the scatter dimension is moved to the front, and the part is a block of A's rows times
 * B.
 *
 * @param op SUM or AVG
 * @param scatterDim the scatter dimension, counted from the front
 */
public record MatmulReduceScatter(
        ScalarType type, int worldSize, Shape left, Shape product, ReduceOp op, int scatterDim)
        implements MatmulPlan.Operator<NDArray> {

    public static final OpType TYPE = new OpType("matmulReduceScatter");
    public static final OpType SCALED = new OpType("scaledMatmulReduceScatter");

    static MatmulReduceScatter of(
            OperandChecks checks,
            ProcessGroup group,
            Operands operands,
            ReduceOp op,
            int scatterDim) {
        NDArray a = operands.array(0);
        TensorInfo[] infos = operands.infos();
        ScalarType type = checks.checkA("A", a, infos[0], group.device());
        Shape left = new Shape(infos[0].sizes());
        int last = left.dimension() - 1;
        checks.checkB("B", operands.array(1), infos[1], a, type, left.get(last));
        int dimension = checks.dimension("scatterDim", scatterDim, last + 1);
        checks.checkScaledDimension("scatterDim", type, dimension);
        Shape product = Axes.with(left, last, infos[1].sizes()[1]);
        part(checks, product, scatterDim, group.worldSize());
        return new MatmulReduceScatter(type, group.worldSize(), left, product, op, dimension);
    }

    /** Returns the shape of a rank's part of the product. */
    private static Shape part(OperandChecks checks, Shape product, int scatterDim, int worldSize) {
        int dimension = checks.dimension("scatterDim", scatterDim, product.dimension());
        long size = product.get(dimension);
        if (size % worldSize != 0) {
            throw checks.wrong(
                    "dimension %d of the product %s is not divisible by the world size %d",
                    scatterDim, product, worldSize);
        }
        return Axes.with(product, dimension, size / worldSize);
    }

    /** Returns the shape of the product of two arrays. */
    public static Shape product(OperandChecks checks, Shape a, Shape b) {
        checks.checkLeft("A", a);
        int last = a.dimension() - 1;
        checks.checkRight("B", b, a.get(last));
        return Axes.with(a, last, b.get(1));
    }

    /** Returns the shape of a rank's result. */
    public static Shape shape(
            OperandChecks checks, Shape a, Shape b, int scatterDim, int worldSize) {
        checks.checkWorldSize(worldSize);
        return part(checks, product(checks, a, b), scatterDim, worldSize);
    }

    /** Checks and runs a call. Gradients are not recorded. */
    public static NDArray run(
            OperandChecks checks,
            Operands operands,
            ReduceOp op,
            int scatterDim,
            ProcessGroup group) {
        OpType type = operands.scales().isEmpty() ? TYPE : SCALED;
        return MatmulPlan.run(
                new PlanKey(type, scatterDim, op == ReduceOp.AVG ? 1 : 0, operands),
                group,
                operands,
                () -> of(checks, group, operands, op, scatterDim),
                NDArray::close);
    }

    int lastDim() {
        return left.dimension() - 1;
    }

    long rows() {
        return Axes.rows(left);
    }

    long inner() {
        return left.get(lastDim());
    }

    /** The rows of a rank's part of the product as a matrix. */
    long partRows() {
        return isByRows() ? rows() / worldSize : rows();
    }

    long partColumns() {
        long columns = product.get(lastDim());
        return isByRows() ? columns : columns / worldSize;
    }

    long partBytes() {
        return partRows() * partColumns() * typeOfProduct().itemSize();
    }

    int frontDim() {
        return isByRows() ? scatterDim : 0;
    }

    Shape part() {
        return Axes.with(product, scatterDim, product.get(scatterDim) / worldSize);
    }

    @Override
    public Workload workload() {
        return new Workload(
                FusedOperator.MATMUL_REDUCE_SCATTER,
                type,
                worldSize,
                partRows(),
                List.of(partColumns()),
                inner());
    }

    @Override
    public OpType opType() {
        return type == ScalarType.FLOAT8_E4M3FN ? SCALED : TYPE;
    }

    @Override
    public Agreed agreed() {
        return new Agreed(type, product.getShape(), op, scatterDim);
    }

    @Override
    public boolean isByRows() {
        return scatterDim != lastDim();
    }

    @Override
    public boolean isFusable(Compute compute, P2pBuffers buffers, Workload work) {
        return FusedMatmul.of(compute)
                .filter(found -> found.scatters(buffers, work, op))
                .isPresent();
    }

    @Override
    public boolean gathersA() {
        return false;
    }

    @Override
    public MatmulPath<NDArray> prepare(ProcessGroup group, Operands operands, Choice choice) {
        P2pBuffers buffers = group.requireP2pBuffers();
        boolean tiny = // With them, the kernels of GATHERED run PIPELINED; the same on all ranks.
                choice.path() == Path.PIPELINED
                        && isByRows()
                        && Pipeline.isTiny(buffers, partBytes())
                        && GatheredExchange.isPossible(
                                GroupPlans.of(group).compute(),
                                buffers,
                                typeOfProduct(),
                                partBytes());
        return switch (tiny ? Path.GATHERED : choice.path()) {
            case FUSED -> new FusedScatter(this, group, operands, choice);
            case PIPELINED -> new PipelinedScatter(this, group, operands, choice);
            case GATHERED -> new StagedScatter(this, group, operands, choice);
            case NCCL -> throw new IllegalArgumentException(choice.toString());
        };
    }

    @Override
    public MatmulPath<NDArray> prepareFallback(
            GroupPlans plans, Choice choice, FallbackReason reason) {
        return new NcclScatter(this, plans, choice, reason);
    }
}

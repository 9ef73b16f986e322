// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.allgathermatmul;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.fusedops.FallbackReason;
import org.djlx.fusedops.GatheredMatmul;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.FusedOperator;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.cost.Workload;
import org.djlx.fusedops.internal.fused.FusedMatmul;
import org.djlx.fusedops.internal.path.Axes;
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
 * The sizes of an all-gather + matmul, checked.
 *
 * <p>If A is gathered along its last dimension, each product is the sum of the products of a rank's
 * shard and a block of B's rows. Otherwise, with the gather dimension moved to the front, the
 * gathered A is the ranks' shards one after the other. Each product has the same order, because the
 * rows of a shard's product depend on no other shard.
 *
 * @param gatherDim the gather dimension, counted from the front
 */
public record AllGatherMatmul(
        ScalarType type,
        int worldSize,
        Shape shard,
        int gatherDim,
        List<Long> columns,
        Output output)
        implements MatmulPlan.Operator<GatheredMatmul> {

    public static final OpType TYPE = new OpType("allGatherMatmul");
    public static final OpType SCALED = new OpType("allGatherScaledMatmul");

    public enum Output {
        PRODUCTS,
        PRODUCTS_AND_A,
        /**
         * Half of B's columns compute values, the other half gates. Returns the values times the
         * activation of the gates.
         */
        GATED_PRODUCT
    }

    private static AllGatherMatmul of(
            OperandChecks checks,
            ProcessGroup group,
            Operands operands,
            int gatherDim,
            Output output) {
        NDArray a = operands.array(0);
        TensorInfo[] infos = operands.infos();
        ScalarType type = checks.checkA("aShard", a, infos[0], group.device());
        Shape shard = new Shape(infos[0].sizes());
        int last = shard.dimension() - 1;
        int dimension = checks.dimension("gatherDim", gatherDim, last + 1);
        int factor = dimension == last ? group.worldSize() : 1;
        checks.checkScaledDimension("gatherDim", type, dimension);
        long inner = shard.get(last) * factor;
        if (group.worldSize() == 1) {
            dimension = 0; // One shard is the same along every dimension.
        }
        List<Long> columns = new ArrayList<>();
        for (int i = 1; i < infos.length; i++) {
            String role = OperandChecks.roleOfB(i - 1, infos.length - 1);
            checks.checkB(role, operands.array(i), infos[i], a, type, inner);
            columns.add(infos[i].sizes()[1]);
        }
        return new AllGatherMatmul(
                type, group.worldSize(), shard, dimension, List.copyOf(columns), output);
    }

    /** Returns the shapes of the gathered A and of its product with each B. */
    public static List<Shape> shapes(
            OperandChecks checks, Shape shard, List<Shape> bs, int gatherDim, int worldSize) {
        checks.checkWorldSize(worldSize);
        checks.checkLeft("aShard", shard);
        int last = shard.dimension() - 1;
        int dimension = checks.dimension("gatherDim", gatherDim, last + 1);
        Shape gathered = Axes.with(shard, dimension, shard.get(dimension) * worldSize);
        List<Shape> shapes = new ArrayList<>(List.of(gathered));
        for (int i = 0; i < bs.size(); i++) {
            Shape b = bs.get(i);
            checks.checkRight(OperandChecks.roleOfB(i, bs.size()), b, gathered.get(last));
            shapes.add(Axes.with(gathered, last, b.get(1)));
        }
        return List.copyOf(shapes);
    }

    /** Checks and runs a call. Gradients are not recorded. */
    public static GatheredMatmul run(
            OperandChecks checks,
            Operands operands,
            int gatherDim,
            ProcessGroup group,
            Output output) {
        OpType type = operands.scales().isEmpty() ? TYPE : SCALED;
        return MatmulPlan.run(
                new PlanKey(type, gatherDim, output.ordinal(), operands),
                group,
                operands,
                () -> of(checks, group, operands, gatherDim, output),
                AllGatherMatmul::close);
    }

    private static void close(GatheredMatmul result) {
        result.outputs().forEach(NDArray::close);
        result.gathered().ifPresent(NDArray::close);
    }

    int lastDim() {
        return shard.dimension() - 1;
    }

    /** The rows of a shard as a matrix. */
    long rows() {
        return Axes.rows(shard);
    }

    long inner() {
        return shard.get(lastDim());
    }

    /** The dimension that is moved to the front. */
    int frontDim() {
        return isByRows() ? gatherDim : 0;
    }

    Shape gathered() {
        return Axes.with(shard, gatherDim, shard.get(gatherDim) * worldSize);
    }

    /** The shape of the gathered A with {@link #frontDim} in front. */
    Shape gatheredFront() {
        return Axes.move(gathered(), frontDim(), 0);
    }

    /** The shape of a product with {@link #frontDim} in front. */
    Shape productFront(int b) {
        int columnsOfValue = output == Output.GATED_PRODUCT ? 2 : 1;
        return Axes.with(gatheredFront(), lastDim(), columns.get(b) / columnsOfValue);
    }

    @Override
    public Workload workload() {
        return new Workload(
                FusedOperator.ALL_GATHER_MATMUL, type, worldSize, rows(), columns, inner());
    }

    @Override
    public OpType opType() {
        return type == ScalarType.FLOAT8_E4M3FN ? SCALED : TYPE;
    }

    @Override
    public Agreed agreed() {
        return new Agreed(type, shard.getShape(), null, gatherDim);
    }

    @Override
    public boolean isByRows() {
        return gatherDim != lastDim();
    }

    @Override
    public boolean isFusable(Compute compute, P2pBuffers buffers, Workload work) {
        return FusedMatmul.of(compute).filter(found -> found.gathers(buffers, work)).isPresent();
    }

    @Override
    public boolean gathersA() {
        return true;
    }

    @Override
    public boolean isMeasurable() {
        return output != Output.GATED_PRODUCT;
    }

    @Override
    public MatmulPath<GatheredMatmul> prepare(
            ProcessGroup group, Operands operands, Choice choice) {
        if (output == Output.GATED_PRODUCT && !isGatedByKernel(group, operands, choice)) {
            return AllGatherMatmul::nothing;
        }
        return switch (choice.path()) {
            case FUSED -> new FusedGather(this, group, operands, choice);
            case PIPELINED -> {
                if (!isByRows()) {
                    yield new GatherLastDim(this, group, operands, choice);
                }
                boolean tiny =
                        group.device().isGpu()
                                && Pipeline.isTiny(
                                        group.requireP2pBuffers(), workload().partBytes());
                yield tiny
                        ? new CopyGather(this, group, operands, choice)
                        : new PipelinedGather(this, group, operands, choice);
            }
            case GATHERED ->
                    group.device().isGpu()
                            ? new KernelGather(this, group, operands, choice)
                            : new CopyGather(this, group, operands, choice);
            case NCCL -> throw new IllegalArgumentException(choice.toString());
        };
    }

    private boolean isGatedByKernel(ProcessGroup group, Operands operands, Choice choice) {
        return choice.path() == Path.FUSED
                && FusedMatmul.of(GroupPlans.of(group).compute())
                        .orElseThrow()
                        .gates(
                                group.requireP2pBuffers(),
                                workload(),
                                Axes.layout(operands.infos()[1]),
                                operands.address(1));
    }

    @Override
    public MatmulPath<GatheredMatmul> prepareFallback(
            GroupPlans plans, Choice choice, FallbackReason reason) {
        return output == Output.GATED_PRODUCT
                ? AllGatherMatmul::nothing
                : new NcclGather(this, plans, choice, reason);
    }

    /**
     * Computes nothing: if no kernel computes the gated product, the caller runs the matmul and the
     * activation itself.
     */
    private static MatmulPath.Issued<GatheredMatmul> nothing(
            ProcessGroup group, Operands operands) {
        return new MatmulPath.Issued<>(new GatheredMatmul(null, List.of()), Optional.empty());
    }
}

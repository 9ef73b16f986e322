// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.OptionalDouble;
import java.util.Set;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;
import org.djlx.collectives.NullArguments;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.ShmOptions;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.CostModel;
import org.djlx.fusedops.cost.FusedMatmulModel;
import org.djlx.fusedops.cost.FusedOperator;
import org.djlx.fusedops.cost.Machine;
import org.djlx.fusedops.cost.Measurement;
import org.djlx.fusedops.cost.Network;
import org.djlx.fusedops.cost.Prediction;
import org.djlx.fusedops.cost.Workload;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Null is either allowed or an {@link IllegalArgumentException}, wherever users may pass it. */
@Timeout(120)
class FusedNullArgumentsTest {

    @Test
    void neverEndInNullPointerExceptions() {
        ShmOptions options = ShmOptions.builder().optBufferSize(1 << 16).build();
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                UsageCounter counter = FusedOps.countUsage();
                ProcessGroup group = ProcessGroups.local("shm", 1, options).get(0)) {
            Supplier<NDArray> array = () -> manager.ones(new Shape(1, 1));
            NullArguments nulls =
                    new NullArguments()
                            .sample(ProcessGroup.class, () -> group)
                            .sample(NDArray.class, array)
                            .sample(
                                    "java.util.List<ai.djl.ndarray.NDArray>",
                                    () -> List.of(array.get()))
                            .sample(ReduceOp.class, () -> ReduceOp.SUM)
                            .sample(Shape.class, () -> new Shape(1, 1))
                            .sample(
                                    "java.util.List<ai.djl.ndarray.types.Shape>",
                                    () -> List.of(new Shape(1, 1)))
                            .sample(UsageCounter.class, () -> counter)
                            .sample(ShardConsumer.class, () -> (shard, rank) -> {})
                            .sample(ChunkProducer.class, () -> (chunk, rank) -> {})
                            .sample(
                                    "java.util.function.UnaryOperator<ai.djl.ndarray.NDArray>",
                                    UnaryOperator::identity)
                            .sample(Object.class, Object::new)
                            .sample(float.class, () -> 1f)
                            .sample(
                                    NormedResidual.class,
                                    () -> new NormedResidual(array.get(), array.get()))
                            .sample(
                                    GatheredMatmul.class,
                                    () -> new GatheredMatmul(array.get(), List.of(array.get())));
            assertEquals("", String.join("\n", nulls.check(FusedOps.class)));
            assertTrue(nulls.calls() > 10, "" + nulls.calls());
        }
    }

    @Test
    void neitherDoTheyInTheCostModel() {
        Workload work =
                Workload.unsharded(
                        FusedOperator.ALL_GATHER_MATMUL, ScalarType.BFLOAT16, 2, 8, 16, 8);
        CostModel model = new CostModel(Machine.H200);
        Function<Workload, Set<org.djlx.fusedops.cost.Path>> possible = model::possible;
        NullArguments nulls =
                new NullArguments()
                        .sample(Machine.class, () -> Machine.H200)
                        .sample(Machine.Library.class, Machine.H200::library)
                        .sample(Machine.Fused.class, Machine.H200::fused)
                        .sample(Machine.Copies.class, Machine.H200::copies)
                        .sample(Machine.Exchange.class, Machine.H200::exchange)
                        .sample(Machine.Nccl.class, Machine.H200::nccl)
                        .sample(Machine.Host.class, Machine.H200::host)
                        .sample(Network.class, () -> Network.NDR)
                        .sample(Workload.class, () -> work)
                        .sample("java.util.List<java.lang.Long>", () -> List.of(8L))
                        .sample("java.util.List<java.lang.Double>", () -> List.of(1.0, 1.0, 1.0))
                        .sample(CostModel.class, () -> model)
                        .sample(
                                FusedMatmulModel.class,
                                () -> new FusedMatmulModel(Machine.H200, work))
                        .sample("ranks", () -> 1)
                        .sample(
                                Choice.class,
                                () -> new Choice(org.djlx.fusedops.cost.Path.NCCL, "forced"))
                        .sample(
                                Prediction.class,
                                () -> model.predict(work, org.djlx.fusedops.cost.Path.GATHERED))
                        .sample("possible", () -> possible)
                        .sample(OptionalDouble.class, OptionalDouble::empty)
                        .sample(Measurement.class, () -> Measurement.all().get(0))
                        .sample(
                                FusedMatmulModel.Tiling.class,
                                () -> new FusedMatmulModel(Machine.H200, work).fastest())
                        .sample(Object.class, Object::new);
        assertEquals("", String.join("\n", nulls.check(CostModel.class)));
        assertTrue(nulls.calls() > 10, "" + nulls.calls());
    }
}

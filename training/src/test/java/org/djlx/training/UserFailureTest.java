// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.optimizer.Optimizer;
import java.io.IOException;
import java.util.Arrays;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.training.internal.RankWorkers;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Exceptions of a program's block, gradient rule or optimizer, thrown on a rank's thread. */
@Timeout(60)
class UserFailureTest {

    private static final class OfUser extends RuntimeException {
        private static final long serialVersionUID = 1L;
    }

    /** Where a rank fails. */
    private enum Place {
        NOWHERE,
        FORWARD,
        BACKWARD,
        STEP
    }

    private Place place = Place.NOWHERE;
    private int rank;

    private void failIn(Place where) {
        boolean first = !Thread.currentThread().getName().startsWith("trainer-rank-");
        if (place == where && first == (rank == 0)) {
            throw new OfUser();
        }
    }

    private NDList layer(NDList list) {
        failIn(Place.FORWARD);
        GradientScope scope = GradientScope.current().orElse(null);
        if (scope == null) {
            return list;
        }
        NDArray out = list.head().stopGradient();
        scope.record(
                "a program's operator",
                list,
                new NDList(),
                new NDList(out),
                (inputs, kept, gradients) -> {
                    failIn(Place.BACKWARD);
                    return gradients;
                });
        return new NDList(out);
    }

    private final class OwnOptimizer extends Optimizer {

        private static final class Builder extends OptimizerBuilder<Builder> {
            @Override
            protected Builder self() {
                return this;
            }
        }

        OwnOptimizer() {
            super(new Builder());
        }

        @Override
        public void update(String id, NDArray weight, NDArray gradient) {
            failIn(Place.STEP);
        }
    }

    @ParameterizedTest
    @CsvSource({"FORWARD, 0", "FORWARD, 1", "BACKWARD, 0", "BACKWARD, 1", "STEP, 0", "STEP, 1"})
    void userExceptionsKeepTheirType(Place where, int failing) {
        rank = failing;
        DataParallelConfig config = new DataParallelConfig(Training.loss()).optRanks(2);
        config.optBucketBytes(64).optOptimizer(new OwnOptimizer());
        try (Model model = Model.newInstance("failing", P2pEngine.NAME)) {
            model.setBlock(
                    new SequentialBlock()
                            .add(Training.block())
                            .add(this::layer)
                            .add(Training.block()));
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, Training.FEATURES));
                step(trainer); // The check of the first pass is over.
                place = where;
                OfUser e = assertThrows(OfUser.class, () -> step(trainer));
                assertTrue(
                        Arrays.stream(e.getSuppressed())
                                .anyMatch(each -> each.getMessage().startsWith("rank " + failing)),
                        Arrays.toString(e.getSuppressed()));
            }
        }
    }

    private static void step(Trainer trainer) {
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDArray x = trainer.getManager().ones(new Shape(4, Training.FEATURES));
            collector.backward(trainer.forward(new NDList(x)).head().square().sum());
        }
        trainer.step();
    }

    /** Blocks in Kotlin and Scala may throw them. */
    @Test
    void workersRethrowCheckedExceptions() {
        IOException failure = new IOException("checked");
        try (RankWorkers workers = new RankWorkers(2, cause -> assertSame(failure, cause))) {
            IOException e =
                    assertThrows(
                            IOException.class,
                            () ->
                                    workers.run(
                                            2,
                                            false,
                                            rank -> {
                                                if (rank == 1) {
                                                    UserFailureTest.<RuntimeException>sneak(
                                                            failure);
                                                }
                                            }));
            assertSame(failure, e);
            assertEquals(1, e.getSuppressed().length);
        }
    }

    @SuppressWarnings("unchecked")
    private static <E extends Throwable> void sneak(Throwable failure) throws E {
        throw (E) failure;
    }
}

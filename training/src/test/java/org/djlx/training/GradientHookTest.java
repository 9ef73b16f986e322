// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Model;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.BatchSampler;
import ai.djl.training.dataset.SequenceSampler;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.nativeops.torch.TorchInPlace;
import org.djlx.training.Training.Outcome;
import org.djlx.training.precision.GradScaler;
import org.djlx.training.strategy.GradientBucket;
import org.djlx.training.strategy.GradientCompression;
import org.djlx.training.strategy.GradientHook;
import org.djlx.training.strategy.PowerSgd;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class GradientHookTest {

    private static final int PARAMETERS = 4; // of Training.block()

    private static DataParallelConfig config(float rate, GradientHook hook) {
        DataParallelConfig config =
                new DataParallelConfig(Training.loss())
                        .optRanks(2)
                        .optBucketBytes(1) // a bucket a parameter
                        .optGradientHook(hook);
        config.optOptimizer(Optimizer.sgd().setLearningRateTracker(Tracker.fixed(rate)).build());
        return config;
    }

    private static Outcome fit(DataParallelConfig config) throws Exception {
        BatchSampler sampler = new BatchSampler(new SequenceSampler(), 10);
        return Training.fit(
                P2pEngine.NAME, config, Training.block(), 30, sampler, 2, 5, trainer -> {});
    }

    private static Work allReduce(GradientBucket bucket) {
        return bucket.group().allReduceCoalesced(bucket.gradients(), bucket.op());
    }

    private static void assertEqual(Outcome expected, Outcome actual) {
        assertEquals(expected.losses(), actual.losses());
        for (int i = 0; i < PARAMETERS; i++) {
            assertArrayEquals(expected.parameters().get(i), actual.parameters().get(i));
        }
    }

    @Test
    void hookReducesEachBucketInOrder() throws Exception {
        Map<Integer, List<String>> calls = new ConcurrentHashMap<>(); // by rank
        Outcome actual =
                fit(
                        config(
                                0.1f,
                                bucket -> {
                                    assertEquals(ReduceOp.SUM, bucket.op());
                                    assertEquals(
                                            bucket.parameters().get(0).getShape(),
                                            bucket.gradients().get(0).getShape());
                                    calls.computeIfAbsent(
                                                    bucket.group().rank(),
                                                    rank -> new CopyOnWriteArrayList<>())
                                            .add(
                                                    bucket.index()
                                                            + " "
                                                            + bucket.gradients().get(0).getShape());
                                    return allReduce(bucket);
                                }));
        assertEqual(fit(config(0.1f, GradientCompression.NONE)), actual);
        assertEquals(2, calls.size());
        assertEquals(calls.get(0), calls.get(1));
        assertEquals(6 * PARAMETERS, calls.get(0).size()); // 3 batches in 2 epochs
        assertEquals(
                List.of("0 (3)", "1 (3, 8)", "2 (8)", "3 (8, 6)"),
                calls.get(0).subList(0, PARAMETERS));
    }

    /** Doubles gradients, and counts its ranks' own states. */
    private static final class Doubling implements GradientHook {

        private final List<GradientHook> ranks;
        private int reduced;
        private int finished;

        Doubling(List<GradientHook> ranks) {
            this.ranks = ranks;
        }

        @Override
        public GradientHook ofRank() {
            Doubling own = new Doubling(ranks);
            ranks.add(own);
            return own;
        }

        @Override
        public Work reduce(GradientBucket bucket) {
            reduced++;
            return allReduce(bucket);
        }

        @Override
        public void finish(GradientBucket bucket, Work sent) {
            assertTrue(sent.isSuccess());
            finished++;
            bucket.gradients().forEach(each -> TorchInPlace.mul(each, 2));
        }
    }

    @Test
    void eachRankHasItsOwnHookAndFinishesBuckets() throws Exception {
        List<GradientHook> ranks = new CopyOnWriteArrayList<>();
        assertEqual(
                fit(config(0.1f, GradientCompression.NONE)),
                fit(config(0.05f, new Doubling(ranks))));
        assertEquals(2, ranks.size());
        for (GradientHook rank : ranks) {
            assertEquals(6 * PARAMETERS, ((Doubling) rank).reduced);
            assertEquals(6 * PARAMETERS, ((Doubling) rank).finished);
        }
    }

    @Test
    void failureOfHookReachesProgram() {
        GradientHook failing =
                bucket -> {
                    throw new UnsupportedOperationException("own failure");
                };
        UnsupportedOperationException e =
                assertThrows(UnsupportedOperationException.class, () -> fit(config(0.1f, failing)));
        assertEquals("own failure", e.getMessage());
        IllegalArgumentException none =
                assertThrows(
                        IllegalArgumentException.class, () -> fit(config(0.1f, bucket -> null)));
        assertEquals("the Work of the gradient hook is null", none.getMessage());
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void powerSgdLearns(boolean fromStart) throws Exception {
        Outcome plain = fit(config(0.5f, GradientCompression.NONE));
        // Six steps, so from step 6 on it never begins.
        Outcome low = fit(config(0.5f, new PowerSgd(1, fromStart ? 0 : 6)));
        if (fromStart) {
            assertTrue(low.losses().get(5) < low.losses().get(2) - 0.02f, low.losses()::toString);
            assertEquals(plain.losses().get(0), low.losses().get(0));
            assertTrue(!plain.losses().equals(low.losses()));
        } else {
            assertEqual(plain, low);
        }
    }

    @Test
    void ranksWithDifferentHooksAreRefused() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            CollectiveException e =
                    assertThrows(
                            CollectiveException.class,
                            () -> ProcessGroups.run(groups, GradientHookTest::initialize));
            assertTrue(
                    e.getMessage().contains("gradient hook PowerSgd of rank 2 from step 9"),
                    e.getMessage());
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static Void initialize(ProcessGroup group) {
        DataParallelConfig config =
                new DataParallelConfig(Training.loss())
                        .optProcessGroup(group)
                        .optGradientHook(new PowerSgd(1 + group.rank(), 9));
        try (Model model = Model.newInstance("model", P2pEngine.NAME)) {
            model.setBlock(Training.block());
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, Training.FEATURES));
            }
        }
        return null;
    }

    @Test
    void refusesWhatHooksCannotDo() {
        DataParallelConfig sharded =
                config(0.1f, GradientCompression.BFLOAT16)
                        .optShardingStrategy(ShardingStrategy.FULL_SHARD);
        String message =
                assertThrows(IllegalArgumentException.class, () -> fit(sharded)).getMessage();
        assertTrue(message.contains("'BFLOAT16' is not possible with FULL_SHARD"), message);
        DataParallelConfig scaled =
                config(0.1f, new PowerSgd(1, 0)).optGradScaler(new GradScaler());
        message = assertThrows(IllegalArgumentException.class, () -> fit(scaled)).getMessage();
        assertTrue(message.contains("PowerSgd keeps a part"), message);
        assertThrows(IllegalArgumentException.class, () -> new PowerSgd(0, 0));
        assertThrows(IllegalArgumentException.class, () -> new PowerSgd(1, -1));
    }
}

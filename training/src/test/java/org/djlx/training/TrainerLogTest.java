// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.nn.Block;
import java.util.List;
import java.util.function.UnaryOperator;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.TestLog;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.training.strategy.FullyShard;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What a trainer logs when it starts. */
@Timeout(120)
class TrainerLogTest {

    private static final String PROPERTY = "org.djlx.gradientReduction";

    private TestLog log;

    @BeforeEach
    void listen() {
        log = new TestLog(DataParallelTrainer.class);
    }

    @AfterEach
    void end() {
        log.close();
        System.clearProperty(PROPERTY);
    }

    private static DataParallelConfig config() {
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        config.optDevices(new Device[] {Device.cpu()});
        return config;
    }

    private static void train(DataParallelConfig config) {
        train(Training.block(), config);
    }

    private static void train(Block block, DataParallelConfig config) {
        try (Model model = Model.newInstance("model", P2pEngine.NAME)) {
            model.setBlock(block);
            model.newTrainer(config).close();
        }
    }

    /** Two ranks with a trainer each, as processes have. */
    private static void trainAsProcesses(UnaryOperator<DataParallelConfig> settings) {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        train(settings.apply(config().optProcessGroup(group)));
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void logsOneRank() {
        train(config());
        assertEquals(1, log.count("Training on 1 rank: device cpu()"));
        assertEquals(1, log.count(""));
    }

    @Test
    void logsRanksOfOneJvm() {
        train(config().optRanks(3).optBucketBytes(64));
        String devices = "devices [cpu(), cpu(), cpu()], backend shm";
        assertEquals(1, log.count("Training on 3 ranks in this JVM: " + devices));
        String gradients = "gradients summed (one loss for all ranks), gradient hook NONE";
        assertEquals(1, log.count(gradients + ", buckets of 64 bytes"));
        assertEquals(1, log.count(""));
    }

    @Test
    void onlyTheFirstProcessLogs() {
        trainAsProcesses(config -> config.optGradientReduction(GradientReduction.MEAN));
        assertEquals(1, log.count("Training on 2 ranks with a trainer each: this rank's device"));
        assertEquals(1, log.count("backend shm, gradient reduction MEAN (one loss per rank)"));
        assertEquals(1, log.count(""));
    }

    @Test
    void processesLogMeanAsTheirReduction() {
        trainAsProcesses(config -> config);
        assertEquals(1, log.count("gradient reduction MEAN"));
        trainAsProcesses(config -> config.optGradientReduction(GradientReduction.SUM));
        System.setProperty(PROPERTY, "sum");
        trainAsProcesses(config -> config);
        assertEquals(2, log.count("gradient reduction SUM"));
        assertEquals(3, log.count(""));
    }

    @Test
    void warnsOfFullyShardBlocksThatNoStrategyDivides() {
        for (ShardingStrategy sharding : ShardingStrategy.values()) {
            Block block = FullyShard.apply(Training.block(), each -> false);
            train(block, config().optRanks(2).optShardingStrategy(sharding));
        }
        String warning =
                "The block has FullyShard blocks, but with %s each rank has all parameters";
        assertEquals(1, log.count(warning.formatted(ShardingStrategy.NO_SHARD)));
        assertEquals(1, log.count(warning.formatted(ShardingStrategy.SHARD_OPTIMIZER)));
        assertEquals(2, log.count("The block has FullyShard blocks"));
    }
}

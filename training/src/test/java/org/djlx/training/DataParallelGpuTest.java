// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;

import ai.djl.Device;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.TrainingConfig;
import ai.djl.training.dataset.BatchSampler;
import ai.djl.training.dataset.Sampler;
import ai.djl.training.dataset.SequenceSampler;
import java.nio.file.Path;
import java.util.stream.IntStream;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.training.Training.Outcome;
import org.djlx.training.checkpoint.CheckpointManager;
import org.djlx.training.checkpoint.TrainingProgress;
import org.djlx.training.strategy.GradientCompression;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The same program on one GPU with DJL's engine, and on all GPUs of the machine with ours. */
@Tag("gpu")
@Timeout(300)
class DataParallelGpuTest {

    @BeforeEach
    void requireGpus() {
        GpuTests.require(2, NativeLibrary.NCCL, NativeLibrary.NVRTC);
    }

    private static Device[] gpus() {
        return IntStream.range(0, Math.min(8, CudaDevice.count()))
                .mapToObj(Device::gpu)
                .toArray(Device[]::new);
    }

    @ParameterizedTest
    @CsvSource({"sgd, cuda_p2p", "adam, cuda_p2p", "momentum, nccl"})
    void gpusOfOneJvmTrainAsOne(String optimizer, String backend) throws Exception {
        Sampler sampler = new BatchSampler(new SequenceSampler(), 10);
        TrainingConfig one =
                new DefaultTrainingConfig(Training.loss())
                        .optDevices(new Device[] {Device.gpu(0)})
                        .optOptimizer(Training.optimizer(optimizer));
        Outcome expected =
                Training.fit("PyTorch", one, Training.block(), 31, sampler, 3, 5, trainer -> {});
        DataParallelConfig all = new DataParallelConfig(Training.loss());
        all.optBackend(backend)
                .optBucketBytes(64)
                .optDevices(gpus())
                .optOptimizer(Training.optimizer(optimizer));
        Outcome outcome =
                Training.fit(
                        P2pEngine.NAME,
                        all,
                        Training.block(),
                        31,
                        sampler,
                        3,
                        5,
                        trainer -> assertEquals(Device.gpu(0), trainer.getDevices()[0]));
        DataParallelTest.assertSame(expected, outcome);
    }

    private static DataParallelConfig config(String optimizer) {
        DataParallelConfig config = new DataParallelConfig(Training.loss()).optBucketBytes(64);
        config.optDevices(gpus()).optOptimizer(Training.optimizer(optimizer));
        return config;
    }

    /** Trains on batches of 10 out of 30 items. */
    private static Outcome fit(DataParallelConfig config, int seed, Training.Start start)
            throws Exception {
        Sampler sampler = new BatchSampler(new SequenceSampler(), 10);
        return Training.fit(P2pEngine.NAME, config, Training.block(), 30, sampler, seed, start);
    }

    @Test
    void jobResumesFromACheckpoint(@TempDir Path directory) throws Exception {
        Outcome whole = fit(config("adam"), 5, trainer -> 4);
        DataParallelConfig ended = config("adam");
        ended.addTrainingListeners(
                CheckpointManager.builder().setDirectory(directory).optEvery(6).build());
        fit(ended, 5, trainer -> 2);
        CheckpointManager checkpoints = CheckpointManager.builder().setDirectory(directory).build();
        Outcome rest =
                fit(
                        config("adam"),
                        99,
                        trainer -> {
                            TrainingProgress done = checkpoints.restore(trainer);
                            assertEquals(new TrainingProgress(6, 2, 0), done);
                            return 2;
                        });
        DataParallelTest.assertSame(
                new Outcome(whole.losses().subList(6, 12), whole.parameters()), rest);
    }

    @Test
    void gradientsGoAsBfloat16() throws Exception {
        Outcome whole = fit(config("sgd"), 5, trainer -> 4);
        Outcome rounded =
                fit(config("sgd").optGradientHook(GradientCompression.BFLOAT16), 5, trainer -> 4);
        for (int i = 0; i < whole.losses().size(); i++) {
            assertEquals(whole.losses().get(i), rounded.losses().get(i), 0.01f, "batch " + i);
        }
        assertNotEquals(whole.losses(), rounded.losses());
    }

    @Test
    @Timeout(60)
    void failureOfARankEndsTheOthersReductions() {
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        config.optDevices(gpus());
        TrainerCareTest.failInBackward(config);
    }
}

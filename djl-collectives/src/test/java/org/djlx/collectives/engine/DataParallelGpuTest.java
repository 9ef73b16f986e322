/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.engine;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.Device;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.TrainingConfig;
import ai.djl.training.dataset.BatchSampler;
import ai.djl.training.dataset.Sampler;
import ai.djl.training.dataset.SequenceSampler;
import java.util.stream.IntStream;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.engine.Training.Outcome;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.NativeLibrary;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
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
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.RankProcesses;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.training.Training.Outcome;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Processes with a GPU each, the halves of which NCCL takes for two hosts. */
@Tag("gpu")
@Timeout(300)
class TrainingHostsGpuTest {

    @BeforeEach
    void requireGpus() {
        GpuTests.require(2, NativeLibrary.NCCL);
    }

    @ParameterizedTest
    @CsvSource({"sgd", "adam"})
    void hostsTrainAsOneProcess(String optimizer, @TempDir Path directory) throws Exception {
        int ranks = Integer.highestOneBit(Math.min(8, CudaDevice.count())); // 8 rows a batch
        Outcome expected = TrainingProcessesTest.onOne(optimizer, Device.gpu(0));
        Path logs = Files.createDirectory(directory.resolve("logs"));
        try (RankProcesses processes =
                new RankProcesses(
                        ranks,
                        rank -> environment(rank / (ranks / 2), logs.resolve("rank-" + rank)),
                        TrainingMain.class,
                        optimizer,
                        directory.toString(),
                        "nccl")) {
            TrainingProcessesTest.assertTrainAsOne(processes, ranks, expected);
        }
        String log = Files.readString(logs.resolve("rank-0"));
        assertTrue(log.contains("via NET/Socket"), log);
    }

    private static Map<String, String> environment(int host, Path log) {
        Map<String, String> environment = new HashMap<>();
        environment.put("NCCL_HOSTID", "host-" + host);
        environment.put("NCCL_SOCKET_IFNAME", "lo");
        environment.put("NCCL_IB_DISABLE", "1");
        environment.put("NCCL_DEBUG", "INFO");
        environment.put("NCCL_DEBUG_FILE", log.toString());
        return environment;
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.function.IntFunction;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.RankProcesses;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** The contract on {@code nccl}, with ranks that are processes, on all GPUs of the machine. */
@Tag("gpu")
@Tag("beside")
@Timeout(300)
class NcclProcessesTest {

    @BeforeEach
    void requireGpus() {
        NcclCases.require(2);
    }

    @Test
    void ranksInProcessesFulfilTheContract() throws InterruptedException {
        run(rank -> Map.of(), "nccl", "lazy");
    }

    /** With messages on the group's communicator. */
    @Test
    void contractHoldsWithMessagesOnTheGroupsCommunicator() throws InterruptedException {
        run(rank -> Map.of(), "nccl", "eager");
    }

    @Test
    void contractOnTwoHosts(@TempDir Path logs) throws InterruptedException, IOException {
        runOnTwoHosts("nccl", logs);
    }

    @Test
    void contractOfCudaP2pOnTwoHosts(@TempDir Path logs) throws InterruptedException, IOException {
        GpuTests.require(2, NativeLibrary.NVRTC); // Sub-groups of one rank compile kernels.
        String output = runOnTwoHosts("cuda_p2p", logs);
        assertTrue(output.contains("'default' uses NCCL only, on all ranks: rank 0 and"), output);
        assertTrue(output.contains("are on different hosts"), output);
    }

    /** NCCL takes the halves of the GPUs for two hosts, which reach each other by sockets. */
    private static String runOnTwoHosts(String backend, Path logs)
            throws InterruptedException, IOException {
        int half = (CudaDevice.count() + 1) / 2;
        String output =
                run(
                        rank -> {
                            Map<String, String> environment = new HashMap<>();
                            // CUDA's default: ranks with a GPU each need no more for sub-groups.
                            environment.put("CUDA_DEVICE_MAX_CONNECTIONS", "8");
                            environment.put("NCCL_HOSTID", "host-" + rank / half);
                            environment.put("NCCL_SOCKET_IFNAME", "lo");
                            environment.put("NCCL_IB_DISABLE", "1");
                            environment.put("NCCL_DEBUG", "INFO");
                            environment.put(
                                    "NCCL_DEBUG_FILE", logs.resolve("rank-" + rank).toString());
                            return environment;
                        },
                        backend,
                        "eager");
        String log = Files.readString(logs.resolve("rank-0"));
        assertTrue(log.contains("via NET/Socket"), log);
        return output;
    }

    /** Returns what rank 0 printed. */
    private static String run(
            IntFunction<Map<String, String>> environment, String backend, String mode)
            throws InterruptedException {
        int worldSize = CudaDevice.count();
        try (RankProcesses ranks =
                new RankProcesses(worldSize, environment, NcclContractMain.class, backend, mode)) {
            ranks.awaitSuccess();
            for (int rank = 0; rank < worldSize; rank++) {
                String output = ranks.output(rank);
                for (String name :
                        NcclContractMain.cases(mode.equals("eager"), worldSize).keySet()) {
                    assertTrue(output.contains("passed " + name + "\n"), output);
                }
            }
            return ranks.output(0);
        }
    }
}

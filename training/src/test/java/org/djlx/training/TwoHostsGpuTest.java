// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.internal.nccl.NcclVictimMain;
import org.djlx.collectives.launch.TwoHosts;
import org.djlx.nativeops.NativeLibrary;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** A launcher and a GPU on each of two hosts, which have a network only. */
@Tag("gpu")
@Timeout(240)
class TwoHostsGpuTest {

    @TempDir private Path directory;

    @BeforeEach
    void requireGpusAndNamespaces() throws Exception {
        GpuTests.require(2, NativeLibrary.NCCL);
        TwoHosts.require(directory);
    }

    /** A group of {@code cuda_p2p} uses NCCL on both ranks. */
    @ParameterizedTest
    @CsvSource({"nccl,", "cuda_p2p,", "cuda_p2p, hybrid"})
    void hostsTrainAsOne(String backend, String sharding) throws Exception {
        List<String> program = new ArrayList<>();
        program.addAll(List.of("--env", "NCCL_DEBUG=INFO"));
        // In a file of each host: NCCL's lines would interrupt those of the rank.
        program.addAll(List.of("--env", "NCCL_DEBUG_FILE=" + directory.resolve("nccl.%h")));
        program.addAll(List.of(TrainingMain.class.getName(), "adam"));
        program.addAll(List.of(directory.toString(), backend));
        if (sharding != null) {
            program.add(sharding);
        }
        List<String> outputs = new ArrayList<>();
        try (TwoHosts hosts = TwoHosts.launch(directory, program.toArray(String[]::new))) {
            for (int host = 0; host < 2; host++) {
                int code = hosts.await(host);
                assertEquals(0, code, hosts.output(host));
                String prefix = "[" + host + "] ";
                outputs.add(
                        hosts.output(host)
                                .lines()
                                .filter(line -> line.startsWith(prefix))
                                .map(line -> line.substring(prefix.length()))
                                .collect(Collectors.joining("\n")));
            }
        }
        String connections = Files.readString(directory.resolve("nccl.host0"));
        assertTrue(connections.contains("via NET/Socket"), connections);
        if (backend.equals("cuda_p2p")) {
            assertTrue(outputs.get(0).contains("are on different hosts"), outputs.get(0));
        }
        TrainingProcessesTest.assertTrainAsOne(
                outputs, TrainingProcessesTest.onOne("adam", Device.gpu(0)));
    }

    /** The other rank waits for the killed one in NCCL; its launcher ends it. */
    @Test
    void aKilledHostEndsTheJob() throws Exception {
        String victim = NcclVictimMain.class.getName();
        try (TwoHosts hosts = TwoHosts.launch(directory, victim, "collectives")) {
            for (int host = 0; host < 2; host++) {
                while (!hosts.output(host).contains("ready")) {
                    Thread.sleep(20);
                }
            }
            hosts.kill(1);
            int code = hosts.await(0);
            assertNotEquals(0, code, hosts.output(0));
            assertTrue(hosts.output(0).contains("has died or left"), hosts.output(0));
        }
    }
}

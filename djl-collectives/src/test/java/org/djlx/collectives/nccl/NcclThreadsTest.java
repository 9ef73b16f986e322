/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.nccl;

import static org.junit.jupiter.api.DynamicTest.dynamicTest;

import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.ContractCases;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.NativeLibrary;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.Timeout;

/** The contract on {@code nccl}, with ranks that are threads, on all GPUs of the machine. */
@Tag("gpu")
@Timeout(300)
class NcclThreadsTest {

    // What NCCL does not do: it neither compares calls nor tells who is missing, and has no tags.
    private static final Set<String> NOT_NCCL =
            Set.of(
                    "coalescedMismatch",
                    "mismatches",
                    "misfits",
                    "undefinedReductions",
                    "destroyedWhilePending",
                    "peerDestroyed",
                    "timeouts",
                    "sendRecv",
                    "sendRecvStrided",
                    "tags",
                    "orderOfMessages",
                    "anySource",
                    "batch",
                    "besideCollectives",
                    "differentPeers",
                    "messageMisfits",
                    "messageTimeouts",
                    "wrongMessages",
                    "monitoredBarrier",
                    "monitoredBarrierMissing",
                    "monitoredBarrierTimeout");

    @BeforeAll
    static void requireGpus() {
        for (NativeLibrary library :
                List.of(NativeLibrary.CUDA, NativeLibrary.CUDA_PRESETS, NativeLibrary.NCCL)) {
            Assumptions.assumeTrue(
                    library.isAvailable(), () -> library + ": " + library.unavailabilityCause());
        }
    }

    @TestFactory
    Stream<DynamicTest> contract() {
        int gpus = CudaDevice.count();
        return IntStream.of(1, 2, gpus).distinct().boxed().flatMap(NcclThreadsTest::contract);
    }

    private static Stream<DynamicTest> contract(int worldSize) {
        return ContractCases.all().entrySet().stream()
                .filter(entry -> !NOT_NCCL.contains(entry.getKey()))
                .map(
                        entry ->
                                dynamicTest(
                                        worldSize + " ranks: " + entry.getKey(),
                                        () -> run(worldSize, entry.getValue())));
    }

    private static void run(int worldSize, ContractCases.Case body) {
        List<ProcessGroup> groups =
                ProcessGroups.local(
                        "nccl",
                        worldSize,
                        NcclOptions.builder().optTimeout(Duration.ofSeconds(30)).build());
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        ContractCases.run(body, group);
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.nccl;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import org.djlx.collectives.ContractCases;
import org.djlx.collectives.GpuTests;
import org.djlx.nativeops.NativeLibrary;

/** What the tests of {@code nccl} share: the part of the contract that NCCL can keep. */
public final class NcclCases {

    // NCCL does not compare calls, and does not tell who is missing; verification does.
    private static final Set<String> VERIFIED =
            Set.of(
                    "coalescedMismatch",
                    "mismatches",
                    "objectMismatches",
                    "misfits",
                    "newGroupDiffers",
                    "messageMisfits",
                    "timeouts");

    private static final Set<String> IMPOSSIBLE =
            Set.of(
                    // There are no tags: messages are matched in their order.
                    "tags",
                    // There is no receive from any source.
                    "anySource",
                    "messageTimeouts",
                    // Destroying a group waits for what is under way.
                    "destroyedWhilePending",
                    // A rank that leaves is not noticed before the timeout.
                    "peerDestroyed",
                    "monitoredBarrierMissing",
                    // A late message breaks its communicator, so that no other follows.
                    "monitoredBarrierTimeout");

    private NcclCases() {}

    /** The cases that hold on a number of ranks, of a backend that is NCCL or wraps it. */
    public static Map<String, ContractCases.Case> cases(int worldSize) {
        Map<String, ContractCases.Case> cases = new LinkedHashMap<>(ContractCases.all());
        cases.keySet().removeAll(IMPOSSIBLE);
        cases.keySet().removeAll(VERIFIED);
        if (worldSize == 1) {
            cases.remove("wrongMessages"); // It receives from any source.
        }
        return cases;
    }

    /** The cases that hold with verification only. */
    public static Map<String, ContractCases.Case> verifiedCases() {
        Map<String, ContractCases.Case> cases = new LinkedHashMap<>(ContractCases.all());
        cases.keySet().retainAll(VERIFIED);
        return cases;
    }

    /** Skips the test, with the cause, unless there are as many GPUs and NCCL. */
    static void require(int gpus) {
        GpuTests.require(gpus, NativeLibrary.NCCL);
    }
}

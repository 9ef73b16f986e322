// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import org.djlx.collectives.ContractCases;
import org.djlx.collectives.GpuTests;
import org.djlx.nativeops.NativeLibrary;

/** The cases of the contract that NCCL can pass, for the tests of {@code nccl}. */
public final class NcclCases {

    // NCCL neither compares calls nor names missing ranks; verification does.
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
                    // NCCL has no tags: messages match in order.
                    "tags",
                    // NCCL has no receive from any source.
                    "anySource",
                    "messageTimeouts",
                    // destroy() waits for operations under way.
                    "destroyedWhilePending",
                    // NCCL does not detect that a rank has left before the timeout.
                    "peerDestroyed",
                    "monitoredBarrierMissing",
                    // A message that times out breaks its communicator, so later ones fail.
                    "monitoredBarrierTimeout");

    // A message passes an earlier operation of its rank, which needs communicators of the pairs.
    private static final Set<String> PASSING =
            Set.of("sendRecv", "besideCollectives", "differentPeers", "c10dMessages");

    private NcclCases() {}

    /** Returns the cases for a number of ranks, of NCCL or a backend that wraps it. */
    public static Map<String, ContractCases.Case> cases(int worldSize) {
        Map<String, ContractCases.Case> cases = new LinkedHashMap<>(ContractCases.all());
        cases.keySet().removeAll(IMPOSSIBLE);
        cases.keySet().removeAll(VERIFIED);
        if (worldSize == 1) {
            cases.remove("wrongMessages"); // It receives from any source.
        }
        return cases;
    }

    /** Returns the cases for messages on the group's communicator. */
    static Map<String, ContractCases.Case> casesInTurn(int worldSize) {
        Map<String, ContractCases.Case> cases = cases(worldSize);
        cases.keySet().removeAll(PASSING);
        return cases;
    }

    /** Returns the cases that need verification. */
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

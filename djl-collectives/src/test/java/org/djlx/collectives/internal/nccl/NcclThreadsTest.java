// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ContractCases;
import org.djlx.collectives.DebugLevel;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.nativeops.cuda.CudaDevice;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The contract on {@code nccl}, with ranks that are threads, on all GPUs of the machine. */
@Tag("gpu")
@Tag("beside")
@Timeout(300)
class NcclThreadsTest {

    @BeforeEach
    void requireGpus() {
        NcclCases.require(1);
    }

    /** The communicator is created with the first operation. */
    @TestFactory
    Stream<DynamicTest> contract() {
        int worldSize = CudaDevice.count();
        return tests(NcclCases.cases(worldSize), worldSize, options());
    }

    @TestFactory
    Stream<DynamicTest> contractOfOne() {
        Assumptions.assumeTrue(CudaDevice.count() > 1, "contract() is of one rank here");
        return tests(NcclCases.cases(1), 1, options());
    }

    /** Operations of several kinds create the communicator, each of a group of its own. */
    @TestFactory
    Stream<DynamicTest> firstOperations() {
        return testsOnOwnGroups(
                cases("broadcast", "sendRecv", "batch", "allReduceCoalesced", "objects", "split"),
                options());
    }

    /** With calls compared across ranks. */
    @TestFactory
    Stream<DynamicTest> verifiedContract() {
        return testsOnOwnGroups(NcclCases.verifiedCases(), options().optDebug(DebugLevel.DETAIL));
    }

    /** With messages on the group's communicator. */
    @TestFactory
    Stream<DynamicTest> eagerContract() {
        int worldSize = CudaDevice.count();
        return tests(NcclCases.casesInTurn(worldSize), worldSize, eager());
    }

    /** The messages of a batch are compared together, in whatever order the peer has them. */
    @TestFactory
    Stream<DynamicTest> verifiedMessagesOnTheGroupsCommunicator() {
        return testsOnOwnGroups(
                cases("batch", "inTurn", "orderOfMessages", "messageMisfits"),
                eager().optDebug(DebugLevel.DETAIL));
    }

    @TestFactory
    Stream<DynamicTest> messagesOfEagerGroupsOnPairCommunicators() {
        int worldSize = CudaDevice.count();
        Map<String, ContractCases.Case> cases = NcclCases.cases(worldSize);
        cases.keySet().removeAll(NcclCases.casesInTurn(worldSize).keySet());
        return tests(cases, worldSize, eager().optPairCommunicators(true));
    }

    /** Sub-groups and barriers block the host, even if works do not. */
    @TestFactory
    Stream<DynamicTest> nonBlockingContract() {
        return testsOnOwnGroups(
                cases("barrier", "monitoredBarrier", "newGroup", "split", "subGroupsOfSubGroups"),
                options().optBlockingWait(false));
    }

    private static NcclOptions.Builder options() {
        return NcclOptions.builder().optTimeout(Duration.ofSeconds(60));
    }

    private static NcclOptions.Builder eager() {
        return options()
                .optDevices(
                        IntStream.range(0, CudaDevice.count())
                                .mapToObj(Device::gpu)
                                .toArray(Device[]::new));
    }

    private static Map<String, ContractCases.Case> cases(String... names) {
        Map<String, ContractCases.Case> cases = ContractCases.all();
        cases.keySet().retainAll(Set.of(names));
        return cases;
    }

    private static Stream<DynamicTest> tests(
            Map<String, ContractCases.Case> cases, int worldSize, NcclOptions.Builder options) {
        return ContractCases.tests(
                cases,
                () -> ProcessGroups.local("nccl", worldSize, options.build()),
                (group, body) -> body.run());
    }

    private static Stream<DynamicTest> testsOnOwnGroups(
            Map<String, ContractCases.Case> cases, NcclOptions.Builder options) {
        return ContractCases.testsOnOwnGroups(
                cases,
                () -> ProcessGroups.local("nccl", CudaDevice.count(), options.build()),
                (group, body) -> body.run());
    }

    /**
     * The ranks have not exchanged anything when rank 1 fails, or rank 1 waits for the first
     * exchange. NCCL never connects them, so they may share a GPU. The cause is none that a call
     * would have announced.
     */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    @Timeout(60)
    void aRankThatFailsBeforeItIsConnectedEndsTheOthers(boolean called) {
        NcclOptions minutes = NcclOptions.builder().optTimeout(Duration.ofMinutes(10)).build();
        List<ProcessGroup> groups = ProcessGroups.local("nccl", 2, minutes);
        ProcessGroup failing = groups.get(1);
        try (NDManager manager = NDManager.newBaseManager(groups.get(0).device(), "PyTorch");
                NDManager other = NDManager.newBaseManager(failing.device(), "PyTorch")) {
            if (called) {
                failing.allReduce(other.ones(new Shape(2)), ReduceOp.SUM);
            }
            failing.abort(new IllegalStateException("the reader ended"));
            Work work = groups.get(0).allReduce(manager.ones(new Shape(2)), ReduceOp.SUM);
            CollectiveException e = assertThrows(CollectiveException.class, work::await);
            assertTrue(e.getMessage().contains("rank 1 failed"), e.getMessage());
            assertTrue(e.getMessage().contains("the reader ended"), e.getMessage());
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}

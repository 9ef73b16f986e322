// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.Map;
import java.util.function.BiFunction;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.core.config.Configurator;
import org.djlx.collectives.internal.host.LongWaits;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What groups tell for debugging. */
@Timeout(120)
class DebugLevelTest {

    private static final String GROUP_STATE = "org.djlx.collectives.internal.group.GroupState";

    @Test
    void variableIsPyTorchs() {
        assertEquals(DebugLevel.OFF, DebugLevel.of(Map.of()));
        assertEquals(DebugLevel.OFF, level(""));
        assertEquals(DebugLevel.INFO, level("info"));
        assertEquals(DebugLevel.DETAIL, level(" DETAIL "));
        IllegalArgumentException e =
                assertThrows(IllegalArgumentException.class, () -> level("ON"));
        assertTrue(e.getMessage().contains("OFF, INFO or DETAIL"), e.getMessage());
    }

    private static DebugLevel level(String value) {
        return DebugLevel.of(Map.of(DebugLevel.VARIABLE, value));
    }

    private static List<ProcessGroup> groups(DebugLevel level) {
        ShmOptions options = ShmOptions.builder().optDebug(level).build();
        return ProcessGroups.local("shm", 2, options);
    }

    @Test
    void detailFindsNanInEveryInput() {
        Map<String, BiFunction<ProcessGroup, NDArray, Work>> calls =
                Map.of(
                        "allReduce", (g, t) -> g.allReduce(t, ReduceOp.SUM),
                        "reduce", (g, t) -> g.reduce(t, 0, ReduceOp.SUM),
                        "broadcast", (g, t) -> g.broadcast(t, 1),
                        "allGather", (g, t) -> g.allGather(List.of(like(t), like(t)), t),
                        "gather", (g, t) -> g.gather(g.rank() == 0 ? both(t) : null, t, 0),
                        "scatter", (g, t) -> g.scatter(like(t), g.rank() == 1 ? pair(t) : null, 1),
                        "reduceScatter", (g, t) -> g.reduceScatter(like(t), pair(t), ReduceOp.SUM),
                        "allToAll", (g, t) -> g.allToAll(both(t), pair(t)),
                        "allToAllSingle", (g, t) -> g.allToAllSingle(like(t), t),
                        "allReduceCoalesced",
                                (g, t) -> g.allReduceCoalesced(List.of(t), ReduceOp.SUM));
        calls.forEach((name, call) -> assertNanFound(name, ScalarType.FLOAT32, call));
        for (ScalarType type :
                List.of(
                        ScalarType.FLOAT64,
                        ScalarType.FLOAT16,
                        ScalarType.BFLOAT16,
                        ScalarType.COMPLEX64)) {
            assertNanFound("allReduce", type, calls.get("allReduce"));
        }
        for (ScalarType type : List.of(ScalarType.FLOAT8_E4M3FN, ScalarType.FLOAT8_E5M2)) {
            assertNanFound("broadcast", type, calls.get("broadcast"));
        }
    }

    private static void assertNanFound(
            String name, ScalarType type, BiFunction<ProcessGroup, NDArray, Work> call) {
        List<ProcessGroup> groups = groups(DebugLevel.DETAIL);
        CollectiveException e =
                assertThrows(
                        CollectiveException.class,
                        () ->
                                ProcessGroups.run(
                                        groups,
                                        group -> {
                                            try (NDManager manager =
                                                    NDManager.newBaseManager("PyTorch")) {
                                                NDArray t = values(manager, group.rank(), type);
                                                call.apply(group, t).await();
                                            }
                                            return null;
                                        }),
                        name);
        groups.forEach(ProcessGroup::destroy);
        String message = e.getMessage();
        assertTrue(message.contains("input of rank 1, "), name + ": " + message);
        assertTrue(message.contains("(2, 2), contains 1 NaN, the first at [1, 0]"), message);
        for (Throwable other : e.getSuppressed()) {
            assertTrue(other.getMessage().contains("input of rank 1"), other.getMessage());
        }
    }

    private static NDArray values(NDManager manager, int rank, ScalarType type) {
        float value = rank == 1 ? Float.NaN : 3;
        NDArray values = manager.create(new float[] {1, 2, value, 4}, new Shape(2, 2));
        return Torch.cast(values, type);
    }

    private static NDArray like(NDArray tensor) {
        return tensor.zerosLike();
    }

    private static List<NDArray> both(NDArray tensor) {
        return List.of(like(tensor), like(tensor));
    }

    private static List<NDArray> pair(NDArray tensor) {
        return List.of(tensor.duplicate(), tensor);
    }

    @Test
    void infoSendsNanAndLogsGroups() {
        Configurator.setLevel(GROUP_STATE, Level.INFO);
        try (TestLog log = new TestLog(GROUP_STATE)) {
            List<ProcessGroup> groups = groups(DebugLevel.INFO);
            ProcessGroups.run(
                    groups,
                    group -> {
                        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                            NDArray t = values(manager, group.rank(), ScalarType.FLOAT32);
                            group.allReduce(t, ReduceOp.SUM).await();
                            assertTrue(Float.isNaN(t.getFloat(1, 0)));
                        }
                        return null;
                    });
            groups.forEach(ProcessGroup::destroy);
            for (ProcessGroup group : groups) {
                assertEquals(1, log.count(group + " created: ranks [0, 1]"));
                assertEquals(1, log.count(group + " destroyed after 1 collectives"));
            }
            groups(DebugLevel.OFF).forEach(ProcessGroup::destroy);
            assertEquals(2, log.count("created"));
        } finally {
            Configurator.setLevel(GROUP_STATE, (Level) null);
        }
    }

    @Test
    void mismatchIsThrownAndLoggedOnce() {
        List<ProcessGroup> groups = groups(DebugLevel.OFF);
        try (TestLog log = new TestLog("org.djlx.collectives.trace.GroupTrace")) {
            CollectiveMismatchException e =
                    assertThrows(
                            CollectiveMismatchException.class,
                            () ->
                                    ProcessGroups.run(
                                            groups,
                                            group -> {
                                                int length = group.rank() + 1;
                                                try (NDManager manager =
                                                        NDManager.newBaseManager("PyTorch")) {
                                                    NDArray t = manager.ones(new Shape(length));
                                                    group.allReduce(t, ReduceOp.SUM).await();
                                                }
                                                return null;
                                            }));
            assertTrue(e.getMessage().contains("rank 1 called allReduce(float32, (2)"));
            assertEquals(null, e.getCause());
            assertEquals(0, e.getSuppressed().length);
            assertEquals(1, log.count("is not the same on all ranks"));
        }
        groups.forEach(ProcessGroup::destroy);
    }

    /** A loop over the ranks of a local group waits for rank 1 in the call of rank 0. */
    @Test
    void threadThatCallsForAllRanksIsToldSoon() throws InterruptedException {
        List<ProcessGroup> groups = groups(DebugLevel.OFF);
        try (TestLog log = new TestLog(LongWaits.class)) {
            String hint = "thread " + Thread.currentThread().getName() + ", which created";
            Thread rescue =
                    new Thread(
                            () -> {
                                try {
                                    log.await(hint);
                                    groups.get(1).barrier().await();
                                } catch (InterruptedException e) {
                                    Thread.currentThread().interrupt();
                                }
                            });
            rescue.start();
            groups.get(0).barrier().await();
            rescue.join();
            assertEquals(1, log.count("call for each rank on a thread of its own"));
        }
        groups.forEach(ProcessGroup::destroy);
    }

    @Test
    void otherErrorsKeepTheirRank() {
        List<ProcessGroup> groups = groups(DebugLevel.OFF);
        CollectiveException e =
                assertThrows(
                        CollectiveException.class,
                        () ->
                                ProcessGroups.run(
                                        groups,
                                        group -> {
                                            throw new CollectiveMismatchException(
                                                    "of rank " + group.rank());
                                        }));
        assertTrue(e.getMessage().matches("rank [01] failed: of rank [01]"), e.getMessage());
        assertInstanceOf(CollectiveMismatchException.class, e.getCause());
        assertEquals(1, e.getSuppressed().length);
        groups.forEach(ProcessGroup::destroy);
    }
}

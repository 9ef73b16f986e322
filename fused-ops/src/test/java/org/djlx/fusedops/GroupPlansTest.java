// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.spi.OpType;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.internal.path.FusedPlan;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.PlanKey;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Plans of a group do not keep the group alive, nor the view through which they were made. */
@Timeout(120)
class GroupPlansTest {

    private static final Duration PATIENCE = Duration.ofSeconds(60);

    private static List<ProcessGroup> groups(int worldSize) {
        return ProcessGroups.local(
                "shm",
                worldSize,
                ShmOptions.builder().optTimeout(PATIENCE).optBufferSize(1 << 20).build());
    }

    private static void callAll(ProcessGroup group) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                UsageCounter counter = FusedOps.countUsage()) {
            NDArray a = manager.ones(new Shape(2, 3));
            FusedOps.allGatherMatmul(a, List.of(manager.ones(new Shape(3, 5))), 0, group);
            NDArray whole = manager.ones(new Shape(4, 3));
            NDArray b = manager.ones(new Shape(3, 5));
            FusedOps.matmulReduceScatter(whole, b, ReduceOp.SUM, 0, group);
            FusedOps.allReduceRmsNorm(a, a, manager.ones(new Shape(3)), 1e-5f, group);
            LowContention.allGather(group, whole, a).await();
            LowContention.reduceScatter(group, a, whole, ReduceOp.SUM).await();
            assertTrue(counter.calls(Path.PIPELINED) > 0);
        }
    }

    /** Uses fused operators, and drops the group. */
    private static String forget() {
        List<ProcessGroup> groups = groups(2);
        ProcessGroups.run(
                groups,
                group -> {
                    callAll(group);
                    return null;
                });
        return groups.get(0).name();
    }

    @Test
    void aForgottenGroupIsFreed() throws InterruptedException {
        String threads = "shm-" + forget() + "-";
        long start = System.nanoTime();
        while (Thread.getAllStackTraces().keySet().stream()
                .anyMatch(thread -> thread.getName().startsWith(threads))) {
            assertTrue(System.nanoTime() - start < PATIENCE.toNanos(), threads);
            System.gc();
            Thread.sleep(10);
        }
    }

    @Test
    void aPlanHasTheTimeoutOfTheCall() {
        List<ProcessGroup> groups = groups(2);
        LocalRanks.run(
                groups,
                group -> {
                    callAll(group);
                    if (group.rank() == 0) {
                        ProcessGroup hasty = group.withTimeout(Duration.ofMillis(300));
                        CollectiveTimeoutException e =
                                assertThrows(
                                        CollectiveTimeoutException.class, () -> callAll(hasty));
                        assertEquals(List.of(1), e.missingRanks());
                        assertTrue(e.getMessage().contains("300 ms"), e::getMessage);
                    }
                });
    }

    /** A plan that records whether it was closed. */
    private static final class Empty implements FusedPlan {

        private boolean closed;

        @Override
        public void close() {
            closed = true;
        }
    }

    private static PlanKey key(NDArray array, int dimension, int option) {
        TensorInfo[] infos = {Torch.info(array)};
        return new PlanKey(OpType.BARRIER, dimension, option, new Operands(List.of(array), infos));
    }

    @Test
    void thePlanThatWasUsedTheLongestAgoIsClosed() {
        List<ProcessGroup> groups = groups(1);
        GroupPlans plans = GroupPlans.of(groups.get(0));
        List<Empty> made = new ArrayList<>();
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray array = manager.ones(new Shape(2, 3));
            for (int i = 0; i < GroupPlans.MAX_PLANS; i++) {
                made.add(plans.keep(key(array, i, 0), new Empty()));
            }
            assertSame(made.get(0), plans.find(key(array, 0, 0)));
            plans.keep(key(array, GroupPlans.MAX_PLANS, 0), new Empty());
            assertNull(plans.find(key(array, 1, 0)));
            assertTrue(made.get(1).closed);
            assertEquals(1, made.stream().filter(plan -> plan.closed).count());
        }
        groups.forEach(ProcessGroup::destroy);
    }

    @Test
    void aPlanIsForOneKindOfCall() {
        List<ProcessGroup> groups = groups(1);
        GroupPlans plans = GroupPlans.of(groups.get(0));
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray array = manager.ones(new Shape(3, 3));
            Empty plan = plans.keep(key(array, 0, 0), new Empty());
            NDArray same = manager.ones(new Shape(3, 3));
            assertSame(plan, plans.find(key(same, 0, 0))); // libtorch aligns both
            for (NDArray other :
                    List.of(
                            array.transpose(),
                            array.get("1:"),
                            array.expandDims(0),
                            Torch.cast(array, ScalarType.INT32))) {
                assertNull(plans.find(key(other, 0, 0)));
            }
            assertNull(plans.find(key(array, 1, 0)));
            assertNull(plans.find(key(array, 0, 1)));
        }
        groups.forEach(ProcessGroup::destroy);
    }
}

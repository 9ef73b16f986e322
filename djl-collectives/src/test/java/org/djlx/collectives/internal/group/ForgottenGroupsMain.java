// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.lang.ref.WeakReference;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import java.util.stream.Stream;
import javax.management.ObjectName;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Operation.Agreed;

/** Drops groups without destroying them, in a separate JVM, and checks what is left. */
final class ForgottenGroupsMain {

    private static final int GROUPS = 100;
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    private static final BackendOptions OPTIONS = new BackendOptions(Duration.ofMinutes(2));
    private static final Agreed NOTHING = new Agreed(null, new long[0], null, 0);

    private ForgottenGroupsMain() {}

    /** An attachment of a group. */
    private static final class Attached implements AutoCloseable {

        static final AtomicInteger OPEN = new AtomicInteger();

        Attached() {
            OPEN.incrementAndGet();
        }

        @Override
        public void close() {
            OPEN.decrementAndGet();
        }
    }

    /** The resources that groups hold in this process. */
    private record Held(long threads, long mappings, long beans, int attachments) {

        static Held now() {
            try (Stream<String> lines = Files.lines(Path.of("/proc/self/maps"))) {
                return new Held(
                        Thread.getAllStackTraces().keySet().stream()
                                .filter(thread -> thread.getName().startsWith("shm-"))
                                .count(),
                        lines.filter(line -> line.contains("djlx-")).count(),
                        ManagementFactory.getPlatformMBeanServer()
                                .queryNames(new ObjectName("org.djlx.collectives:*"), null)
                                .size(),
                        Attached.OPEN.get());
            } catch (IOException | javax.management.JMException e) {
                throw new AssertionError(e);
            }
        }
    }

    public static void main(String[] args) {
        Held before = Held.now();
        assertEquals(new Held(0, 0, 0, 0), before);
        List<WeakReference<ProcessGroup>> handles = forgetMany();
        collectUntil(() -> Held.now().equals(before));
        assertTrue(handles.stream().allMatch(handle -> handle.get() == null));
        for (boolean keepsWork : new boolean[] {true, false}) {
            anOperationUnderWayKeepsItsGroup(keepsWork);
            collectUntil(() -> Held.now().equals(before));
        }
        aSubGroupKeepsTheGroup();
        collectUntil(() -> Held.now().equals(before));
        aViewKeepsTheGroup();
        collectUntil(() -> Held.now().equals(before));
        recordedOperationsKeepTheirGroup();
        assertEquals(before, Held.now());
    }

    private static void collectUntil(BooleanSupplier done) {
        long start = System.nanoTime();
        while (!done.getAsBoolean()) {
            if (System.nanoTime() - start > PATIENCE.toNanos()) {
                throw new AssertionError("after " + PATIENCE + " there is still " + Held.now());
            }
            System.gc();
            pause();
        }
    }

    private static void pause() {
        try {
            Thread.sleep(10);
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    /** Groups that have done all they can, and sub-groups. */
    private static List<WeakReference<ProcessGroup>> forgetMany() {
        List<ProcessGroup> all = new ArrayList<>();
        for (int i = 0; i < GROUPS; i++) {
            List<ProcessGroup> groups = ProcessGroups.local("shm", 2, OPTIONS);
            all.addAll(groups);
            all.addAll(ProcessGroups.run(groups, ForgottenGroupsMain::use));
        }
        // A sub-group has the threads, the mapping and the bean of a group.
        assertEquals(4 * GROUPS, all.size());
        Held held = Held.now();
        assertTrue(held.threads() >= 4 * GROUPS, held::toString);
        assertEquals(4 * GROUPS, held.mappings());
        assertEquals(4 * GROUPS, held.beans());
        assertEquals(2 * GROUPS, held.attachments());
        return all.stream().map(WeakReference::new).toList();
    }

    private static ProcessGroup use(ProcessGroup group) {
        ProcessGroup part = group.split(0, 0);
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray tensor = manager.ones(new Shape(100));
            for (ProcessGroup each : List.of(group, part)) {
                each.allReduce(tensor, ReduceOp.SUM).await();
                each.allReduceCoalesced(List.of(tensor, tensor.duplicate()), ReduceOp.MAX).await();
                int peer = 1 - each.rank();
                Work sent = each.send(tensor, peer, 0);
                each.recv(tensor.duplicate(), peer, 0).await();
                sent.await();
                each.execute(new OpType("own"), NOTHING, operation -> each.rank()).await();
            }
        }
        group.monitoredBarrier(OPTIONS.timeout(), true);
        group.attachment(Attached.class, Attached::new);
        return part;
    }

    private static void anOperationUnderWayKeepsItsGroup(boolean keepsWork) {
        List<ProcessGroup> groups = new ArrayList<>(ProcessGroups.local("shm", 2, OPTIONS));
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray received = manager.zeros(new Shape(3));
            Work receive = groups.get(1).recv(received, 0, 0);
            Work barrier = groups.get(1).barrier();
            if (!keepsWork) {
                receive = null;
                barrier = null;
            }
            forget(groups, 1);
            NDArray sent = manager.ones(new Shape(3));
            groups.get(0).send(sent, 1, 0).await();
            groups.get(0).barrier().await();
            if (keepsWork) {
                receive.await();
                barrier.await();
                assertEquals(sent, received);
            }
        }
    }

    private static void aSubGroupKeepsTheGroup() {
        List<ProcessGroup> groups = new ArrayList<>(ProcessGroups.local("shm", 2, OPTIONS));
        List<ProcessGroup> parts = ProcessGroups.run(groups, group -> group.split(0, 0));
        forget(groups, 0);
        forget(groups, 1);
        parts.forEach(ForgottenGroupsMain::checkSound);
    }

    private static void aViewKeepsTheGroup() {
        List<ProcessGroup> groups = new ArrayList<>(ProcessGroups.local("shm", 1, OPTIONS));
        ProcessGroup view = groups.get(0).withTimeout(Duration.ofSeconds(30));
        forget(groups, 0);
        checkSound(view);
    }

    private static void recordedOperationsKeepTheirGroup() {
        List<ProcessGroup> groups = new ArrayList<>(ProcessGroups.local("shm", 1, OPTIONS));
        groups.get(0).execute(new OpType("graph"), NOTHING, Operation::keepGroup).await();
        GroupState state = ((RankGroup) groups.get(0)).state();
        forget(groups, 0);
        state.checkUsable();
        WeakReference<GroupState> freed = new WeakReference<>(state);
        state.destroy();
        state = null;
        collectUntil(() -> freed.get() == null);
    }

    /** Drops a handle, and gives the JVM time to collect it. */
    private static void forget(List<ProcessGroup> groups, int rank) {
        WeakReference<ProcessGroup> handle = new WeakReference<>(groups.set(rank, null));
        collectUntil(() -> handle.get() == null);
        for (int i = 0; i < 10; i++) {
            System.gc();
            pause();
        }
    }

    private static void checkSound(ProcessGroup group) {
        ((RankGroup) group).checkUsable();
        assertFalse(group.flightRecorder().dump().job().isEmpty());
    }
}

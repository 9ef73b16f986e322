// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.EnumSet;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.host.HostSync;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendFactory;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Support;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Calls that are compared behind, as {@code cuda_p2p} does, and differ. */
@Timeout(60)
class MismatchRecordTest {

    private static final BackendOptions OPTIONS = new BackendOptions(Duration.ofSeconds(30));

    @TempDir private Path directory;

    @BeforeEach
    void setUp() {
        System.setProperty(FlightRecorder.DIRECTORY_PROPERTY, directory.toString());
        Backends.register("late", new LateFactory());
    }

    @AfterEach
    void tearDown() {
        System.clearProperty(FlightRecorder.DIRECTORY_PROPERTY);
    }

    /** As its calls return before those of others are known, and as if recorded into a graph. */
    @Test
    void allRanksWriteTheirRecord() {
        for (boolean thrown : new boolean[] {false, true}) {
            List<ProcessGroup> groups = ProcessGroups.local("late", 3, OPTIONS);
            try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                ProcessGroups.run(
                        groups,
                        group -> {
                            NDArray tensor = manager.ones(new Shape(group.rank() == 1 ? 5 : 4));
                            LateBackend.throwing.set(thrown);
                            CollectiveMismatchException e =
                                    assertThrows(
                                            CollectiveMismatchException.class,
                                            () -> group.allReduce(tensor, ReduceOp.SUM).await());
                            checkRecord(group, e);
                            return null;
                        });
            } finally {
                groups.forEach(ProcessGroup::destroy);
            }
        }
    }

    private static void checkRecord(ProcessGroup group, CollectiveMismatchException e)
            throws IOException {
        Path file = e.flightRecord().orElseThrow(() -> new AssertionError(e));
        assertTrue(e.getMessage().endsWith(file.toString()), e::getMessage);
        DumpWriter.flush();
        FlightDump dump = FlightDump.read(file);
        assertEquals(group.rank(), dump.rank());
        assertEquals(group.name(), dump.group());
        assertEquals(FlightEntry.State.FAILED, dump.entries().get(0).state());
        assertTrue(dump.reason().contains("rank 1 called allReduce(float32, (5)"), dump::reason);
    }

    private static final class LateFactory implements BackendFactory {

        @Override
        public String name() {
            return "late";
        }

        @Override
        public Support support() {
            return Support.builder()
                    .addReductions(
                            EnumSet.of(ScalarType.FLOAT32),
                            EnumSet.of(ReduceOp.Kind.SUM),
                            OpType.ALL_REDUCE)
                    .build();
        }

        @Override
        public Backend create(GroupContext context) {
            return new LateBackend(HostSync.join(context));
        }
    }

    /** Moves nothing. */
    private static final class LateBackend extends Backend {

        /** Whether a call of this thread waits and throws. */
        private static final ThreadLocal<Boolean> throwing = new ThreadLocal<>();

        private final HostSync hosts;

        LateBackend(HostSync hosts) {
            this.hosts = hosts;
        }

        @Override
        public String name() {
            return "late";
        }

        @Override
        public Support support() {
            return new LateFactory().support();
        }

        @Override
        public Device device() {
            return Device.cpu();
        }

        @Override
        public Work allReduce(Operation operation, NDArray tensor, ReduceOp op) {
            try {
                hosts.publish(operation, false);
            } catch (CollectiveMismatchException e) {
                // As if others had called before.
            }
            CollectiveMismatchException difference = hosts.difference();
            while (difference == null) {
                Thread.onSpinWait();
                difference = hosts.difference();
            }
            if (throwing.get()) {
                throw difference;
            }
            operation.ended(difference);
            return new FailedWork(difference);
        }

        @Override
        public void close() {
            hosts.close();
        }
    }

    private record FailedWork(CollectiveMismatchException failure) implements Work {

        @Override
        public boolean isCompleted() {
            return true;
        }

        @Override
        public Optional<Throwable> exception() {
            return Optional.of(failure);
        }

        @Override
        public void await() {
            throw failure;
        }

        @Override
        public void await(Duration timeout) {
            throw failure;
        }

        @Override
        public List<NDArray> result() {
            return List.of();
        }

        @Override
        public CompletionStage<List<NDArray>> getFuture() {
            return CompletableFuture.failedStage(failure);
        }
    }
}

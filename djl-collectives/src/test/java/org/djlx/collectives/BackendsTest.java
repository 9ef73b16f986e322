// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeFalse;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.net.ServerSocket;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendFactory;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Support;
import org.djlx.collectives.store.TcpStore;
import org.djlx.nativeops.NativeLibrary;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

/** The registry of backends, and the optional methods of a backend. */
@Timeout(60)
class BackendsTest {

    private static final Support NOTHING = Support.builder().build();

    private static final class Nothing extends Backend {

        private final AtomicInteger closed;

        Nothing(AtomicInteger closed) {
            this.closed = closed;
        }

        @Override
        public String name() {
            return "nothing";
        }

        @Override
        public Support support() {
            return NOTHING;
        }

        @Override
        public Device device() {
            return Device.cpu();
        }

        @Override
        public void close() {
            closed.incrementAndGet();
        }
    }

    /** Does nothing, and leaves a key in the group's store. */
    private static final class Marking implements BackendFactory {

        @Override
        public String name() {
            return "marking";
        }

        @Override
        public Support support() {
            return NOTHING;
        }

        @Override
        public Backend create(GroupContext context) {
            context.store().set("mark", new byte[0]);
            return new Nothing(new AtomicInteger());
        }
    }

    @Test
    void shmIsFoundByServiceLoader() {
        assertEquals("shm", Backends.get("shm").name());
        assertTrue(Backends.names().contains("shm"));
    }

    @Test
    void unknownBackendIsNamedWithTheKnownOnes() {
        String message =
                assertThrows(IllegalArgumentException.class, () -> ProcessGroups.init("missing"))
                        .getMessage();
        assertTrue(message.contains("'missing'"), message);
        assertTrue(message.contains("shm"), message);
    }

    @Test
    void registeredBackendMaySupportNothing() {
        AtomicInteger closed = new AtomicInteger();
        Backends.register(
                "nothing",
                new BackendFactory() {
                    @Override
                    public String name() {
                        return "nothing";
                    }

                    @Override
                    public Support support() {
                        return NOTHING;
                    }

                    @Override
                    public Backend create(GroupContext context) {
                        assertEquals(2, context.worldSize());
                        assertEquals(Duration.ofSeconds(7), context.options().timeout());
                        return new Nothing(closed);
                    }
                });
        List<ProcessGroup> groups =
                ProcessGroups.local("nothing", 2, new BackendOptions(Duration.ofSeconds(7)));
        ProcessGroup group = groups.get(1);
        assertEquals("nothing", group.backendName());
        assertTrue(group.p2pBuffers().isEmpty());
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray tensor = manager.ones(new Shape(2));
            NDArray both = manager.ones(new Shape(4));
            List<NDArray> list = List.of(tensor, tensor);
            assertUnsupported("allReduce", () -> group.allReduce(tensor, ReduceOp.SUM));
            assertUnsupported("broadcast", () -> group.broadcast(tensor, 0));
            assertUnsupported("allGather", () -> group.allGather(list, tensor));
            assertUnsupported("allGatherIntoTensor", () -> group.allGatherIntoTensor(both, tensor));
            assertUnsupported(
                    "reduceScatter", () -> group.reduceScatter(tensor, list, ReduceOp.SUM));
            assertUnsupported(
                    "reduceScatterTensor",
                    () -> group.reduceScatterTensor(tensor, both, ReduceOp.SUM));
            assertUnsupported("barrier", group::barrier);
        }
        groups.forEach(ProcessGroup::destroy);
        groups.forEach(ProcessGroup::close);
        assertEquals(2, closed.get());
    }

    private static void assertUnsupported(String operation, Executable call) {
        assertEquals(
                "backend 'nothing' does not support " + operation,
                assertThrows(UnsupportedOperationException.class, call).getMessage());
    }

    @Test
    void refusesAnEnvironmentThatLacksAVariableOrHasAWrongOne() {
        BackendOptions options = new BackendOptions(Duration.ofSeconds(1));
        assertEnvironment(options, Map.of(), "RANK is not set");
        assertEnvironment(options, Map.of("RANK", "0"), "WORLD_SIZE is not set");
        assertEnvironment(
                options,
                Map.of("RANK", "zero", "WORLD_SIZE", "1"),
                "RANK must be an integer, but is 'zero'");
        assertEnvironment(
                options, Map.of("RANK", "0", "WORLD_SIZE", "1"), "MASTER_ADDR is not set");
        Map<String, String> complete =
                Map.of(
                        "RANK", "3",
                        "WORLD_SIZE", "2",
                        "MASTER_ADDR", "localhost",
                        "MASTER_PORT", "29500");
        assertEnvironment(options, complete, "rank 3 is out of range: the group has ranks 0 to 1");
    }

    private static void assertEnvironment(
            BackendOptions options, Map<String, String> environment, String text) {
        String message =
                assertThrows(
                                IllegalArgumentException.class,
                                () -> ProcessGroups.init("shm", options, environment, 7))
                        .getMessage();
        assertTrue(message.contains(text), message);
    }

    @Test
    void rankZeroServesTheStoreUnlessTheLauncherDoes() {
        BackendOptions options = new BackendOptions(Duration.ofSeconds(30));
        try (TcpStore agent =
                TcpStore.builder().setHost("localhost").setPort(0).optServer(true).build()) {
            Map<String, String> environment =
                    Map.of(
                            "RANK", "0",
                            "WORLD_SIZE", "1",
                            "MASTER_ADDR", "localhost",
                            "MASTER_PORT", Integer.toString(agent.port()),
                            "TORCHELASTIC_USE_AGENT_STORE", "True");
            Backends.register("marking", new Marking());
            try (ProcessGroup group = ProcessGroups.init("marking", options, environment, 7)) {
                assertEquals(0, group.rank());
                assertEquals(1, agent.numKeys());
            }
        }
    }

    @Test
    void errorsOfABackendReachTheCaller() {
        Backends.register(
                "unloadable",
                new BackendFactory() {
                    @Override
                    public String name() {
                        return "unloadable";
                    }

                    @Override
                    public Support support() {
                        return Support.builder().build();
                    }

                    @Override
                    public Backend create(GroupContext context) {
                        throw new UnsatisfiedLinkError("no such library");
                    }
                });
        BackendOptions options = new BackendOptions(Duration.ofSeconds(20));
        CollectiveException e =
                assertThrows(
                        CollectiveException.class,
                        () -> ProcessGroups.local("unloadable", 2, options));
        assertTrue(e.getMessage().contains("no such library"), e.getMessage());
        assertTrue(e.getCause() instanceof UnsatisfiedLinkError);
    }

    @Test
    void wrongOptionsOfLocalRanksAreAnIllegalArgument() {
        for (BackendOptions wrong :
                List.of(
                        NcclOptions.builder().build(),
                        ShmOptions.builder().optChunkSize(4096).build())) {
            IllegalArgumentException e =
                    assertThrows(
                            IllegalArgumentException.class,
                            () -> ProcessGroups.local("shm", 1000, wrong));
            String text = wrong instanceof NcclOptions ? "got NcclOptions" : "chunk size of 4096";
            assertTrue(e.getMessage().contains(text), e.getMessage());
        }
    }

    @Test
    void errorForMissingDriverNamesTheRequestedBackend() {
        assumeFalse(NativeLibrary.CUDA.isAvailable() && NativeLibrary.NCCL.isAvailable());
        for (String backend : List.of("nccl", "cuda_p2p")) {
            CollectiveException e =
                    assertThrows(
                            CollectiveException.class,
                            () -> ProcessGroups.local(backend, 2, BackendOptions.DEFAULTS));
            String text = "backend '" + backend + "' cannot be used here";
            assertTrue(e.getMessage().contains(text), e.getMessage());
        }
    }

    @Test
    void attemptsOfALauncherShareNoKeys() {
        BackendOptions options = new BackendOptions(Duration.ofSeconds(20));
        try (TcpStore store =
                TcpStore.builder().setHost("localhost").setPort(0).optServer(true).build()) {
            Map<String, String> environment =
                    Map.of(
                            "RANK", "0",
                            "WORLD_SIZE", "1",
                            "MASTER_ADDR", "localhost",
                            "MASTER_PORT", "" + store.port(),
                            "TORCHELASTIC_USE_AGENT_STORE", "True",
                            "TORCHELASTIC_RESTART_COUNT", "3");
            Backends.register("marking", new Marking());
            try (ProcessGroup group = ProcessGroups.init("marking", options, environment, 7)) {
                assertEquals(0, group.rank());
                assertTrue(store.check(List.of("/worker/attempt_3/default7/mark")));
            }
        }
    }

    @Test
    void rankZeroServesTheStoreAtTheMasterAddress() throws IOException {
        int port;
        try (ServerSocket socket = new ServerSocket(0)) {
            port = socket.getLocalPort();
        }
        BackendOptions options = new BackendOptions(Duration.ofSeconds(30));
        Map<String, String> environment =
                Map.of(
                        "RANK", "0",
                        "WORLD_SIZE", "1",
                        "MASTER_ADDR", "127.0.0.2",
                        "MASTER_PORT", Integer.toString(port));
        Backends.register("marking", new Marking());
        try (ProcessGroup group = ProcessGroups.init("marking", options, environment, 7);
                TcpStore client = TcpStore.builder().setHost("127.0.0.2").setPort(port).build()) {
            assertEquals(0, group.rank());
            assertTrue(client.numKeys() > 0);
        }
    }
}

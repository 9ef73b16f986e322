// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.djlx.collectives.launch.LaunchEnvironment;
import org.djlx.collectives.p2p.KernelSignals;
import org.djlx.collectives.p2p.OneShotSlots;
import org.djlx.collectives.p2p.P2pAllocator;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.p2p.P2pStream;
import org.djlx.collectives.pool.RankPool;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendFactory;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.collectives.spi.Support;
import org.djlx.collectives.store.FileStore;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.PrefixStore;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.TcpStore;
import org.djlx.collectives.trace.FlightDump;
import org.djlx.collectives.trace.FlightEntry;
import org.djlx.collectives.trace.FlightFinding;
import org.djlx.collectives.trace.FlightRecorder;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Null is either allowed or an {@link IllegalArgumentException}, wherever users may pass it. */
@Timeout(120)
class NullArgumentsTest {

    @TempDir private Path temp;

    @Test
    void neverEndInNullPointerExceptions() {
        ShmOptions options =
                ShmOptions.builder().optBufferSize(1 << 16).optHeapSize(1 << 16).build();
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                HashStore store = new HashStore();
                FileStore fileStore = new FileStore(temp.resolve("store"), 1);
                TcpStore tcpStore =
                        TcpStore.builder().setHost("localhost").setPort(0).optServer(true).build();
                ProcessGroup group = ProcessGroups.local("shm", 1, options).get(0)) {
            P2pBuffers buffers = group.p2pBuffers().orElseThrow();
            Supplier<NDArray> array = () -> manager.ones(new Shape(1));
            Supplier<Agreed> agreed = () -> new Agreed(null, new long[0], null, 0);
            Supplier<Operation> operation =
                    () -> {
                        Operation made =
                                TestOperations.create(
                                        OpType.BARRIER,
                                        1,
                                        "g",
                                        Duration.ofMillis(10),
                                        agreed.get());
                        TestOperations.scheduleUntraced(made);
                        return made;
                    };
            group.barrier().await();
            FlightDump dump = group.flightRecorder().dump();
            Supplier<P2pStream> stream = () -> buffers.currentStream(operation.get());
            NullArguments nulls =
                    new NullArguments()
                            .sample("backend", () -> "shm")
                            .sample("worldSize", () -> 1)
                            .sample(ProcessGroup.class, () -> group)
                            .sample(Work.class, group::barrier)
                            .sample(LaunchEnvironment.class, LaunchEnvironment::current)
                            .sample(LaunchEnvironment.Builder.class, LaunchEnvironment::builder)
                            .sample(BackendOptions.class, () -> options)
                            .sample(ShmOptions.class, () -> options)
                            .sample(BackendOptions.Builder.class, ShmOptions::builder)
                            .sample(ShmOptions.Builder.class, ShmOptions::builder)
                            .sample(NcclOptions.class, () -> NcclOptions.builder().build())
                            .sample(NcclOptions.Builder.class, NcclOptions::builder)
                            .sample(CudaP2pOptions.class, () -> CudaP2pOptions.builder().build())
                            .sample(CudaP2pOptions.Builder.class, CudaP2pOptions::builder)
                            .sample(GroupContext.class, () -> context(store))
                            .sample(Operation.class, operation)
                            .sample(Agreed.class, agreed)
                            .sample(OpType.class, () -> OpType.BARRIER)
                            .sample(KernelSignals.class, NullArgumentsTest::signals)
                            .sample(
                                    OneShotSlots.class,
                                    () -> new OneShotSlots(1, 0, new long[1], 0, 0, 0))
                            .sample(
                                    DeviceMesh.class,
                                    () -> DeviceMesh.create(group, new int[] {1}, "one"))
                            .sample(int[].class, () -> new int[] {1})
                            .sample(String[].class, () -> new String[] {"one"})
                            .sample(ObjectCollectives.class, () -> new ObjectCollectives(group))
                            .sample("T", () -> "object")
                            .sample("java.util.List<? extends T>", () -> List.of("object"))
                            .sample("java.lang.Class<?>[]", () -> new Class<?>[0])
                            .sample(P2pOp.class, () -> P2pOp.send(array.get(), 0, 0))
                            .sample("java.util.List<org.djlx.collectives.P2pOp>", List::of)
                            .sample(ReduceOp.class, () -> ReduceOp.SUM)
                            .sample(
                                    "java.util.function.Supplier<java.util.Optional<java.lang.Throwable>>",
                                    () -> (Supplier<Optional<Throwable>>) Optional::empty)
                            .sample(Agreement.Body.class, () -> (Agreement.Body) () -> "value")
                            .sample(ReduceOp.Kind.class, () -> ReduceOp.Kind.SUM)
                            .sample(
                                    CollectiveException.class,
                                    () -> new CollectiveException("failed"))
                            .sample(Support.class, () -> Backends.get("shm").support())
                            .sample(Support.Builder.class, Support::builder)
                            .sample(OpType[].class, () -> new OpType[] {OpType.BROADCAST})
                            .sample(
                                    "java.util.Set<org.djlx.nativeops.torch.ScalarType>",
                                    () -> Set.of(ScalarType.FLOAT32))
                            .sample(
                                    "java.util.Set<org.djlx.collectives.ReduceOp$Kind>",
                                    () -> Set.of(ReduceOp.Kind.SUM))
                            .sample(BackendFactory.class, () -> Backends.get("shm"))
                            .sample(P2pBuffers.class, () -> buffers)
                            .sample(P2pAllocator.class, buffers::allocator)
                            .sample(P2pStream.class, stream)
                            .sample(P2pStream.Event.class, () -> stream.get().record())
                            .sample(Store.class, () -> store)
                            .sample(HashStore.class, () -> store)
                            .sample(FileStore.class, () -> fileStore)
                            .sample(TcpStore.class, () -> tcpStore)
                            .sample(TcpStore.Builder.class, TcpStore::builder)
                            .sample(PrefixStore.class, () -> new PrefixStore("p", store))
                            .sample("java.util.List<java.lang.String>", () -> List.of("key"))
                            .sample("java.util.List<byte[]>", () -> List.of(new byte[1]))
                            .sample("java.util.List<java.lang.Integer>", () -> List.of(0))
                            .sample(
                                    "java.util.List<ai.djl.ndarray.NDArray>",
                                    () -> List.of(array.get()))
                            .sample(
                                    "java.util.List<org.djlx.collectives.ProcessGroup>",
                                    () -> List.of(group))
                            .sample(
                                    "org.djlx.collectives.ProcessGroups$RankBody<T>",
                                    () -> (ProcessGroups.RankBody<Object>) handle -> handle)
                            .sample("java.lang.Class<T>", () -> Kept.class)
                            .sample(
                                    "java.util.function.Supplier<T>",
                                    () -> (Supplier<Kept>) Kept::new)
                            .sample(
                                    "java.util.function.Consumer<org.djlx.collectives.spi.Operation>",
                                    () -> (Consumer<Operation>) body -> {})
                            .sample(FlightRecorder.class, group::flightRecorder)
                            .sample(FlightDump.class, () -> dump)
                            .sample(FlightEntry.class, () -> dump.entries().get(0))
                            .sample(
                                    FlightFinding.class,
                                    () ->
                                            new FlightFinding(
                                                    FlightFinding.Kind.LATE, List.of(0), 1, "m"))
                            .sample(
                                    "java.util.List<org.djlx.collectives.trace.FlightEntry>",
                                    dump::entries)
                            .sample("java.util.List<java.lang.Long>", () -> List.of(1L))
                            .sample(Long.class, () -> 1L)
                            .sample(Double.class, () -> 1.0)
                            .sample(NDManager.class, () -> manager)
                            .sample(NDArray.class, array)
                            .sample(NDArray[].class, () -> new NDArray[] {array.get()})
                            .sample(Duration.class, () -> Duration.ofMillis(10))
                            .sample(Shape.class, () -> new Shape(1))
                            .sample(Device.class, Device::cpu)
                            .sample(Device[].class, () -> new Device[] {Device.cpu()})
                            .sample(Path.class, () -> temp.resolve("file"))
                            .sample(Runnable.class, () -> (Runnable) () -> {})
                            .sample(Object.class, Object::new)
                            .sample(Throwable.class, Throwable::new)
                            .except("Backend", "called by groups, which have checked")
                            .except("BackendFactory", "called by groups, which have checked")
                            .except("OperationTrace", "called by operations")
                            .except("GroupTrace", "for groups alone")
                            .except("RankBody", "the caller's own code")
                            .except("RankWorker", "the caller's own code")
                            .except("RequestCodec", "the caller's own code")
                            .except("RankPool", "RankPoolTest does that")
                            .except("Event", "has no methods");
            assertEquals("", String.join("\n", nulls.check(ProcessGroup.class)));
            for (Class<?> room :
                    List.of(
                            Backend.class,
                            Store.class,
                            P2pBuffers.class,
                            RankPool.class,
                            FlightRecorder.class)) {
                assertEquals("", String.join("\n", nulls.check(room)));
            }
            assertEquals(List.of(), nulls.unused());
            assertTrue(nulls.calls() > 100, "" + nulls.calls());
        }
    }

    private static KernelSignals signals() {
        return new KernelSignals(1, 0, new long[1], new long[1], 64, new long[1], 1, 0);
    }

    private static GroupContext context(Store store) {
        return new GroupContext(
                "nulls", 0, 1, store, new BackendOptions(Duration.ofMillis(10)), null);
    }

    /** An attachment. */
    private static final class Kept implements AutoCloseable {

        @Override
        public void close() {}
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.djlx.bench.GpuBenchCase.Operation;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.store.Store;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.NativeMemory;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import picocli.CommandLine;

/** Runs the parts of the GPU benchmark that work on the CPU. */
@Timeout(300)
class GpuBenchTest {

    /** The collectives of another group on the host. */
    private record HostBaseline(ProcessGroup group, int withoutWindows) implements Baseline {

        @Override
        public void allReduce(NDArray tensor) {
            group.allReduce(tensor, ReduceOp.SUM).await();
        }

        @Override
        public void allGather(NDArray all, NDArray part) {
            group.allGatherIntoTensor(all, part).await();
        }

        @Override
        public void reduceScatter(NDArray part, NDArray all) {
            group.reduceScatterTensor(part, all, ReduceOp.SUM).await();
        }

        @Override
        public void allToAll(NDArray outputs, NDArray inputs) {
            group.allToAllSingle(outputs, inputs).await();
        }

        @Override
        public void broadcast(NDArray tensor) {
            group.broadcast(tensor, 0).await();
        }

        @Override
        public Window window(long byteSize) {
            if (group.rank() == withoutWindows) {
                throw new IllegalStateException("no windows");
            }
            Memory buffer = new Memory(byteSize);
            NativeMemory memory =
                    new NativeMemory(
                            Pointer.nativeValue(buffer), byteSize, Device.cpu(), buffer::close);
            return new Window(memory, memory::close);
        }

        @Override
        public void close() {}
    }

    static Stream<GpuBenchCase> cases() {
        return Stream.of(
                allReduce(2000),
                GpuBenchCase.collective(Operation.allGather, 2000),
                GpuBenchCase.collective(Operation.reduceScatter, 2000),
                GpuBenchCase.collective(Operation.allToAll, 2000),
                GpuBenchCase.collective(Operation.broadcast, 2000),
                GpuBenchCase.fused(Operation.allGatherMatmul, 32, 48, 64),
                GpuBenchCase.fused(Operation.matmulReduceScatter, 32, 48, 64),
                GpuBenchCase.norm(3, 40));
    }

    private static GpuBenchRow measure(
            GpuBenchCase wanted, boolean compared, Supplier<Lane> lanes) {
        return measure(wanted, compared, lanes, -1);
    }

    private static GpuBenchRow measure(
            GpuBenchCase wanted, boolean compared, Supplier<Lane> lanes, int withoutWindows) {
        List<ProcessGroup> ours = ProcessGroups.local(2);
        List<ProcessGroup> others = ProcessGroups.local(2);
        List<ProcessGroup> control = ProcessGroups.local(2);
        try {
            return ProcessGroups.run(
                            control,
                            group -> {
                                try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                                    int rank = group.rank();
                                    Meeting meeting = new Meeting(group);
                                    BenchRank measuring =
                                            new BenchRank(
                                                    ours.get(rank),
                                                    compared
                                                            ? new HostBaseline(
                                                                    others.get(rank),
                                                                    withoutWindows)
                                                            : null,
                                                    manager,
                                                    meeting,
                                                    lanes.get());
                                    return wanted.measure(measuring, 2, 2, 1).merged(meeting);
                                }
                            })
                    .get(1);
        } finally {
            ours.forEach(ProcessGroup::destroy);
            others.forEach(ProcessGroup::destroy);
            control.forEach(ProcessGroup::destroy);
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void measuresAndChecks(GpuBenchCase wanted) {
        GpuBenchRow row = measure(wanted, true, HostLane::new);
        Set<String> columns =
                switch (wanted.operation()) {
                    case allReduce -> Set.of("ours", "nccl", "ncclWindows");
                    case allGather, reduceScatter, allToAll, broadcast -> Set.of("ours", "nccl");
                    case allReduceRmsNorm -> Set.of("ours", "oursApart", "nccl", "communication");
                    default -> Set.of("ours", "nccl", "matmul", "communication");
                };
        assertEquals(columns, row.columns().keySet());
        assertEquals(columns, row.replay().keySet());
        assertEquals(Map.of(), row.notes());
        // Results are rounded to bfloat16: an error of 0 means that nothing was compared.
        boolean moved =
                switch (wanted.operation()) {
                    case allGather, allToAll, broadcast -> true;
                    default -> false;
                };
        assertTrue(row.correct() && moved == (row.error() == 0), row::toString);
        row.columns()
                .values()
                .forEach(
                        times ->
                                assertTrue(
                                        times.gpuMicros() > 0
                                                && times.hostMicros() > 0
                                                && times.firstHostMicrosSum()
                                                        >= times.firstHostMicros(),
                                        times::toString));
        row.replay().values().forEach(micros -> assertTrue(micros > 0, row::toString));
    }

    @Test
    void leavesColumnsOutWithoutNccl() {
        GpuBenchCase wanted = GpuBenchCase.fused(Operation.allGatherMatmul, 32, 32, 32);
        assertEquals(
                Set.of("ours", "matmul"), measure(wanted, false, HostLane::new).columns().keySet());
    }

    /** If one rank cannot record, no rank may launch its recording. */
    @Test
    void noRankReplaysIfOneCannotRecord() {
        AtomicInteger recorded = new AtomicInteger();
        Supplier<Lane> lanes =
                () ->
                        new HostLane() {
                            @Override
                            public Recording record(Runnable work) {
                                if (recorded.getAndIncrement() == 1) {
                                    throw new IllegalStateException("no room");
                                }
                                return super.record(work);
                            }
                        };
        GpuBenchRow row = measure(allReduce(64), false, lanes);
        assertEquals(Map.of("ours", "not recorded into a graph: no room"), row.notes());
        assertEquals(Map.of(), row.replay());
        assertTrue(row.correct(), row::toString);
    }

    @Test
    void leavesTheColumnOutWhenARankHasNoWindow() {
        GpuBenchRow row = measure(allReduce(64), true, HostLane::new, 1);
        assertEquals(Map.of("ncclWindows", "no windows"), row.notes());
        assertEquals(Set.of("ours", "nccl"), row.columns().keySet());
        assertEquals(Set.of("ours", "nccl"), row.replay().keySet());
    }

    /** The check detects wrong replays. */
    @Test
    void marksAWrongReplayAsWrong() {
        Supplier<Lane> nothing =
                () ->
                        new HostLane() {
                            @Override
                            public Recording record(Runnable work) {
                                return super.record(() -> {});
                            }
                        };
        GpuBenchRow row = measure(allReduce(64), false, nothing);
        assertFalse(row.correct(), row::toString);
    }

    @Test
    void exchangesMessagesOfAllRanks() {
        List<ProcessGroup> groups = ProcessGroups.local(3);
        List<String> said = List.of("", "ein Wörtchen", "a longer message than that");
        try {
            ProcessGroups.run(groups, group -> new Meeting(group).exchange(said.get(group.rank())))
                    .forEach(heard -> assertEquals(said, heard));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void processesMeetInAStore() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        Meeting meeting = new Meeting(group);
                        try (Store store = GpuBenchJob.storeOfProcesses(meeting)) {
                            store.set("rank" + group.rank(), new byte[] {(byte) group.rank()});
                            int other = 1 - group.rank();
                            byte[] read = store.get("rank" + other, Duration.ofSeconds(30));
                            assertEquals(other, read[0]);
                            meeting.await(); // Rank 0 serves the store.
                            return null;
                        }
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void failsWhenARankFails() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        CollectiveException e =
                assertThrows(
                        CollectiveException.class,
                        () ->
                                ProcessGroups.run(
                                        groups,
                                        group -> {
                                            if (group.rank() == 1) {
                                                throw new IllegalStateException("the reason");
                                            }
                                            new Meeting(group).await();
                                            return null;
                                        }));
        assertTrue(e.getMessage().contains("rank 1"), e::getMessage);
        groups.forEach(ProcessGroup::destroy);
    }

    @Test
    void inputsRotateUntilTheyExceedTheCache() {
        assertEquals(20, allReduce(1024).turns(2));
        assertEquals(5, allReduce(64 << 20).turns(2));
        assertEquals(2, GpuBenchCase.fused(Operation.allGatherMatmul, 32768, 28672, 8192).turns(2));
    }

    @Test
    void plansNameTheShapes() {
        List<GpuBenchCase> cases =
                GpuBenchPlan.cases(
                        List.of(
                                "tiny",
                                "pipelined:ag:64x32x32",
                                "fused:rs:64x32x32",
                                "ag:512x1024x8192",
                                "llama-8b:16-64",
                                "square:256-256",
                                "norm:3x100",
                                "experts:64x32x4"),
                        List.of("1K", "ag:2K", "rs:1M", "a2a:4K", "bcast:8K"),
                        2);
        assertEquals(
                List.of(
                        GpuBenchCase.fused(Operation.allGatherMatmul, 32, 32, 32),
                        GpuBenchCase.fused(Operation.matmulReduceScatter, 32, 32, 32),
                        GpuBenchCase.fused(Operation.allGatherMatmul, 64, 32, 32)
                                .by(org.djlx.fusedops.cost.Path.PIPELINED),
                        GpuBenchCase.fused(Operation.matmulReduceScatter, 64, 32, 32)
                                .by(org.djlx.fusedops.cost.Path.FUSED),
                        GpuBenchCase.fused(Operation.allGatherMatmul, 512, 1024, 8192),
                        GpuBenchCase.fused(Operation.allGatherMatmul, 16, 14336, 4096),
                        GpuBenchCase.fused(Operation.matmulReduceScatter, 16, 4096, 14336),
                        GpuBenchCase.fused(Operation.allGatherMatmul, 32, 14336, 4096),
                        GpuBenchCase.fused(Operation.matmulReduceScatter, 32, 4096, 14336),
                        GpuBenchCase.fused(Operation.allGatherMatmul, 64, 14336, 4096),
                        GpuBenchCase.fused(Operation.matmulReduceScatter, 64, 4096, 14336),
                        GpuBenchCase.fused(Operation.allGatherMatmul, 256, 8192, 8192),
                        GpuBenchCase.fused(Operation.matmulReduceScatter, 256, 8192, 8192),
                        GpuBenchCase.norm(3, 100),
                        GpuBenchCase.fused(Operation.expertExchange, 64, 32, 4),
                        allReduce(1024),
                        GpuBenchCase.collective(Operation.allGather, 2048),
                        GpuBenchCase.collective(Operation.reduceScatter, 1 << 20),
                        GpuBenchCase.collective(Operation.allToAll, 4096),
                        GpuBenchCase.collective(Operation.broadcast, 8192)),
                cases);
        assertEquals(24, GpuBenchPlan.cases(List.of("llama-70b"), List.of("none"), 2).size());
        assertEquals(12, GpuBenchPlan.cases(List.of("square"), List.of("none"), 2).size());
        assertEquals(8, GpuBenchPlan.cases(List.of("norms"), List.of("none"), 3).size());
        for (String wrong :
                List.of(
                        "llama-9b",
                        "xx:1x2x4",
                        "3x4x4",
                        "llama-8b:3-3",
                        "llama-8b:0-3",
                        "norm:0x8",
                        "experts:3x8x2",
                        "experts:4x8x100")) {
            assertThrows(
                    IllegalArgumentException.class,
                    () -> GpuBenchPlan.cases(List.of(wrong), List.of(), 2),
                    wrong);
        }
    }

    @Test
    void marksRowsWithTooLargeErrors() throws Exception {
        CallTimes times = times(1, 2, 3, 4, 5, 6);
        GpuBenchRow good = row(0.001, times);
        GpuBenchRow bad = row(Double.NaN, times);
        assertTrue(good.correct());
        assertFalse(good.slowest(bad).correct());
        assertFalse(bad.slowest(good).correct());
        assertFalse(row(0.02, times).correct());
        List<String> lines = printed(good, bad).lines().toList();
        assertTrue(lines.get(2).endsWith("|  |"), lines::toString);
        assertTrue(lines.get(3).endsWith("| WRONG |"), lines::toString);
    }

    @Test
    void takesTheTimesOfTheSlowestRank() {
        CallTimes one = times(1, 20, 3, 40, 5, 60);
        CallTimes other = times(10, 2, 30, 4, 50, 6);
        assertEquals(
                Map.of("ours", times(10, 20, 30, 40, 50, 60)),
                row(0, one).slowest(row(0, other)).columns());
    }

    @Test
    void showsHostTimesInBareLaunches() throws Exception {
        CallTimes ours = times(1, 9, 3, 4, 5, 6);
        CallTimes launch = times(1, 4, 3, 4, 5, 6);
        GpuBenchRow both =
                row(0, ours)
                        .plus(
                                new Gson()
                                        .toJsonTree(Map.of("columns", Map.of("bareLaunch", launch)))
                                        .getAsJsonObject());
        String[] lines = printed(both).split("\n");
        int column = List.of(lines[0].split(" \\| ")).indexOf("host, in bare launches");
        assertEquals("2.3", lines[2].split(" \\| ")[column]);
        assertFalse(printed(row(0, ours)).contains("bare launches"));
    }

    private static String printed(GpuBenchRow... rows) throws Exception {
        BenchReport report = new BenchReport("all_reduce and fused operators", null, Map.of());
        report.put("rows", List.of(rows));
        return report.printed();
    }

    @Test
    void mergesFiguresThatOneRankLacks() {
        CallTimes measured = times(1, 2, 3, 4, 5, 6);
        CallTimes torch = new CallTimes(9.0, 1.0, null, null, null, null, null, null, null);
        assertEquals(
                Map.of("ours", new CallTimes(9.0, 2.0, 1.0, 3.0, 4.0, 3.0, 3.0, 5.0, 6.0)),
                row(0, torch).slowest(row(0, measured)).columns());
    }

    private static CallTimes times(
            double gpu, double host, double first, double sum, double driver, double other) {
        return new CallTimes(gpu, host, host / 2, first, sum, first, first, driver, other);
    }

    private static GpuBenchRow row(double error, CallTimes ours) {
        return new GpuBenchRow(
                "allReduce",
                null,
                1024L,
                2,
                2,
                2,
                error,
                0.01,
                Map.of("ours", ours),
                Map.of("ours", 2.5),
                Map.of());
    }

    @Test
    void theReportNamesWhereItComesFrom(@TempDir Path dir) throws Exception {
        Path json = dir.resolve("results").resolve("gpu.json");
        BenchReport report = new BenchReport("some", "c0ffee", Map.of("nccl", "2.28.3"));
        report.put("rows", List.of(row(0.001, times(1, 2, 3, 4, 5, 6))));
        report.store(json);
        JsonObject result = JsonParser.parseString(Files.readString(json)).getAsJsonObject();
        assertEquals("c0ffee", result.get("commit").getAsString());
        assertEquals("2.28.3", result.getAsJsonObject("versions").get("nccl").getAsString());
        JsonObject row = result.getAsJsonArray("rows").get(0).getAsJsonObject();
        assertEquals(1024, row.get("bytes").getAsLong());
        assertFalse(row.has("mnk"), row::toString);
        JsonObject ours = row.getAsJsonObject("columns").getAsJsonObject("ours");
        assertEquals(
                Set.of(
                        "gpuMicros",
                        "hostMicros",
                        "aloneHostMicros",
                        "firstHostMicros",
                        "firstHostMicrosSum",
                        "firstCallMicros",
                        "nextCallsMaxMicros",
                        "driverCalls",
                        "otherNativeCalls"),
                ours.keySet());
    }

    @Test
    @Tag("gpu")
    void measuresOnGpus(@TempDir Path dir) throws Exception {
        Throwable cause = NativeLibrary.CUDA_PRESETS.unavailabilityCause();
        assumeTrue(cause == null, () -> cause.getMessage());
        Path json = dir.resolve("gpu.json");
        StringWriter err = new StringWriter();
        CommandLine root = Main.commandLine();
        root.setErr(new PrintWriter(err, true));
        // On a host with one GPU, two ranks share it.
        int code =
                root.execute(
                        "bench-gpu",
                        "--ranks=2",
                        "--shapes=tiny,pipelined:tiny,norm:2x64,experts:64x32x4",
                        "--bytes=1K,a2a:1K,bcast:1K",
                        "--rounds=1",
                        "--json=" + json);
        assertEquals(0, code, err::toString);
        JsonObject result = JsonParser.parseString(Files.readString(json)).getAsJsonObject();
        assertEquals(9, result.getAsJsonArray("rows").size());
        for (JsonElement row : result.getAsJsonArray("rows")) {
            assertTrue(row.getAsJsonObject().getAsJsonObject("replay").has("ours"), row::toString);
            assertFalse(row.getAsJsonObject().getAsJsonObject("notes").has("ours"), row::toString);
            assertTrue(
                    row.getAsJsonObject().getAsJsonObject("columns").has("bareLaunch"),
                    row::toString);
        }
        assertTrue(result.getAsJsonObject("versions").has("nccl"), result::toString);
    }

    private static GpuBenchCase allReduce(long bytes) {
        return GpuBenchCase.collective(Operation.allReduce, bytes);
    }
}

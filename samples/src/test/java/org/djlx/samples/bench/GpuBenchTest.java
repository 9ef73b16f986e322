/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.ndarray.NDManager;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.samples.Main;
import org.djlx.samples.bench.GpuBenchCase.Operation;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import picocli.CommandLine;

/** What the benchmark for GPUs does, on the CPU as far as it goes. */
@Timeout(300)
class GpuBenchTest {

    /** The host's clock. */
    private static final class HostMarks implements Marks {
        private final List<Long> nanos = new ArrayList<>();

        @Override
        public void set(int mark) {
            if (mark == nanos.size()) {
                nanos.add(0L);
            }
            nanos.set(mark, System.nanoTime());
        }

        @Override
        public void synchronize() {}

        @Override
        public double micros(int from, int to) {
            return (nanos.get(to) - nanos.get(from)) / 1e3;
        }

        @Override
        public void close() {}
    }

    static Stream<GpuBenchCase> cases() {
        return Stream.of(
                GpuBenchCase.allReduce(2000),
                GpuBenchCase.fused(Operation.allGatherMatmul, 32, 48, 64),
                GpuBenchCase.fused(Operation.matmulReduceScatter, 32, 48, 64));
    }

    private static GpuBenchRow measure(GpuBenchCase wanted, boolean compared) {
        List<ProcessGroup> ours = ProcessGroups.local(2);
        List<ProcessGroup> others = ProcessGroups.local(2);
        Meeting meeting = new Meeting(2);
        try {
            return ProcessGroups.run(
                            ours,
                            group -> {
                                try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                                    ProcessGroup other = compared ? others.get(group.rank()) : null;
                                    GpuBenchCase.Rank rank =
                                            new GpuBenchCase.Rank(
                                                    group,
                                                    other,
                                                    manager,
                                                    meeting,
                                                    new HostMarks());
                                    return wanted.measure(rank, 2, 1);
                                }
                            })
                    .stream()
                    .reduce(GpuBenchCase::slowest)
                    .orElseThrow();
        } finally {
            ours.forEach(ProcessGroup::destroy);
            others.forEach(ProcessGroup::destroy);
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void measuresAndChecks(GpuBenchCase wanted) {
        GpuBenchRow row = measure(wanted, true);
        Set<String> columns =
                wanted.operation() == Operation.allReduce
                        ? Set.of("ours", "nccl")
                        : Set.of("ours", "nccl", "matmul");
        assertEquals(columns, row.columns().keySet());
        // Results are rounded to bfloat16: no error at all means that nothing was compared.
        assertTrue(row.correct() && row.error() > 0, row::toString);
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
    }

    @Test
    void withoutNcclThereIsNoColumnForIt() {
        GpuBenchCase wanted = GpuBenchCase.fused(Operation.allGatherMatmul, 32, 32, 32);
        assertEquals(Set.of("ours", "matmul"), measure(wanted, false).columns().keySet());
    }

    @Test
    void aRankThatFailsIsNotWaitedFor() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        Meeting meeting = new Meeting(2);
        assertThrows(
                CollectiveException.class,
                () ->
                        ProcessGroups.run(
                                groups,
                                group -> {
                                    if (group.rank() == 1) {
                                        meeting.leave();
                                    } else {
                                        meeting.await();
                                    }
                                    return null;
                                }));
        groups.forEach(ProcessGroup::destroy);
    }

    @Test
    void whatIsWrongIsSaid() {
        CallTimes times = new CallTimes(1, 2, 3, 4, 5, 6);
        GpuBenchRow good = row(0.001, times);
        GpuBenchRow bad = row(Double.NaN, times);
        assertTrue(good.correct());
        assertFalse(GpuBenchCase.slowest(good, bad).correct());
        assertFalse(GpuBenchCase.slowest(bad, good).correct());
        assertFalse(row(0.02, times).correct());
        assertTrue(GpuBenchCommand.table(List.of(good, bad)).toString().contains("WRONG"));
    }

    @Test
    void theSlowestRankCounts() {
        CallTimes one = new CallTimes(1, 20, 3, 40, 5, 60);
        CallTimes other = new CallTimes(10, 2, 30, 4, 50, 6);
        assertEquals(
                Map.of("ours", new CallTimes(10, 20, 30, 40, 50, 60)),
                GpuBenchCase.slowest(row(0, one), row(0, other)).columns());
    }

    private static GpuBenchRow row(double error, CallTimes ours) {
        return new GpuBenchRow(
                "allReduce", null, 1024L, 2, 2, 2, error, 0.01, Map.of("ours", ours));
    }

    @Test
    void theReportNamesWhereItComesFrom(@TempDir Path dir) throws Exception {
        Path json = dir.resolve("results").resolve("gpu.json");
        BenchReport report = new BenchReport("some", "c0ffee", Map.of("nccl", "2.28.3"));
        report.put("rows", List.of(row(0.001, new CallTimes(1, 2, 3, 4, 5, 6))));
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
                        "firstHostMicros",
                        "firstHostMicrosSum",
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
        // Where there is one GPU, two ranks share it.
        int code =
                root.execute(
                        "bench-gpu",
                        "--ranks=2",
                        "--shapes=tiny",
                        "--bytes=1K",
                        "--rounds=1",
                        "--json=" + json);
        assertEquals(0, code, err::toString);
        JsonObject result = JsonParser.parseString(Files.readString(json)).getAsJsonObject();
        assertEquals(3, result.getAsJsonArray("rows").size());
        assertTrue(result.getAsJsonObject("versions").has("nccl"), result::toString);
    }
}

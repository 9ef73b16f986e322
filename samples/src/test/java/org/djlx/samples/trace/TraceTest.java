// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.trace;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.ShmOptions;
import org.djlx.fusedops.FusedOps;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.samples.CommandTest;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(120)
class TraceTest extends CommandTest {

    @TempDir private Path dir;

    /**
     * Returns the names of the spans of each rank and stream, in order, and checks that spans of a
     * stream do not overlap. Merges adjacent computations: a thread may pause between two steps.
     */
    private List<List<List<String>>> spans(Path file, int ranks) throws Exception {
        List<List<TreeMap<Double, JsonObject>>> spans = new ArrayList<>();
        for (int rank = 0; rank < ranks; rank++) {
            spans.add(List.of(new TreeMap<>(), new TreeMap<>()));
        }
        JsonObject trace = JsonParser.parseString(Files.readString(file)).getAsJsonObject();
        for (JsonElement element : trace.getAsJsonArray("traceEvents")) {
            JsonObject event = element.getAsJsonObject();
            if (event.get("ph").getAsString().equals("X")) {
                spans.get(event.get("pid").getAsInt())
                        .get(event.get("tid").getAsInt())
                        .put(event.get("ts").getAsDouble(), event);
            }
        }
        for (TreeMap<Double, JsonObject> stream : spans.stream().flatMap(List::stream).toList()) {
            double last = 0;
            for (JsonObject event : stream.values()) {
                assertTrue(event.get("ts").getAsDouble() >= last - 1e-3, event::toString);
                last = event.get("ts").getAsDouble() + event.get("dur").getAsDouble();
            }
        }
        return spans.stream().map(rank -> rank.stream().map(TraceTest::names).toList()).toList();
    }

    private static List<String> names(TreeMap<Double, JsonObject> stream) {
        List<String> names = new ArrayList<>();
        for (JsonObject event : stream.values()) {
            String name = event.get("name").getAsString();
            boolean again = !names.isEmpty() && names.get(names.size() - 1).equals(name);
            if (!again || !name.equals(Steps.COMPUTE)) {
                names.add(name);
            }
        }
        return names;
    }

    @Test
    void allGatherMatmul() throws Exception {
        Path file = dir.resolve("trace.json");
        assertEquals(
                0,
                run("trace", "--ranks=3", "--shape=1536,768,1536", file.toString()),
                err::toString);
        assertTrue(out.toString().contains("allGatherMatmul(1536, 768, 1536)"), out::toString);
        List<List<List<String>>> spans = spans(file, 3);
        for (int rank = 0; rank < 3; rank++) {
            int next = (rank + 1) % 3;
            int before = (rank + 2) % 3;
            assertEquals(
                    List.of(
                            "compute",
                            "wait for rank " + next,
                            "compute",
                            "wait for rank " + before,
                            "compute",
                            "wait for the side stream"),
                    spans.get(rank).get(0));
            assertEquals(
                    List.of(
                            "put 3145728 B to rank " + before,
                            "signal rank " + before,
                            "put 3145728 B to rank " + next,
                            "signal rank " + next),
                    spans.get(rank).get(1));
        }
    }

    @Test
    void matmulReduceScatter() throws Exception {
        Path file = dir.resolve("trace.json");
        String[] args = {
            "trace", "--op=matmulReduceScatter", "--shape=1024,1024,512", file.toString()
        };
        assertEquals(0, run((Object[]) args), err::toString);
        List<List<List<String>>> spans = spans(file, 2);
        for (int rank = 0; rank < 2; rank++) {
            int other = 1 - rank;
            assertEquals(
                    List.of(
                            "compute", // the other rank's part, and its own
                            "wait for rank " + other,
                            "compute", // the sum
                            "wait for the side stream"),
                    spans.get(rank).get(0));
            assertEquals(
                    List.of("put 2097152 B to rank " + other, "signal rank " + other),
                    spans.get(rank).get(1));
        }
    }

    /** The traced streams compute the operator's result, so no step is left out. */
    @Test
    void resultsAreRight() {
        List<ProcessGroup> groups =
                TracedBackend.groups(
                        "shm", 2, ShmOptions.builder().optBufferSize(32 << 20).build());
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        TracedBuffers buffers = (TracedBuffers) group.p2pBuffers().orElseThrow();
                        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                            for (int round = 1; round <= 10; round++) {
                                float value = round * 10 + group.rank();
                                NDArray a = manager.full(new Shape(1024, 512), value);
                                NDArray b = manager.ones(new Shape(512, 64));
                                buffers.begin();
                                NDArray gathered =
                                        FusedOps.allGatherMatmul(a, List.of(b), 0, group, false)
                                                .outputs()
                                                .get(0);
                                assertTrue(!buffers.end().isEmpty());
                                for (int rank = 0; rank < 2; rank++) {
                                    NDArray part =
                                            gathered.get(rank * 1024 + ":" + (rank + 1) * 1024);
                                    assertEquals(512 * (round * 10 + rank), part.min().getFloat());
                                    assertEquals(512 * (round * 10 + rank), part.max().getFloat());
                                }
                                buffers.begin();
                                NDArray scattered =
                                        FusedOps.matmulReduceScatter(a, b, ReduceOp.SUM, 0, group);
                                buffers.end();
                                assertEquals(512 * (20 * round + 1), scattered.min().getFloat());
                                assertEquals(512 * (20 * round + 1), scattered.max().getFloat());
                            }
                            return null;
                        }
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "trace",
                "trace --ranks=0 x.json",
                "trace --shape=1,2 x.json",
                "trace --shape=8x8x8 x.json",
                "trace --shape=3,4,4 x.json",
                "trace --op=broadcast x.json"
            })
    void rejectsBadArguments(String args) {
        assertEquals(2, run((Object[]) args.split(" ")));
        assertTrue(err.toString().startsWith("error: "), err::toString);
    }

    @Test
    @Tag("gpu")
    void onGpus() throws Exception {
        Throwable cause = NativeLibrary.CUDA_PRESETS.unavailabilityCause();
        assumeTrue(cause == null, () -> cause.getMessage());
        assumeTrue(CudaDevice.count() > 1, "there is one GPU");
        Path file = dir.resolve("trace.json");
        assertEquals(0, run("trace", "--device=gpu", file.toString()), err::toString);
        List<List<List<String>>> spans = spans(file, 2);
        Stream.of(0, 1)
                .forEach(
                        rank -> {
                            assertTrue(spans.get(rank).get(0).contains("compute"), spans::toString);
                            assertEquals(
                                    2,
                                    spans.get(rank).get(1).stream()
                                            .filter(s -> !s.startsWith("wait"))
                                            .count());
                        });
    }
}

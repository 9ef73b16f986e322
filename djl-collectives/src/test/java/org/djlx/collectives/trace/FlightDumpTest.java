// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
import java.util.stream.Stream;
import org.djlx.collectives.trace.FlightEntry.State;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

@Timeout(60)
class FlightDumpTest {

    private static final FlightDump DUMP =
            TestDumps.dump(
                    "a \"group\" <1>",
                    1,
                    3,
                    List.of(0, 2),
                    List.of(
                            TestDumps.entry(1, "barrier()", State.COMPLETED),
                            TestDumps.entry(2, "allReduce(float32, (2, 3), SUM)", State.FAILED),
                            TestDumps.entry(3, "barrier()", State.SCHEDULED)));

    @TempDir private Path directory;

    @Test
    void jsonRoundTripKeepsAllFields() {
        assertEquals(DUMP, FlightDump.parse(DUMP.toJson()));
    }

    @Test
    void jsonHasTheFieldNamesOfC10d() {
        JsonObject json = JsonParser.parseString(DUMP.toJson()).getAsJsonObject();
        assertEquals(
                Set.of(
                        "version",
                        "job",
                        "group",
                        "rank",
                        "world_size",
                        "backend",
                        "host",
                        "pid",
                        "time_dumped_ns",
                        "reason",
                        "missing_ranks",
                        "entries"),
                json.keySet());
        JsonObject failed = json.getAsJsonArray("entries").get(1).getAsJsonObject();
        assertEquals(
                Set.of(
                        "record_id",
                        "is_p2p",
                        "collective_seq_id",
                        "profiling_name",
                        "call",
                        "sizes",
                        "dtype",
                        "reduce_op",
                        "bytes",
                        "timeout_ms",
                        "state",
                        "time_created_ns",
                        "time_discovered_started_ns",
                        "time_discovered_completed_ns",
                        "queued_ms",
                        "duration_ms",
                        "algorithm",
                        "exception"),
                failed.keySet());
        assertEquals("failed", failed.get("state").getAsString());
        assertEquals(1_700_000_000_123_456_789L, json.get("time_dumped_ns").getAsLong());
    }

    @Test
    void lastNumbersFollowTheStates() {
        assertEquals(1, DUMP.firstRecorded());
        assertEquals(3, DUMP.lastScheduled());
        assertEquals(2, DUMP.lastStarted());
        assertEquals(1, DUMP.lastCompleted());
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "''                         | empty",
                "[]                         | BEGIN_OBJECT",
                "{}                         | version null is not supported",
                "{\"version\": \"99\"}      | version 99 is not supported",
                "not JSON at all            | BEGIN_OBJECT",
                "{\"version\": \"2\"        | End of input"
            })
    void parseRefusesJsonThatIsNoDump(String text, String reason) throws IOException {
        Path file = Files.writeString(directory.resolve("bad.json"), text);
        IOException e = assertThrows(IOException.class, () -> FlightDump.read(file));
        assertTrue(e.getMessage().startsWith(file + " is not a flight record: "), e::getMessage);
        assertTrue(e.getMessage().contains(reason), e::getMessage);
    }

    @Test
    void nonJsonDumpIsRefused() throws IOException {
        Path file = Files.write(directory.resolve("bad.json"), new byte[] {(byte) 0xff, 0});
        IOException e = assertThrows(IOException.class, () -> FlightDump.read(file));
        assertEquals(file + " is not a flight record: it is not UTF-8 text", e.getMessage());
    }

    @ParameterizedTest
    @CsvSource({
        "entries, entries is missing",
        "missing_ranks, missing_ranks is missing",
        "job, job is missing",
        "group, group is missing",
        "world_size, the group has 0 ranks"
    })
    void aDumpWithoutOneOfItsPartsIsRefused(String part, String reason) {
        JsonObject json = JsonParser.parseString(DUMP.toJson()).getAsJsonObject();
        json.remove(part);
        assertRefused(json, reason);
    }

    @ParameterizedTest
    @CsvSource({
        "call, call is missing",
        "state, state is missing",
        "profiling_name, profiling_name is missing",
        "collective_seq_id, collective_seq_id 0 is out of range"
    })
    void anEntryWithoutOneOfItsPartsIsRefused(String part, String reason) {
        JsonObject json = JsonParser.parseString(DUMP.toJson()).getAsJsonObject();
        json.getAsJsonArray("entries").get(2).getAsJsonObject().remove(part);
        assertRefused(json, reason);
    }

    @Test
    void unknownStateIsRefused() {
        JsonObject json = JsonParser.parseString(DUMP.toJson()).getAsJsonObject();
        json.getAsJsonArray("entries").get(0).getAsJsonObject().addProperty("state", "asleep");
        assertRefused(json, "state is missing");
    }

    private static void assertRefused(JsonObject json, String reason) {
        IllegalArgumentException e =
                assertThrows(
                        IllegalArgumentException.class, () -> FlightDump.parse(json.toString()));
        assertTrue(e.getMessage().contains(reason), e::getMessage);
    }

    @Test
    void aDirectoryMayBeALink() throws IOException {
        Path link = Files.createSymbolicLink(temp("link"), Files.createDirectory(temp("real")));
        DUMP.write(link.resolve("dump.json"));
        assertEquals(DUMP, FlightDump.read(temp("real").resolve("dump.json")));
    }

    private Path temp(String name) {
        return directory.resolve(name);
    }

    @Test
    void writeReplacesTheFileAndLeavesNoTemporary() throws IOException {
        Path file = Files.writeString(directory.resolve("dump.json"), "old");
        DUMP.write(file);
        assertEquals(DUMP, FlightDump.read(file));
        try (Stream<Path> files = Files.list(directory)) {
            assertEquals(List.of(file), files.toList());
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.flight;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.djlx.collectives.trace.FlightDump;
import org.djlx.collectives.trace.FlightEntry;
import org.djlx.collectives.trace.FlightEntry.State;
import org.djlx.samples.CommandTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(60)
class FlightCommandTest extends CommandTest {

    private static final FlightEntry FIRST = barrier(1, State.COMPLETED, 1_000, 3_000L, 0.0125);
    private static final FlightEntry SECOND = barrier(2, State.STARTED, 4_000, null, null);

    private static FlightEntry barrier(
            int number, State state, long scheduled, Long completed, Double millis) {
        return new FlightEntry(
                number,
                false,
                number,
                "shm:barrier",
                "barrier()",
                null,
                null,
                null,
                0,
                1_000,
                state,
                scheduled,
                scheduled + 1_000,
                completed,
                0.001,
                millis,
                null,
                null);
    }

    @TempDir private Path directory;

    private Path write(String name, int rank, FlightEntry... entries) throws IOException {
        return write("job", 0, name, rank, entries);
    }

    private Path write(String job, long after, String name, int rank, FlightEntry... entries)
            throws IOException {
        Path file = directory.resolve(name);
        new FlightDump(
                        FlightDump.VERSION,
                        job,
                        "tp",
                        rank,
                        2,
                        "shm",
                        "host",
                        1,
                        1_700_000_000_123_456_789L + after,
                        "requested",
                        List.of(),
                        List.of(entries))
                .write(file);
        return file;
    }

    @Test
    void printsTheVerdictAboveATableOfRanks() throws IOException {
        Path late = write("late.json", 1, FIRST);
        Path early = write("early.json", 0, FIRST, SECOND);
        assertEquals(0, run("flight", late, early), err::toString);
        assertEquals(
                List.of(
                        "group 'tp', 2 of 2 ranks: rank 1 is behind and never called #2 barrier();"
                                + " the last call there was #1 barrier(), that of rank 0 #2"
                                + " barrier()",
                        "rank  first  called  started  completed  state         ms  last call   "
                                + "                 dumped",
                        "   0      1       2        2          1  started        -  barrier() "
                                + " 2023-11-14T22:13:20.123Z",
                        "   1      1       1        1          1  completed  0.013  barrier() "
                                + " 2023-11-14T22:13:20.123Z"),
                out.toString().lines().toList());
    }

    @Test
    void namesMissingDumpsAndIncompleteCalls() throws IOException {
        assertEquals(0, run("flight", write("alone.json", 0, FIRST, SECOND)), err::toString);
        List<String> lines = out.toString().lines().toList();
        assertEquals("group 'tp', 1 of 2 ranks: there is no dump of rank 1", lines.get(0));
        assertEquals(
                "#2 barrier() was called by all ranks and has not completed on rank 0 (started)",
                lines.get(1));
    }

    @Test
    void printsARowForARankThatDidNothing() throws IOException {
        assertEquals(0, run("flight", write("a.json", 0), write("b.json", 1)), err::toString);
        assertTrue(out.toString().contains("none has called anything"), out::toString);
        assertEquals(4, out.toString().lines().count(), out::toString);
    }

    @ParameterizedTest
    @ValueSource(strings = {"{}", "", "no JSON", "{", "[1]", "{\"rank\": \"zero\"}"})
    void failsOnAFileThatIsNoRecord(String content) throws IOException {
        Path good = write("good.json", 0, FIRST);
        Path bad = Files.writeString(directory.resolve("bad.json"), content);
        assertEquals(1, run("flight", good, bad));
        assertEquals("", out.toString());
        assertTrue(
                err.toString().startsWith("error: " + bad + " is not a flight record: "),
                err::toString);
        assertFalse(err.toString().contains("com.google"), err::toString);
        assertFalse(err.toString().contains("http"), err::toString);
    }

    @Test
    void failsOnADirectory() {
        assertEquals(1, run("flight", directory));
        assertTrue(
                err.toString().startsWith("error: " + directory + " is not a flight record: "),
                err::toString);
    }

    @Test
    void failsOnAMissingFile() {
        assertEquals(2, run("flight", directory.resolve("nothing.json")));
        assertTrue(err.toString().contains("nothing.json does not exist"), err::toString);
    }

    @Test
    void leavesOutRecordsOfEarlierJobs() throws IOException {
        Path early = write("b", 10, "b0.json", 0, FIRST, SECOND);
        Path late = write("b", 20, "b1.json", 1, FIRST);
        assertEquals(0, run("flight", early, late), err::toString);
        String alone = out.toString();
        out.getBuffer().setLength(0);
        Path before = write("a", 0, "a0.json", 0, FIRST);
        Path same = write("b", 5, "b0-before.json", 0, FIRST);
        assertEquals(0, run("flight", before, early, late, same), err::toString);
        assertEquals(
                alone
                        + "records of earlier jobs left out: 2; give their files alone to see them"
                        + System.lineSeparator(),
                out.toString());
    }

    @Test
    void refusesRecordsOfDifferentWorldSizes() throws IOException {
        Path good = write("good.json", 0, FIRST);
        Path other =
                Files.writeString(
                        directory.resolve("other.json"),
                        Files.readString(write("one.json", 1, FIRST))
                                .replace("\"world_size\": 2", "\"world_size\": 3"));
        assertEquals(2, run("flight", good, other));
        assertTrue(err.toString().contains("2 ranks in one and 3"), err::toString);
    }
}

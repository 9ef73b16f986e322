// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import picocli.CommandLine;

@Timeout(300)
@Tag("slow")
class BenchTest {

    private static final String PEER_ROW =
            "        4096          1024   float32     sum      -1       2.30    1.78    1.78      "
                    + " 0";

    private final StringWriter out = new StringWriter();
    private final StringWriter err = new StringWriter();

    private int run(String... args) {
        CommandLine root = Main.commandLine();
        root.setOut(new PrintWriter(out, true)).setErr(new PrintWriter(err, true));
        return root.execute(args);
    }

    private List<BenchRow> rows() {
        return out.toString().lines().flatMap(line -> BenchRow.parse(line).stream()).toList();
    }

    @ParameterizedTest
    @CsvSource({
        "float32,  2, 4096, 1024",
        "bfloat16, 3, 40,   20",
        "int8,     1, 40,   40",
        "bool,     2, 40,   40"
    })
    void measuresAndChecksAllReduce(String type, int ranks, long size, long count) {
        assertEquals(
                0,
                run("bench", "--dtype", type, "--ranks", "" + ranks, size + ":1:3"),
                err::toString);
        BenchRow row = rows().get(0);
        assertEquals(1, rows().size());
        assertEquals(size, row.size());
        assertEquals(count, row.count());
        assertEquals(type, row.type());
        assertEquals(0, row.wrong());
        assertTrue(row.heap() >= 0, out::toString);
    }

    @Test
    void measuresProcesses() {
        // The ranks print to the launcher's stdout; exit code 0 means that no element is wrong.
        assertEquals(0, run("bench", "--processes", "--bind", "1K:1:1"), err::toString);
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "bench 4X",
                "bench 4K:1",
                "bench 4K:1:0",
                "bench --ranks 0",
                "bench --dtype float31",
                "bench --dtype complex64",
                "bench 3",
                "bench --processes 3",
                "bench --ranks 1025",
                "bench-compare --rounds 0",
                "bench-compare 3",
                "bench-compare --peer gloo",
                "bench-gpu --ranks 0",
                "bench-gpu --ranks 9",
                "bench-gpu --rounds 0",
                "bench-gpu --shapes 512x512",
                "bench-gpu --shapes 0x512x512",
                "bench-gpu --shapes llama-7b",
                "bench-gpu --bytes 1X"
            })
    void rejectsBadArguments(String args) {
        assertEquals(2, run(args.split(" ")), out::toString);
        assertTrue(err.toString().startsWith("error: "), err::toString);
    }

    /** Even the smaller size has more elements than an int can count. */
    @ParameterizedTest
    @ValueSource(strings = {"1000000G", "999999999999G"})
    void aSizeBeyondTheMemoryIsRejected(String size) {
        assertEquals(2, run("bench", size));
        assertTrue(err.toString().contains("memory"), err::toString);
        assertEquals("", out.toString());
    }

    /** Values are generated and compared slice by slice. */
    @Test
    void aSizeOfSeveralSlicesIsChecked() {
        assertEquals(0, run("bench", "--dtype=int8", "9000001:0:1"), err::toString);
        assertEquals(0, rows().get(0).wrong());
        assertEquals(9000001, rows().get(0).size());
    }

    @Test
    void comparesWithOtherPrograms(@TempDir Path dir) throws Exception {
        Path json = dir.resolve("results").resolve("cpu.json");
        assertEquals(
                0,
                run(
                        "bench-compare",
                        "--rounds=1",
                        "--peer=openmpi=echo '" + PEER_ROW + "' #",
                        "--version-of=openmpi=4.1",
                        "--json=" + json,
                        "--commit=c0ffee",
                        "4K:1:1"),
                err::toString);
        assertTrue(out.toString().contains("| bytes | threads | processes | Open MPI |"));
        JsonObject result = JsonParser.parseString(Files.readString(json)).getAsJsonObject();
        assertEquals(
                Set.of("threads", "processes", "openmpi"),
                result.getAsJsonObject("medians").keySet());
        assertEquals("c0ffee", result.get("commit").getAsString());
        assertEquals("4.1", result.getAsJsonObject("versions").get("openmpi").getAsString());
    }

    @Test
    void failsWhenAPeerFails() {
        assertEquals(1, run("bench-compare", "--rounds=1", "--peer=bad=exit 3;", "4K:1:1"));
        assertTrue(err.toString().contains("bad ended with code 3\n"), err::toString);
    }

    @Test
    void aRowIsReadBackAsItWasPrinted() {
        BenchRow row = new BenchRow(4096, 1024, "float32", "sum", -1, 11.37, 0.36, 0.36, 0, 512);
        assertEquals(Optional.of(row), BenchRow.parse(row.toString()));
        assertEquals(Optional.of(row), BenchRow.parse("[0] " + row));
        assertEquals(-1, BenchRow.parse(PEER_ROW).orElseThrow().heap());
        assertEquals(PEER_ROW, BenchRow.parse(PEER_ROW).orElseThrow().toString().stripTrailing());
        assertEquals(Optional.empty(), BenchRow.parse(BenchRow.HEADER));
    }

    @Test
    void aCaseIsReadBackAsItWasPrinted() {
        assertEquals(new BenchCase(4 << 10, 7, 9), BenchCase.parse("4K:7:9"));
        for (BenchCase wanted : BenchCase.DEFAULTS) {
            assertEquals(wanted, BenchCase.parse(wanted.toString()));
        }
    }

    @Test
    void reportsTheMedianRound() {
        List<List<BenchRow>> rounds = new ArrayList<>();
        for (double micros : new double[] {30, 10, 20}) {
            rounds.add(List.of(row(micros), row(1000 * micros)));
        }
        assertEquals(List.of(row(20), row(20_000)), BenchCompareCommand.medians(rounds));
    }

    private static BenchRow row(double micros) {
        return new BenchRow(4096, 1024, "float32", "sum", -1, micros, 1, 1, 0, 0);
    }
}

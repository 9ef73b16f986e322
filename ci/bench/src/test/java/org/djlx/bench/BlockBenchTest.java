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
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import picocli.CommandLine;

@Timeout(200)
class BlockBenchTest {

    @Test
    void keepsItsMeasurements(@TempDir Path folder) throws Exception {
        Path json = folder.resolve("block.json");
        StringWriter out = new StringWriter();
        CommandLine root = Main.commandLine();
        root.setOut(new PrintWriter(out, true)).setErr(new PrintWriter(out, true));
        String arguments =
                "bench-block --ranks 2 --tokens 8 --heads 2 --key-value-heads 1 --hidden 4"
                        + " --dtype bfloat16 --warm-up 1 --turns 3 --rounds 2";
        assertEquals(0, root.execute((arguments + " --json " + json).split(" ")), out::toString);
        JsonObject report = JsonParser.parseString(Files.readString(json)).getAsJsonObject();
        for (String part : new String[] {"block", "blockFromIdle", "matmuls", "attention"}) {
            assertTrue(report.get(part + "Milliseconds").getAsDouble() > 0, report::toString);
        }
        double block = report.get("blockMilliseconds").getAsDouble();
        String ratios =
                String.format(
                        "| block / matmuls and attention | %.2f |%n| block / matmuls | %.2f |",
                        block / report.get("matmulsAndAttentionMilliseconds").getAsDouble(),
                        block / report.get("matmulsMilliseconds").getAsDouble());
        assertTrue(out.toString().contains(ratios), out::toString);
        for (String wrong :
                "--tokens=3 --warm-up=-1 --turns=0 --rounds=0 --heads=12 --key-value-heads=0 --hidden=0"
                        .split(" ")) {
            assertEquals(2, Main.commandLine().execute("bench-block", wrong), wrong);
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import picocli.CommandLine;

class CheckCommandTest {

    @Test
    void namesMissedAndUnmeasuredGoals(@TempDir Path root) throws IOException {
        Path goals = Files.createDirectories(root.resolve("ci/results/goals"));
        Files.writeString(
                root.resolve("ci/results/a.json"),
                "{\"rows\": [{\"n\": [1, 2], \"t\": {\"x\": 11}}, {\"n\": 3, \"t\": {\"x\": 5}}]}");
        String goal = "{file: a.json, list: rows, where: {n: %s}, value: t.x, goal: 10}";
        Files.writeString(
                goals.resolve("m.json"),
                "["
                        + goal.formatted("[1, 2]")
                        + ","
                        + goal.formatted("3")
                        + ","
                        + goal.formatted("4")
                        + "]");

        StringWriter out = new StringWriter();
        CommandLine line = Main.commandLine().setOut(new PrintWriter(out));
        assertEquals(0, line.execute("check", "--root", root.toString()), out::toString);
        assertTrue(out.toString().contains("11.000, goal 10.0: 10 % above"), out::toString);
        assertTrue(out.toString().contains("not measured: a.json {\"n\":4}"), out::toString);
        assertTrue(out.toString().contains("1 met, 1 missed, 1 not measured"), out::toString);
        assertEquals(1, line.execute("check", "--strict", "--root", root.toString()));
    }
}

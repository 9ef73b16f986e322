// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
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

        String printed = check(root, 0);
        assertTrue(printed.contains("11.000, goal 10.0: 10 % above"), printed);
        assertTrue(printed.contains("not measured: a.json {\"n\":4}"), printed);
        assertTrue(printed.contains("1 met, 1 missed, 1 not measured"), printed);
        check(root, 1, "--strict");
    }

    /** With "*", a goal is for each row that has the field. */
    @Test
    void goalsMayBeMultiplesOfOtherValues(@TempDir Path root) throws IOException {
        Path goals = Files.createDirectories(root.resolve("ci/results/goals"));
        Files.writeString(
                root.resolve("ci/results/a.json"),
                """
                {"rows": [{"who": "us", "n": 1, "x": 11, "y": 10}, {"who": "us", "n": 2, "x": 8, "y": 10},
                          {"who": "us", "n": 2, "x": 8, "y": 4}, {"who": "us", "n": 3, "x": 8},
                          {"who": "peer", "n": 1, "x": 20}, {"who": "us"}]}
                """);
        Files.writeString(
                goals.resolve("m.json"),
                """
                [{"file": "a.json", "list": "rows", "where": {"who": "us", "n": "*"}, "value": "x", "goal": 1,
                  "of": {"value": "y"}},
                 {"file": "a.json", "list": "rows", "where": {"who": "us", "n": 1}, "value": "x", "goal": 0.5,
                  "of": {"where": {"who": "peer", "n": 1}}},
                 {"file": "a.json", "list": "rows", "where": {"who": "us", "n": 2}, "value": "x", "goal": 0.5,
                  "of": {"where": {"who": "peer", "n": 2}}}]
                """);
        String printed = check(root, 0);
        assertEquals(
                """
                m
                  a.json {"who":"us","n":1} x: 11.000, goal 1.0 x {"value":"y"}: 10 % above
                  a.json {"who":"us","n":2} x: 8.0000, goal 1.0 x {"value":"y"}: 100 % above
                  not measured: a.json {"who":"us","n":3} x, goal 1.0 x {"value":"y"}
                  a.json {"who":"us","n":1} x: 11.000, goal 0.5 x {"where":{"who":"peer","n":1}}: 10 % above
                  not measured: a.json {"who":"us","n":2} x, goal 0.5 x {"where":{"who":"peer","n":2}}
                  not measured: a.json {"who":"us","n":2} x, goal 0.5 x {"where":{"who":"peer","n":2}}
                  1 met, 3 missed, 3 not measured
                """,
                printed);
    }

    private static String check(Path root, int code, String... options) {
        StringWriter out = new StringWriter();
        CommandLine line = Main.commandLine().setOut(new PrintWriter(out));
        List<String> arguments = new ArrayList<>(List.of("check", "--root", root.toString()));
        arguments.addAll(List.of(options));
        assertEquals(code, line.execute(arguments.toArray(String[]::new)), out::toString);
        return out.toString();
    }
}

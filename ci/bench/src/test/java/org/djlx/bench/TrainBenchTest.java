// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import picocli.CommandLine;

@Timeout(200)
@Tag("slow")
class TrainBenchTest {

    @Test
    void keepsItsMeasurements(@TempDir Path folder) throws Exception {
        Path json = folder.resolve("train.json");
        StringWriter out = new StringWriter();
        CommandLine root = Main.commandLine();
        root.setOut(new PrintWriter(out, true)).setErr(new PrintWriter(out, true));
        String arguments =
                "bench-train --ranks 2 --rows 2,4 --layers 2 --width 8 --hidden 16 --steps 3"
                        + " --optimizer ADAM --divided";
        String[] words = (arguments + " --json " + json).split(" ");
        assertEquals(0, root.execute(words), out::toString);
        JsonArray steps =
                JsonParser.parseString(Files.readString(json))
                        .getAsJsonObject()
                        .getAsJsonArray("steps");
        assertTrue(steps.size() >= 4, out::toString);
        for (JsonElement step : steps) {
            assertTrue(step.getAsJsonObject().get("milliseconds").getAsDouble() > 0);
        }
        assertTrue(out.toString().contains("P2P"), out::toString);
        for (String option : "ranks rows layers width hidden steps rounds".split(" ")) {
            assertEquals(2, Main.commandLine().execute("bench-train", "--" + option, "0"), option);
        }
        String refused = "bench-train --ranks 2 --divided --torch python3";
        assertEquals(2, Main.commandLine().execute(refused.split(" ")));
    }

    /** A shell script in place of Python answers as the peer does. */
    @Test
    void measuresBesidePyTorch(@TempDir Path folder) throws Exception {
        Path json = folder.resolve("train.json");
        Path python = folder.resolve("python");
        String answer = "{\"milliseconds\": [5, 4, 6], \"matmulError\": 2e-7}";
        Files.write(
                python,
                List.of(
                        "#!/bin/sh",
                        "shift; echo \"$*\" > '" + folder.resolve("arguments") + "'",
                        "echo '{\"torch\": \"2.11.0\"}'",
                        "while read -r request; do case \"$request\" in",
                        "*TUNED*) echo '{\"refused\": \"not on the CPU\"}';;",
                        "*) echo '" + answer + "';;",
                        "esac; done"),
                StandardCharsets.UTF_8);
        assertTrue(python.toFile().setExecutable(true));
        String arguments =
                "bench-train --ranks 2 --rows 2 --layers 1 --width 8 --hidden 16 --steps 3"
                        + " --rounds 1";
        String[] words = (arguments + " --torch " + python + " --json " + json).split(" ");
        StringWriter out = new StringWriter();
        assertEquals(0, Main.commandLine().setOut(new PrintWriter(out)).execute(words));
        assertTrue(out.toString().contains("| PyTorch DDP | 5.0 |"), out::toString);
        JsonObject report = JsonParser.parseString(Files.readString(json)).getAsJsonObject();
        assertEquals("2.11.0", report.get("torch").getAsString());
        JsonObject errors = report.getAsJsonObject("float32MatmulError");
        assertEquals(2e-7, errors.get("torch").getAsDouble());
        assertTrue(errors.get("djl").getAsDouble() < 1e-5, errors::toString);
        Map<String, JsonObject> figures = new HashMap<>();
        for (JsonElement step : report.getAsJsonArray("steps")) {
            JsonObject figure = step.getAsJsonObject();
            figures.put(figure.get("who").getAsString(), figure);
        }
        assertEquals(
                "--ranks 2 --device cpu", Files.readString(folder.resolve("arguments")).strip());
        assertEquals(
                "{\"TORCH_DDP_TUNED\":\"not on the CPU\"}",
                report.getAsJsonObject("notes").toString());
        assertFalse(figures.containsKey("TORCH_DDP_TUNED"));
        assertEquals(5, figures.get("TORCH_DDP").get("milliseconds").getAsDouble());
        assertTrue(figures.get("P2P_SHARDED").get("milliseconds").getAsDouble() > 0);
        assertTrue(figures.get("P2P").get("milliseconds").getAsDouble() > 0);
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonParser;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import org.djlx.samples.Main;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import picocli.CommandLine;

@Timeout(200)
class TrainBenchTest {

    @Test
    void measuresAndKeepsWhatItMeasured(@TempDir Path folder) throws Exception {
        Path json = folder.resolve("train.json");
        StringWriter out = new StringWriter();
        CommandLine root = Main.commandLine();
        root.setOut(new PrintWriter(out, true)).setErr(new PrintWriter(out, true));
        String arguments =
                "bench-train --ranks 2 --rows 2,4 --layers 2 --width 8 --hidden 16 --steps 3";
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
        assertEquals(2, Main.commandLine().execute("bench-train", "--ranks", "0"));
    }
}

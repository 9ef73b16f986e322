// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.support;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.djlx.collectives.spi.OpType;
import org.djlx.samples.CommandTest;
import org.junit.jupiter.api.Test;

class SupportCommandTest extends CommandTest {

    private static List<String> run(String... args) {
        return output(0, (Object[]) args).lines().toList();
    }

    @Test
    void everyOperationOfShmIsThere() {
        List<String> lines = run("support");
        for (OpType operation : OpType.builtIn()) {
            assertTrue(
                    lines.stream().anyMatch(line -> line.matches(operation + " .*shm .*")),
                    () -> operation + " is missing:\n" + String.join("\n", lines));
        }
    }

    @Test
    void reduceOpsAreWhereTheyAreDefined() {
        List<String> lines = run("support", "--markdown");
        String yes = " yes |";
        String no = " - |";
        assertEquals(
                "| allReduce AVG, PREMUL_SUM | shm |"
                        + yes.repeat(4)
                        + no.repeat(5)
                        + " complex32, complex64, complex128 |",
                line(lines, "| allReduce AVG, PREMUL_SUM | shm"));
        assertEquals(
                "| allReduce BAND, BOR, BXOR | shm |" + no.repeat(4) + yes.repeat(5) + " int16 |",
                line(lines, "| allReduce BAND, BOR, BXOR | shm"));
        assertEquals("| send | shm |" + yes.repeat(9) + " all |", line(lines, "| send | shm"));
    }

    private static String line(List<String> lines, String start) {
        return lines.stream().filter(line -> line.startsWith(start)).findFirst().orElseThrow();
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import picocli.CommandLine;
import picocli.CommandLine.Command;

@Timeout(120)
@Tag("slow")
class MainTest {

    private final StringWriter out = new StringWriter();
    private final StringWriter err = new StringWriter();

    private int run(String... args) {
        CommandLine root = Main.commandLine();
        root.addSubcommand(new Failing());
        root.setOut(new PrintWriter(out, true)).setErr(new PrintWriter(err, true));
        return root.execute(args);
    }

    @Command(name = "failing")
    static final class Failing implements Runnable {
        @Override
        public void run() {
            throw new IllegalStateException("the reason");
        }
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "--help",
                "launch --help",
                "flight --help",
                "plan --help",
                "help",
                "help plan"
            })
    void helpIsNoError(String args) {
        assertEquals(0, run(args.split(" ")));
        assertTrue(out.toString().startsWith("Usage: samples/run.sh"), out::toString);
        assertEquals(args.contains("plan"), out.toString().contains("--ranks=N[,N...]"));
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "",
                "unknown",
                "--unknown",
                "help unknown",
                "flight",
                "launch",
                "launch --nproc 2",
                "launch --nproc two org.djlx.samples.Main",
                "launch --nproc 0 org.djlx.samples.Main",
                "launch --nproc 1 --env A org.djlx.samples.Main",
                "launch --nproc 1 --env RANK=7 org.djlx.samples.Main",
                "launch --nproc 1 --master-port 65536 org.djlx.samples.Main",
                "launch --nproc 1 org.djlx.Missing",
                "generate model --ranks 0",
                "generate model --ranks -1",
                "generate model --ranks 1025",
                "generate model --ranks many",
                "generate model --device tpu",
                "serve-model model --dtype float8"
            })
    void badArgumentsGiveOneErrorAndAHint(String args) {
        assertEquals(2, run(args.isEmpty() ? new String[0] : args.split(" ")));
        assertEquals(2, err.toString().lines().count(), err::toString);
        assertTrue(err.toString().startsWith("error: "), err::toString);
    }

    @ParameterizedTest
    @CsvSource({"launch, launch needs PROGRAM", "launch --nproc 2, launch needs PROGRAM"})
    void namesWhatIsMissingAndShowsAnExample(String args, String text) {
        assertEquals(2, run(args.split(" ")));
        List<String> lines = err.toString().lines().toList();
        assertEquals("error: " + text, lines.get(0));
        assertEquals(
                "Try: samples/run.sh launch --nproc 2 train, or samples/run.sh launch --help",
                lines.get(1));
    }

    @Test
    void theMissingValueOfAnOptionIsNamed() {
        run("plan", "--ranks");
        assertTrue(err.toString().contains("parameter for option '--ranks'"), err::toString);
    }

    @Test
    void refusesAnUnknownCommandByName() {
        run("generat", "--ranks", "2");
        assertTrue(
                err.toString().startsWith("error: there is no command 'generat'"), err::toString);
        run("--ranks");
        assertTrue(err.toString().contains("Unknown option: '--ranks'"), err::toString);
    }

    @Test
    void aFailureShowsItsTraceOnlyWhenAsked() {
        assertEquals(1, run("failing"));
        assertTrue(err.toString().startsWith("error: the reason"), err::toString);
        assertFalse(err.toString().contains("\tat "), err::toString);
        assertEquals(1, run("failing", "--verbose"));
        assertTrue(err.toString().contains("\tat "), err::toString);
    }

    @ParameterizedTest
    @ValueSource(strings = {">/dev/full", ">&-"})
    void failsWhenOutputIsLost(String redirection) throws Exception {
        Process process =
                new ProcessBuilder(
                                "sh",
                                "-c",
                                "\"$0\" -cp \"$1\" "
                                        + Main.class.getName()
                                        + " help "
                                        + redirection,
                                Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                                System.getProperty("java.class.path"))
                        .start();
        List<String> lines = process.errorReader().lines().toList();
        assertTrue(lines.contains("error: cannot write to stdout"), lines::toString);
        assertEquals(1, process.waitFor());
    }

    /** As with {@code | head}. */
    @Test
    void endsQuietlyWhenTheReaderCloses() throws Exception {
        Process process =
                new ProcessBuilder(
                                "sh",
                                "-c",
                                "read line; exec \"$0\" -cp \"$1\" "
                                        + Main.class.getName()
                                        + " help",
                                Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                                System.getProperty("java.class.path"))
                        .start();
        process.getInputStream().close();
        process.outputWriter().append("go\n").close();
        List<String> lines = process.errorReader().lines().toList();
        assertEquals(List.of(), lines);
        assertEquals(141, process.waitFor());
    }

    @Test
    void launchPassesTheOptionsAfterTheClassOn() {
        assertEquals(
                3,
                run(
                        "launch",
                        "--nproc",
                        "1",
                        "--env",
                        "PROBE=3",
                        "--jvm-arg=-Xmx64m",
                        ExitCode.class.getName(),
                        "--env",
                        "PROBE",
                        "--verbose",
                        "@file"));
    }

    /** A program that ends with the code in the variable that its second argument names. */
    public static final class ExitCode {

        private ExitCode() {}

        public static void main(String[] args) {
            System.exit(args[3].equals("@file") ? Integer.parseInt(System.getenv(args[1])) : 9);
        }
    }

    @Test
    void launchRunsASubcommandToo() {
        assertEquals(0, run("launch", "--nproc", "1", "launch", "--help"));
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.TestOperations;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.Store;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Timeout(60)
class DumpWriterTest {

    private final List<String> done = new ArrayList<>();

    @Test
    void tasksRunOneAfterTheOtherOnAThreadOfTheirOwn() {
        Thread caller = Thread.currentThread();
        for (String name : List.of("a", "b", "c")) {
            DumpWriter.execute(
                    () -> {
                        assertTrue(Thread.currentThread() != caller);
                        done.add(name);
                    });
        }
        DumpWriter.flush();
        assertEquals(List.of("a", "b", "c"), done);
    }

    @Test
    void errorEndsOneTaskOnly() {
        DumpWriter.execute(
                () -> {
                    throw new NoClassDefFoundError("on purpose");
                });
        DumpWriter.execute(() -> done.add("after"));
        DumpWriter.flush();
        assertEquals(List.of("after"), done);
    }

    /** Another JVM, which ends at once when its operation has failed. */
    public static final class Failing {

        private Failing() {}

        /**
         * Runs it.
         *
         * @param args none
         */
        public static void main(String[] args) {
            try (Store store = new HashStore()) {
                BackendOptions options = new BackendOptions(Duration.ofSeconds(1));
                GroupContext context = new GroupContext("g", 0, 2, store, options, null);
                GroupTrace trace = GroupTrace.open(context, "test", "job");
                Operation operation =
                        TestOperations.create(
                                OpType.BARRIER,
                                1,
                                "g",
                                Duration.ofSeconds(1),
                                new Operation.Agreed(null, new long[0], null, 0));
                TestOperations.schedule(operation, trace::scheduled);
                operation.ended(new CollectiveException("it broke"));
                System.exit(3);
            }
        }
    }

    @Test
    @Tag("slow")
    void shutdownWaitsForTheRecordToBeWritten(@TempDir Path directory) throws Exception {
        Process process =
                new ProcessBuilder(
                                ProcessHandle.current().info().command().orElseThrow(),
                                "-D" + FlightRecorder.DIRECTORY_PROPERTY + "=" + directory,
                                "-cp",
                                System.getProperty("java.class.path"),
                                Failing.class.getName())
                        .redirectErrorStream(true)
                        .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                        .start();
        assertEquals(3, process.waitFor());
        try (Stream<Path> files = Files.list(directory)) {
            List<Path> found = files.toList();
            assertEquals(1, found.size(), found::toString);
            assertEquals("it broke", FlightDump.read(found.get(0)).reason());
        }
    }
}

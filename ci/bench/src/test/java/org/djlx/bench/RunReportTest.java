// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.platform.engine.discovery.DiscoverySelectors.selectClass;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Disabled;
import org.junit.jupiter.api.Nested;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;

class RunReportTest {

    /** Set while this test runs the classes below, which fail; Maven may run them too. */
    private static boolean onPurpose;

    /** Tests with every kind of result. */
    static final class Mixed {
        @ParameterizedTest
        @ValueSource(ints = {1, 2, 3})
        void good(int number) {
            assertTrue(number > 0);
        }

        @Test
        void bad() {
            assertFalse(onPurpose, "as it should");
        }

        @Test
        void inapplicable() {
            Assumptions.abort("no GPU");
        }

        @Test
        @Disabled("not today")
        void disabled() {}

        @Nested
        class Inner {
            @Test
            void good() {}
        }
    }

    static final class NoGpus {
        @BeforeAll
        static void require() {
            Assumptions.abort("no GPU");
        }

        @Test
        void one() {}

        @Test
        void two() {}
    }

    static final class Broken {
        @BeforeAll
        static void fail() {
            assertFalse(onPurpose, "cannot begin");
        }

        @Test
        void one() {}
    }

    @TempDir private Path folder;

    private JsonObject run(Class<?>... classes) throws Exception {
        return run("c0ffee", false, classes);
    }

    private JsonObject run(String commit, boolean join, Class<?>... classes) throws Exception {
        Path file = folder.resolve("tests.json");
        LauncherDiscoveryRequestBuilder request = LauncherDiscoveryRequestBuilder.request();
        for (Class<?> type : classes) {
            request.selectors(selectClass(type));
        }
        onPurpose = true;
        try {
            LauncherFactory.create().execute(request.build(), new RunReport(file, commit, join));
        } finally {
            onPurpose = false;
        }
        return JsonParser.parseString(Files.readString(file)).getAsJsonObject();
    }

    private static void assertCounts(JsonObject all, int good, int skipped, int bad) {
        assertEquals(good, all.get("succeeded").getAsInt(), all::toString);
        assertEquals(skipped, all.get("skipped").getAsInt(), all::toString);
        assertEquals(bad, all.get("failed").getAsInt(), all::toString);
        assertEquals(good + skipped + bad, all.get("found").getAsInt(), all::toString);
    }

    @Test
    void countsByClass() throws Exception {
        JsonObject report = run(Mixed.class, NoGpus.class, Broken.class);
        JsonObject classes = report.getAsJsonObject("classes");
        assertCounts(report, 4, 4, 2);
        assertEquals(3, classes.size());
        assertEquals("c0ffee", report.get("commit").getAsString());

        JsonObject mixed = classes.getAsJsonObject(Mixed.class.getName());
        assertCounts(mixed, 4, 2, 1);
        assertTrue(mixed.get("failures").toString().contains("as it should"), mixed::toString);
        assertTrue(mixed.get("skipReasons").toString().contains("no GPU"), mixed::toString);

        assertCounts(classes.getAsJsonObject(NoGpus.class.getName()), 0, 2, 0);
        assertCounts(classes.getAsJsonObject(Broken.class.getName()), 0, 0, 1);
    }

    @Test
    void runsOfOneCommitAreJoined() throws Exception {
        run(Mixed.class, Broken.class);
        JsonObject joined = run("c0ffee", true, Broken.class, NoGpus.class);
        assertCounts(joined, 4, 4, 2);
        assertEquals(3, joined.getAsJsonObject("classes").size());
        assertCounts(run("another", true, Broken.class), 0, 0, 1);
        run(Mixed.class);
        assertCounts(run("c0ffee", false, Broken.class), 0, 0, 1);
    }

    @Test
    void keepsEarlierTimesOfTestsThatDidNotRun() throws Exception {
        JsonObject report = run(Mixed.class);
        assertEquals(report, run(NoGpus.class));
    }
}

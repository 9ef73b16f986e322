// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static java.nio.file.StandardOpenOption.CREATE;
import static java.nio.file.StandardOpenOption.WRITE;

import com.google.gson.Gson;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.djlx.collectives.launch.cli.Gpus;
import org.djlx.nativeops.NativeVersions;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.support.descriptor.ClassSource;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;
import org.junit.platform.launcher.TestPlan;

/**
 * Writes the results of a test run, class by class, into the file of the system property {@code
 * test.report}. Writes nothing without the property, or if all tests were skipped. With {@code
 * test.report.join}, keeps the classes of the file that this run has not run, if the file is of the
 * same commit and GPUs. {@code test.commit} is the tested commit. JUnit finds this class by {@code
 * META-INF/services}; {@code ci/gpu.sh} uses it.
 */
public final class RunReport implements TestExecutionListener {

    /** The results of a class. A failure of the class itself counts as a failed test. */
    static final class Counts {
        int found;
        int succeeded;
        int skipped;
        int failed;
        double seconds;
        final List<String> skipReasons = new ArrayList<>();
        final List<String> failures = new ArrayList<>();
        private transient long start;
    }

    /** What a report of other classes is joined by. */
    private record Report(String commit, List<String> gpus, Map<String, Counts> classes) {}

    private final Path file;
    private final String commit;
    private final boolean join;
    private final Map<String, Counts> classes = new TreeMap<>();
    private TestPlan plan;

    /** For JUnit. */
    public RunReport() {
        this(
                Optional.ofNullable(System.getProperty("test.report")).map(Path::of).orElse(null),
                System.getProperty("test.commit"),
                Boolean.getBoolean("test.report.join"));
    }

    RunReport(Path file, String commit, boolean join) {
        this.file = file;
        this.commit = commit;
        this.join = join;
    }

    @Override
    public void testPlanExecutionStarted(TestPlan testPlan) {
        plan = testPlan;
    }

    @Override
    public void executionStarted(TestIdentifier test) {
        if (isClass(test)) {
            counts(test).start = System.nanoTime();
        }
    }

    @Override
    public void executionSkipped(TestIdentifier test, String reason) {
        skipped(test, reason);
    }

    @Override
    public void executionFinished(TestIdentifier test, TestExecutionResult result) {
        if (isClass(test)) {
            Counts counts = counts(test);
            counts.seconds = Math.round((System.nanoTime() - counts.start) / 1e8) / 10.0;
            print(test, counts);
        }
        String reason = result.getThrowable().map(Throwable::toString).orElse("");
        switch (result.getStatus()) {
            case SUCCESSFUL -> {
                if (test.isTest()) {
                    counts(test).found++;
                    counts(test).succeeded++;
                }
            }
            case ABORTED -> skipped(test, reason);
            case FAILED -> {
                Counts counts = counts(test);
                counts.found++;
                counts.failed++;
                counts.failures.add(test.getDisplayName() + ": " + reason);
            }
        }
    }

    /** Prints what a class has come to: a run takes minutes, and may be cut off. */
    private void print(TestIdentifier test, Counts counts) {
        if (file != null && plan.getParent(test).filter(RunReport::isClass).isEmpty()) {
            System.out.printf(
                    "%6.1f s, %d of %d succeeded, %d skipped: %s%n",
                    counts.seconds,
                    counts.succeeded,
                    counts.found,
                    counts.skipped,
                    test.getLegacyReportingName());
        }
    }

    /** Skips all tests of a container; a container of dynamic tests counts as one test. */
    private void skipped(TestIdentifier test, String reason) {
        Counts counts = counts(test);
        int tests =
                test.isTest()
                        ? 1
                        : Math.max(
                                1,
                                (int)
                                        plan.getDescendants(test).stream()
                                                .filter(TestIdentifier::isTest)
                                                .count());
        counts.found += tests;
        counts.skipped += tests;
        if (!counts.skipReasons.contains(reason)) {
            counts.skipReasons.add(reason);
        }
    }

    private static boolean isClass(TestIdentifier test) {
        return test.getSource().filter(ClassSource.class::isInstance).isPresent();
    }

    /** Returns the counts of the outermost class of a test. */
    private Counts counts(TestIdentifier test) {
        String name = test.getDisplayName();
        Optional<TestIdentifier> next = Optional.of(test);
        while (next.isPresent()) {
            if (next.get().getSource().orElse(null) instanceof ClassSource source) {
                name = source.getClassName();
            }
            next = plan.getParent(next.get());
        }
        return classes.computeIfAbsent(name, n -> new Counts());
    }

    private void joinFile() {
        try {
            Report before = new Gson().fromJson(Files.readString(file), Report.class);
            if (before.commit.equals(commit) && before.gpus.equals(Gpus.names())) {
                before.classes.forEach(classes::putIfAbsent);
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    @Override
    @SuppressWarnings("try") // the lock is not named in the body
    public void testPlanExecutionFinished(TestPlan testPlan) {
        if (file == null) {
            return;
        }
        if (!join) {
            write();
            return;
        }
        // Another process, which may have another java.io.tmpdir, may join its classes meanwhile.
        Path lock = Path.of("/tmp", file.getFileName() + ".lock");
        try (FileChannel channel = FileChannel.open(lock, CREATE, WRITE);
                FileLock held = channel.lock()) {
            if (Files.exists(file)) {
                joinFile();
            }
            write();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private void write() {
        if (classes.values().stream().allMatch(c -> c.found == c.skipped)) {
            System.out.printf("No test has run: %s is left as it is.%n", file);
            return;
        }
        try {
            BenchReport report = new BenchReport("tests", commit, NativeVersions.query());
            report.put("gpus", Gpus.names());
            report.put("found", classes.values().stream().mapToInt(c -> c.found).sum());
            report.put("succeeded", classes.values().stream().mapToInt(c -> c.succeeded).sum());
            report.put("skipped", classes.values().stream().mapToInt(c -> c.skipped).sum());
            report.put("failed", classes.values().stream().mapToInt(c -> c.failed).sum());
            report.put("classes", classes);
            report.store(file);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}

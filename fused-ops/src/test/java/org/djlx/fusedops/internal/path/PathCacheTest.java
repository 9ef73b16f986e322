// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.function.IntFunction;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.TestLog;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.fusedops.internal.path.PathMeasurement.Agreement;
import org.djlx.fusedops.internal.path.PathMeasurement.Known;
import org.djlx.nativeops.cuda.KernelCache;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Times of paths in files, and what ranks agree on whose files differ. */
@Timeout(60)
class PathCacheTest {

    private static final float[] TIMES = {1.5f, 1e30f, 0.0625f, 12345.678f};

    @TempDir private Path directory;

    private PathCache cache(String machine) {
        return new PathCache(new KernelCache(directory), machine);
    }

    private Path file() throws IOException {
        try (var files = Files.list(directory)) {
            return files.findFirst().orElseThrow();
        }
    }

    @Test
    void laterProcessesFindTheTimesOfTheirMachineAndSizes() {
        cache("x").keep("a", TIMES);
        cache("y").keep("a", new float[] {2, 2, 2, 2});
        assertArrayEquals(TIMES, cache("x").find("a", 4).orElseThrow());
        assertEquals(Optional.empty(), cache("x").find("b", 4));
        assertEquals(Optional.empty(), cache("z").find("a", 4));
    }

    /** Cut off, of other times, without numbers, with times that cannot be, and not of a cache. */
    @ParameterizedTest
    @ValueSource(strings = {"cut", "1 2 3", "1 2 3 x", "1 2 3 NaN", "1 2 3 -4", "foreign"})
    void otherContentIsIgnoredWithAWarning(String content) throws IOException {
        cache("x").keep("a", TIMES);
        Path file = file();
        switch (content) {
            case "cut" -> Files.write(file, Arrays.copyOf(Files.readAllBytes(file), 50));
            case "foreign" -> Files.writeString(file, "1.5 1 1 1");
            default ->
                    new KernelCache(directory)
                            .put(
                                    file.getFileName().toString(),
                                    content.getBytes(StandardCharsets.UTF_8));
        }
        try (TestLog log = new TestLog("org.djlx")) {
            assertEquals(Optional.empty(), cache("x").find("a", 4));
            assertEquals(1, log.count(file.getFileName().toString()));
        }
        cache("x").keep("a", TIMES); // replaces it
        assertArrayEquals(TIMES, cache("x").find("a", 4).orElseThrow());
    }

    @Test
    void aFolderThatCannotBeWrittenIsWarnedAboutOnce() throws IOException {
        Path taken = Files.createFile(directory.resolve("file"));
        PathCache cache = new PathCache(new KernelCache(taken), "x");
        try (TestLog log = new TestLog("org.djlx")) {
            cache.keep("a", TIMES);
            cache.keep("b", TIMES);
            assertEquals(Optional.empty(), cache.find("a", 4));
            assertEquals(1, log.count("cannot write"));
        }
    }

    /** Readers see a whole file while others write it. */
    @Test
    void processesMayWriteAtTheSameTime() {
        float[] others = {2, 2, 2, 2};
        cache("x").keep("a", TIMES);
        IntStream.range(0, 200)
                .parallel()
                .forEach(
                        i -> {
                            cache("x").keep("a", i % 2 == 0 ? TIMES : others);
                            float[] found = cache("x").find("a", 4).orElseThrow();
                            assertTrue(found[0] == 2 || found[0] == TIMES[0]);
                            assertArrayEquals(found[0] == 2 ? others : TIMES, found);
                        });
    }

    private static List<Agreement> agree(IntFunction<Known> known, IntFunction<float[]> cached) {
        List<ProcessGroup> groups =
                ProcessGroups.local("shm", 3, new BackendOptions(Duration.ofSeconds(30)));
        try {
            return ProcessGroups.run(
                    groups,
                    group ->
                            Agreement.of(
                                    known.apply(group.rank()),
                                    cached.apply(group.rank()),
                                    values -> PathMeasurement.greatest(group, values)));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void ranksMeasureIfOneOfThemHasNoTimes() {
        for (Agreement each :
                agree(
                        rank -> rank == 1 ? Known.NOWHERE : Known.IN_CACHE,
                        rank -> rank == 1 ? new float[4] : TIMES)) {
            assertEquals(Known.NOWHERE, each.worst());
        }
    }

    /** Caches have other times; one rank has measured its sizes before. */
    @Test
    void ranksTakeTheGreatestTimesOfTheirCaches() {
        float[][] cached = {{1, 9, 5, 1e30f}, new float[4], {2, 8, 5, 1e30f}};
        for (Agreement each :
                agree(rank -> rank == 1 ? Known.HERE : Known.IN_CACHE, rank -> cached[rank])) {
            assertEquals(Known.IN_CACHE, each.worst());
            assertArrayEquals(new float[] {2, 9, 5, 1e30f}, each.times());
        }
    }

    @Test
    void ranksThatHaveMeasuredNeedNothing() {
        for (Agreement each : agree(rank -> Known.HERE, rank -> new float[4])) {
            assertEquals(Known.HERE, each.worst());
        }
    }
}

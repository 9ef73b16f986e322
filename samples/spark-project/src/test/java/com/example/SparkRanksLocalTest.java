// SPDX-License-Identifier: Apache-2.0
package com.example;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDManager;

import org.apache.spark.SparkException;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.djlx.collectives.ObjectCollectives;
import org.djlx.collectives.ProcessGroup;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Two ranks in two threads of the driver's JVM. */
@Timeout(value = 5, unit = TimeUnit.MINUTES, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
class SparkRanksLocalTest {

    private static SparkSession spark;
    private static JavaSparkContext context;

    @BeforeAll
    static void start() {
        String check = "spark.scheduler.barrier.maxConcurrentTasksCheck.";
        spark =
                SparkSession.builder()
                        .master("local[2]")
                        .config("spark.jars", "")
                        .config(check + "interval", "1s")
                        .config(check + "maxFailures", "1")
                        .config("spark.driver.maxResultSize", "1m")
                        .getOrCreate();
        context = JavaSparkContext.fromSparkContext(spark.sparkContext());
    }

    @AfterAll
    static void stop() {
        spark.stop();
    }

    @Test
    void moreRanksThanSlotsAreAnError() {
        Exception e = assertThrows(Exception.class, () -> SparkRanks.run(context, 3, (g, r) -> 0));
        assertTrue(e.getMessage().contains("requires more slots"), e.getMessage());
    }

    @ParameterizedTest
    @ValueSource(ints = {0, -1})
    void numberOfRanksIsPositive(int ranks) {
        String error = "ranks must be at least 1, not " + ranks;
        assertEquals(error, errorOf(() -> SparkRanks.run(context, ranks, (g, r) -> 0)));
        assertEquals(error, errorOf(() -> SparkRanks.run(ids(3, 1), ranks, (g, r) -> 0)));
    }

    private static String errorOf(Runnable run) {
        return assertThrows(IllegalArgumentException.class, run::run).getMessage();
    }

    @Test
    void resultMayBeNull() {
        assertNull(SparkRanks.<Object>run(context, 2, (group, rows) -> null));
    }

    @Test
    void notSerialisableBodyIsAnErrorAtTheDriver() {
        Object captured = new Object();
        Exception e =
                assertThrows(
                        SparkException.class,
                        () -> SparkRanks.run(context, 2, (group, rows) -> captured.hashCode()));
        assertTrue(e.getMessage().contains("Task not serializable"), e.getMessage());
    }

    @Test
    void notSerialisableResultIsAnErrorAtTheDriver() {
        Exception e =
                assertThrows(
                        SparkException.class,
                        () -> SparkRanks.run(context, 2, (group, rows) -> new Object()));
        String error = "not serializable result: java.lang.Object";
        assertTrue(e.getMessage().contains(error), e.getMessage());
    }

    @Test
    void resultLargerThanTheDriverTakesIsAnError() {
        Exception e =
                assertThrows(
                        SparkException.class,
                        () -> SparkRanks.run(context, 2, (group, rows) -> new byte[2 << 20]));
        assertTrue(e.getMessage().contains("spark.driver.maxResultSize"), e.getMessage());
    }

    @Test
    void emptyPartitionsAndEmptyFramesAreAllowed() {
        assertEquals(List.of("[0]", "[1]"), rowsOf(ids(2, 6)));
        assertEquals(List.of("", ""), rowsOf(ids(0, 3)));
        assertEquals(List.of("", ""), rowsOf(ids(9, 3).filter("id < 0")));
    }

    private static List<String> rowsOf(Dataset<Row> data) {
        return SparkRanks.run(data, 2, (group, rows) -> all(group, text(rows)));
    }

    private static String text(Iterator<Row> rows) {
        StringBuilder text = new StringBuilder();
        rows.forEachRemaining(text::append);
        return text.toString();
    }

    @ParameterizedTest
    @CsvSource({"word, word", "gap, null"})
    void columnWithoutNumbersIsNamed(String column, String value) {
        Dataset<Row> data = ids(8, 2).selectExpr("id", "'word' word", "nullif(id, 5) gap");
        Exception e =
                assertThrows(
                        SparkException.class,
                        () -> SparkRanks.run(data, 2, (group, rows) -> size(group, rows, column)));
        String error = "column '" + column + "' must be numbers; a row has " + value;
        assertTrue(e.getMessage().contains(error), e.getMessage());
    }

    private static long size(ProcessGroup group, Iterator<Row> rows, String label) {
        try (NDManager manager = NDManager.newBaseManager()) {
            return SparkRanks.dataset(group, manager, rows, 2, label, "id").size();
        }
    }

    @Test
    void jobsAtTheSameTimeTakeTurns() {
        List<CompletableFuture<List<String>>> jobs = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            String job = "job " + i;
            jobs.add(
                    CompletableFuture.supplyAsync(
                            () -> SparkRanks.run(context, 2, (group, rows) -> all(group, job))));
        }
        for (int i = 0; i < 3; i++) {
            assertEquals(List.of("job " + i, "job " + i), jobs.get(i).join());
        }
    }

    private static Dataset<Row> ids(int rows, int partitions) {
        return spark.range(0, rows, 1, partitions).toDF();
    }

    private static List<String> all(ProcessGroup group, String value) {
        return new ObjectCollectives(group).allGatherObject(value);
    }
}

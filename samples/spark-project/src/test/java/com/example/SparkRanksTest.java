// SPDX-License-Identifier: Apache-2.0
package com.example;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDManager;
import ai.djl.training.dataset.Batch;

import org.apache.spark.BarrierTaskContext;
import org.apache.spark.SparkException;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.djlx.collectives.ObjectCollectives;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;

/** Two ranks in two executors, each a JVM of its own. */
@Timeout(value = 5, unit = TimeUnit.MINUTES, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
class SparkRanksTest {

    private static SparkSession spark;
    private static JavaSparkContext context;

    @BeforeAll
    static void start() {
        String target = Path.of("target").toAbsolutePath().toString();
        String classes = target + "/classes:" + target + "/test-classes";
        spark =
                SparkSession.builder()
                        .config("spark.jars", "")
                        .config("spark.executor.extraClassPath", classes)
                        .config("spark.scheduler.barrier.maxConcurrentTasksCheck.interval", "3s")
                        .getOrCreate();
        context = JavaSparkContext.fromSparkContext(spark.sparkContext());
    }

    @AfterAll
    static void stop() {
        spark.stop();
    }

    @Test
    void ranksAreProcessesAndResultOfRank0ComesBack() {
        List<String> ranks = run((group, rows) -> all(group, group.rank() + " " + pid()));
        assertEquals(List.of("0 ", "1 "), ranks.stream().map(r -> r.substring(0, 2)).toList());
        assertEquals(2, ranks.stream().map(r -> r.substring(2)).distinct().count());
    }

    @Test
    void rowsGoToRanksInTurnAndUnevenRestIsDropped() {
        // Partitions of 2, 2, 2, 2 and 3 rows. Rank 0 gets 0, 2, … 10; rank 1 gets 1, 3, … 9.
        assertEquals(List.of("[0.0, 2.0] [4.0, 6.0] ", "[1.0, 3.0] [5.0, 7.0] "), batchesOf(11, 5));
    }

    @Test
    void datasetThrowsOnAllRanksIfOneHasTooFewRows() {
        String error = "a rank has fewer than 2 rows, the batch size; rank %d has %d";
        assertEquals(List.of(error.formatted(0, 2), error.formatted(1, 1)), batchesOf(3, 3));
    }

    @Test
    void failedRankFailsTheJobWithItsErrorAfterFourGenerations() {
        SparkRanks.RankBody<Integer> body =
                (group, rows) -> {
                    if (group.rank() == 0) {
                        throw new SlowException();
                    }
                    group.barrier().await();
                    return 0;
                };
        String message = assertThrows(SparkException.class, () -> run(body)).getMessage();
        String error = "CollectiveException: rank 0 failed: " + new SlowException();
        assertTrue(message.contains(error), message);
        assertTrue(message.contains("maximum allowable number of times: 4"), message);
    }

    /** Takes a second to send, so that the driver first hears of rank 1, which fails after it. */
    private static final class SlowException extends RuntimeException {

        private void writeObject(ObjectOutputStream output) throws IOException {
            output.defaultWriteObject();
            LockSupport.parkNanos(TimeUnit.SECONDS.toNanos(1));
        }
    }

    @Test
    void newGenerationFollowsADeadExecutor() {
        String name =
                run(
                        (group, rows) -> {
                            int attempt = BarrierTaskContext.get().stageAttemptNumber();
                            if (group.rank() == 1 && attempt == 0) {
                                Runtime.getRuntime().halt(1);
                            }
                            group.barrier().await();
                            return group.name();
                        });
        assertTrue(name.matches("stage \\d+, attempt 1"), name);
    }

    @Test
    void generationThatDoesNotMeetLeavesNoStore() {
        int stores = run(new EarlyFailure()).stream().mapToInt(Integer::parseInt).sum();
        assertEquals(1, stores);
    }

    /** Fails rank 1 of the first generation before it joins, while rank 0 waits for it. */
    private static final class EarlyFailure implements SparkRanks.RankBody<List<String>> {

        private void readObject(ObjectInputStream input) throws IOException {
            TaskContext task = TaskContext.get();
            if (task != null && task.partitionId() == 1 && task.stageAttemptNumber() == 0) {
                LockSupport.parkNanos(TimeUnit.SECONDS.toNanos(2));
                throw new IOException("rank 1 does not come");
            }
        }

        /** Returns the number of stores that each executor serves. */
        @Override
        public List<String> run(ProcessGroup group, Iterator<Row> rows) {
            Stream<Thread> threads = Thread.getAllStackTraces().keySet().stream();
            long stores = threads.filter(t -> t.getName().contains("tcpstore-server")).count();
            return all(group, Long.toString(stores));
        }
    }

    @Test
    void killedTaskBeginsANewGeneration(@TempDir Path folder) throws Exception {
        Path started = folder.resolve("started");
        String id = folder.resolve("id").toString();
        SparkRanks.RankBody<String> body =
                (group, rows) -> {
                    TaskContext task = TaskContext.get();
                    if (task.stageAttemptNumber() == 0) {
                        Path own = Path.of(id + group.rank());
                        Files.writeString(own, Long.toString(task.taskAttemptId()));
                        group.barrier().await();
                        if (group.rank() == 0) {
                            Files.createFile(Path.of(id).resolveSibling("started"));
                        }
                        while (true) {
                            group.barrier().await();
                        }
                    }
                    return group.name();
                };
        CompletableFuture<String> job = CompletableFuture.supplyAsync(() -> run(body));
        while (!Files.exists(started)) {
            Thread.sleep(10);
        }
        long task = Long.parseLong(Files.readString(Path.of(id + 1)));
        spark.sparkContext().killTaskAttempt(task, true, "test");
        String name = job.join();
        assertTrue(name.matches("stage \\d+, attempt 1"), name);
    }

    @Test
    void cancelledJobInterruptsItsRanks(@TempDir Path folder) throws Exception {
        String started = folder.resolve("started").toString();
        SparkRanks.RankBody<Integer> body =
                (group, rows) -> {
                    if (group.rank() == 1) {
                        Files.createFile(Path.of(started));
                        Thread.sleep(TimeUnit.HOURS.toMillis(1));
                    }
                    group.barrier().await();
                    return 0;
                };
        CompletableFuture<Integer> job = CompletableFuture.supplyAsync(() -> run(body));
        while (!Files.exists(Path.of(started))) {
            Thread.sleep(10);
        }
        context.cancelAllJobs();
        assertThrows(CompletionException.class, job::join);
        // The slots of the ranks are free again.
        assertEquals(2, SparkRanksTest.<Integer>run((group, rows) -> group.worldSize()));
    }

    private static <T> T run(SparkRanks.RankBody<T> body) {
        return SparkRanks.run(context, 2, body);
    }

    /** Returns each rank's batches of two numbers, or its error. */
    private static List<String> batchesOf(int rows, int partitions) {
        return SparkRanks.run(
                spark.range(0, rows, 1, partitions).selectExpr("id", "10 * id as label"),
                2,
                (group, share) -> all(group, batches(group, share)));
    }

    private static String batches(ProcessGroup group, Iterator<Row> rows) throws Exception {
        StringBuilder text = new StringBuilder();
        try (NDManager manager = NDManager.newBaseManager()) {
            for (Batch batch :
                    SparkRanks.dataset(group, manager, rows, 2, "label", "id").getData(manager)) {
                float[] ids = batch.getData().head().toFloatArray();
                if (!batch.getLabels().head().equals(batch.getData().head().mul(10))) {
                    throw new IllegalStateException("the labels differ from 10 * id");
                }
                // A collective for each batch, as in training.
                group.allReduce(batch.getData().head(), ReduceOp.SUM).await();
                text.append(Arrays.toString(ids)).append(' ');
            }
            return text.toString();
        } catch (IllegalArgumentException e) {
            return e.getMessage();
        }
    }

    private static List<String> all(ProcessGroup group, String value) {
        return new ObjectCollectives(group).allGatherObject(value);
    }

    private static long pid() {
        return ProcessHandle.current().pid();
    }
}

// SPDX-License-Identifier: Apache-2.0
package com.example;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.training.dataset.ArrayDataset;

import org.apache.spark.BarrierTaskContext;
import org.apache.spark.HashPartitioner;
import org.apache.spark.SparkContext;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.resource.ResourceInformation;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.store.TcpStore;

import scala.Function1;
import scala.Tuple2;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;

import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;

/**
 * Runs the ranks of a process group as the tasks of a Spark barrier stage, as PySpark's
 * TorchDistributor does. Copy this class into your project.
 *
 * <ul>
 *   <li>Spark starts all ranks at once, and needs a free slot for each. Rank 0's task serves the
 *       store in which the ranks meet.
 *   <li>If a rank fails or an executor dies, all ranks stop, and Spark runs the stage again: with a
 *       new store and a new group, at most {@code spark.stage.maxConsecutiveAttempts} times. Then
 *       the job fails with the error of the rank that failed first.
 *   <li>Cancelling the job interrupts the ranks.
 *   <li>Tasks that have a GPU ({@code spark.task.resource.gpu.amount=1}) use backend {@code
 *       cuda_p2p}, on one or several hosts. Other tasks use {@code shm}, which needs all executors
 *       on one host.
 * </ul>
 */
public final class SparkRanks {

    private static final String INTERRUPT = "spark.job.interruptOnCancel";

    private SparkRanks() {}

    /** The code of a rank. */
    @FunctionalInterface
    public interface RankBody<T> extends Serializable {

        /**
         * Runs in the rank's task; the group is destroyed after it. Only rank 0's result goes to
         * the driver; Spark serialises it.
         */
        T run(ProcessGroup group, Iterator<Row> rows) throws Exception;
    }

    /** Runs a body on each rank, without rows. Returns rank 0's result. */
    public static <T> T run(JavaSparkContext context, int ranks, RankBody<T> body) {
        return run(context.<Row>parallelize(List.of(), positive(ranks)), body);
    }

    /**
     * Runs a body on each rank with its share of a DataFrame. Returns rank 0's result.
     *
     * <p>Row {@code i} goes to rank {@code i % ranks}, whatever the partitions of the DataFrame,
     * and each rank gets its rows in order. So shares differ by one row at most, and the {@code
     * i}-th batches of N ranks together are the {@code i}-th batch of one process with an N times
     * larger batch size.
     */
    public static <T> T run(Dataset<Row> data, int ranks, RankBody<T> body) {
        // The hash code of a Long below 2^31 is its value.
        return run(
                data.toJavaRDD()
                        .zipWithIndex()
                        .mapToPair(Tuple2::swap)
                        .repartitionAndSortWithinPartitions(new HashPartitioner(positive(ranks)))
                        .values(),
                body);
    }

    private static int positive(int ranks) {
        if (ranks < 1) {
            throw new IllegalArgumentException("ranks must be at least 1, not " + ranks);
        }
        return ranks;
    }

    /**
     * Makes a DJL dataset of a rank's rows, in their order; columns are numbers. All ranks must
     * call it: they agree on the number of full batches that every rank has, and drop later rows.
     * So no rank waits for a batch that another rank does not have.
     *
     * @throws IllegalArgumentException on all ranks, if one has fewer rows than a batch
     */
    public static ArrayDataset dataset(
            ProcessGroup group,
            NDManager manager,
            Iterator<Row> rows,
            int batchSize,
            String label,
            String... features) {
        List<float[]> values = new ArrayList<>();
        List<float[]> labels = new ArrayList<>();
        rows.forEachRemaining(
                row -> {
                    values.add(numbers(row, features));
                    labels.add(numbers(row, label));
                });
        NDArray batches = manager.create(new int[] {values.size() / batchSize});
        group.allReduce(batches, ReduceOp.MIN).await();
        int size = batches.getInt() * batchSize;
        if (size == 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "a rank has fewer than %d rows, the batch size; rank %d has %d",
                            batchSize, group.rank(), values.size()));
        }
        return new ArrayDataset.Builder()
                .setData(manager.create(values.subList(0, size).toArray(float[][]::new)))
                .optLabels(manager.create(labels.subList(0, size).toArray(float[][]::new)))
                .setSampling(batchSize, false)
                .build();
    }

    private static float[] numbers(Row row, String... columns) {
        float[] numbers = new float[columns.length];
        for (int i = 0; i < numbers.length; i++) {
            Object value = row.getAs(columns[i]);
            if (!(value instanceof Number number)) {
                throw new IllegalArgumentException(
                        "column '%s' must be numbers; a row has %s".formatted(columns[i], value));
            }
            numbers[i] = number.floatValue();
        }
        return numbers;
    }

    private static <T> T run(JavaRDD<Row> rows, RankBody<T> body) {
        Function1<scala.collection.Iterator<Row>, scala.collection.Iterator<T>> task =
                (Function1<scala.collection.Iterator<Row>, scala.collection.Iterator<T>>
                                & Serializable)
                        partition -> rank(body, CollectionConverters.asJava(partition));
        SparkContext spark = rows.context();
        String before = spark.getLocalProperty(INTERRUPT);
        spark.setLocalProperty(INTERRUPT, "true"); // for jobs of this thread
        try {
            return rows.rdd()
                    .barrier()
                    .mapPartitions(task, false, ClassTag.<T>apply(Object.class))
                    .toJavaRDD()
                    .repartition(1) // Spark runs a stage again only if another stage follows it.
                    .collect()
                    .get(0);
        } finally {
            spark.setLocalProperty(INTERRUPT, before);
        }
    }

    /** Runs a rank in its task. Yields the result on rank 0, nothing on other ranks. */
    private static <T> scala.collection.Iterator<T> rank(RankBody<T> body, Iterator<Row> rows) {
        BarrierTaskContext task = BarrierTaskContext.get();
        int rank = task.partitionId();
        TcpStore store = meet(task);
        try (ProcessGroup group = join(task, store)) {
            try {
                T result = body.run(group, rows);
                task.barrier(); // No rank leaves the group while another rank uses it.
                List<T> results = rank == 0 ? Collections.singletonList(result) : List.of();
                return CollectionConverters.asScala(results.iterator());
            } catch (Throwable e) {
                // Closing the group then fails the other ranks' calls.
                throw new CollectiveException(firstFailure(store, rank, e), e);
            }
        } finally {
            store.closeAfterOthers(Duration.ofSeconds(5));
        }
    }

    /** Starts the store on rank 0. The other ranks get its address and connect. */
    private static TcpStore meet(BarrierTaskContext task) {
        TcpStore.Builder builder = TcpStore.builder();
        if (task.partitionId() > 0) {
            String[] address = task.allGather("")[0].split(" ");
            return builder.setHost(address[0]).setPort(Integer.parseInt(address[1])).build();
        }
        String host = task.getTaskInfos()[0].address().replaceFirst(":\\d+$", "");
        builder.setHost(host).setPort(0).optServer(true).optBindAddress(host);
        TcpStore store = builder.build();
        try {
            task.allGather(host + " " + store.port());
            return store;
        } catch (Throwable e) { // Another rank has failed before, or the job is cancelled.
            store.close();
            throw e;
        }
    }

    private static ProcessGroup join(BarrierTaskContext task, TcpStore store) {
        String backend = "shm";
        BackendOptions options = new BackendOptions(BackendOptions.DEFAULT_TIMEOUT);
        ResourceInformation gpu = task.resourcesJMap().get("gpu");
        if (gpu != null) {
            Device device = Device.gpu(Integer.parseInt(gpu.addresses()[0]));
            NcclOptions nccl = NcclOptions.builder().optDevices(device).build();
            backend = "cuda_p2p";
            options = CudaP2pOptions.builder().optNcclOptions(nccl).build();
        }
        String name = "stage " + task.stageId() + ", attempt " + task.stageAttemptNumber();
        int ranks = task.getTaskInfos().length;
        return ProcessGroups.init(backend, store, name, task.partitionId(), ranks, options);
    }

    private static String firstFailure(TcpStore store, int rank, Throwable e) {
        byte[] own = ("rank " + rank + " failed: " + e).getBytes(StandardCharsets.UTF_8);
        try {
            own = store.compareSet("failure", new byte[0], own);
        } catch (CollectiveException lost) { // Rank 0 has died.
            e.addSuppressed(lost);
        }
        return new String(own, StandardCharsets.UTF_8);
    }
}

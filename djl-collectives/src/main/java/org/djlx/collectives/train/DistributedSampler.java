/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.train;

import ai.djl.training.dataset.RandomAccessDataset;
import ai.djl.training.dataset.Sampler;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Random;
import java.util.stream.LongStream;
import org.djlx.collectives.ProcessGroup;

/**
 * Divides a dataset among processes, each of which gets batches of its own; the counterpart of
 * {@code torch.utils.data.DistributedSampler}. All go through as many batches of the same sizes, as
 * they must to reduce gradients together. Batch {@code i} of all processes together is batch {@code
 * i} of one process whose batches are larger by the number of processes, with the same seed.
 *
 * <pre>{@code
 * new ArrayDataset.Builder()
 *         .setData(x).optLabels(y)
 *         .setSampling(DistributedSampler.builder().setBatchSize(32).build())
 * }</pre>
 *
 * <p>What is left at the end of an epoch is dropped, or filled up from its beginning. Each time the
 * dataset is gone through is an epoch and has an order of its own, which follows from the seed. Not
 * thread-safe.
 */
public final class DistributedSampler implements Sampler {

    private final int batchSize;
    private final int rank;
    private final int worldSize;
    private final boolean shuffle;
    private final long seed;
    private final boolean pad;
    private long epoch;
    private long trained; // batches of the next epoch that are left out

    private DistributedSampler(Builder builder) {
        batchSize = builder.batchSize;
        rank = builder.rank;
        worldSize = builder.worldSize;
        shuffle = builder.shuffle;
        seed = builder.seed;
        pad = builder.pad;
    }

    /**
     * Sets the number of the epoch that comes next, so that a job that goes on from a checkpoint
     * has the order that it would have had.
     *
     * @param epoch the number, 0 for the first
     */
    public void setEpoch(long epoch) {
        setEpoch(epoch, 0);
    }

    /**
     * Sets the number of the epoch that comes next, and leaves out its first batches, so that a job
     * goes on in the middle of an epoch.
     *
     * @param epoch the number, 0 for the first
     * @param batches how many batches of it were trained on, of this process; if the epoch has
     *     fewer, {@link #sample} says so
     * @throws IllegalArgumentException if a number is less than 0
     */
    public void setEpoch(long epoch, long batches) {
        if (epoch < 0 || batches < 0) {
            throw new IllegalArgumentException(
                    String.format("epoch %d or batch %d is less than 0", epoch, batches));
        }
        this.epoch = epoch;
        trained = batches;
    }

    @Override
    public Iterator<List<Long>> sample(RandomAccessDataset dataset) {
        List<Long> order = new ArrayList<>(LongStream.range(0, dataset.size()).boxed().toList());
        if (shuffle) {
            Collections.shuffle(order, new Random(seed * 1_000_003 + epoch));
        }
        epoch++;
        int step = batchSize * worldSize;
        int count = pad ? (order.size() + step - 1) / step : order.size() / step;
        if (count == 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "a dataset of %d items has no batch of %d for each of %d processes;"
                                    + " make batches smaller%s",
                            order.size(),
                            batchSize,
                            worldSize,
                            pad ? "" : ", or fill them up with optPad(true)"));
        }
        if (trained > count) {
            throw new IllegalArgumentException(
                    String.format(
                            "%d batches are to be left out, but the epoch has %d; is the dataset,"
                                    + " the batch size or the number of processes another?",
                            trained, count));
        }
        List<List<Long>> batches = new ArrayList<>();
        for (int i = (int) trained; i < count; i++) {
            List<Long> batch = new ArrayList<>();
            int begin = i * step + rank * batchSize;
            for (int k = begin; k < begin + batchSize; k++) {
                batch.add(order.get(k % order.size()));
            }
            batches.add(batch);
        }
        trained = 0;
        return batches.iterator();
    }

    @Override
    public int getBatchSize() {
        return batchSize;
    }

    /**
     * Creates a builder.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** Builds a {@link DistributedSampler}. */
    public static final class Builder {

        private int batchSize;
        private int rank = environment("RANK", 0);
        private int worldSize = environment("WORLD_SIZE", 1);
        private boolean shuffle = true;
        private long seed;
        private boolean pad;

        private Builder() {}

        private static int environment(String name, int otherwise) {
            String value = System.getenv(name);
            try {
                return value == null ? otherwise : Integer.parseInt(value.trim());
            } catch (NumberFormatException e) {
                throw new IllegalArgumentException(
                        "the environment variable " + name + " is not a number: " + value, e);
            }
        }

        /**
         * Sets the size of this process's batches.
         *
         * @param size the number of items
         * @return this builder
         */
        public Builder setBatchSize(int size) {
            batchSize = size;
            return this;
        }

        /**
         * Sets whose batches these are; otherwise the variables {@code RANK} and {@code WORLD_SIZE}
         * say it, and there is one process without them.
         *
         * @param group this rank's handle on the group of those that divide the dataset
         * @return this builder
         */
        public Builder optGroup(ProcessGroup group) {
            if (group == null) {
                throw new IllegalArgumentException("optGroup: group is null");
            }
            rank = group.rank();
            worldSize = group.worldSize();
            return this;
        }

        /**
         * Sets whether each epoch has a random order.
         *
         * @param shuffle whether it has, which is the default; otherwise it is the dataset's
         * @return this builder
         */
        public Builder optShuffle(boolean shuffle) {
            this.shuffle = shuffle;
            return this;
        }

        /**
         * Sets from what the orders follow. The same on all processes.
         *
         * @param seed the seed, 0 unless set
         * @return this builder
         */
        public Builder optSeed(long seed) {
            this.seed = seed;
            return this;
        }

        /**
         * Sets what becomes of items at the end that make no batch for all processes.
         *
         * @param pad whether they are filled up with items from the epoch's beginning; otherwise,
         *     and by default, they are dropped
         * @return this builder
         */
        public Builder optPad(boolean pad) {
            this.pad = pad;
            return this;
        }

        /**
         * Builds the sampler.
         *
         * @return the sampler
         * @throws IllegalArgumentException if the batch size is not set, or a number is wrong
         */
        public DistributedSampler build() {
            if (batchSize < 1) {
                throw new IllegalArgumentException(
                        "the batch size must be 1 or more, not " + batchSize);
            }
            if (worldSize < 1 || rank < 0 || rank >= worldSize) {
                throw new IllegalArgumentException(
                        "rank " + rank + " lies outside of " + worldSize + " processes");
            }
            return new DistributedSampler(this);
        }
    }
}

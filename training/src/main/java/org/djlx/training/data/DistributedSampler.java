// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.data;

import ai.djl.training.dataset.RandomAccessDataset;
import ai.djl.training.dataset.Sampler;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Random;
import java.util.stream.LongStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.launch.LaunchEnvironment;
import org.djlx.nativeops.host.Required;

/**
 * Divides a dataset among processes; the counterpart of {@code
 * torch.utils.data.DistributedSampler}. Every process gets the same number of batches, all of the
 * same size. With the same seed, the {@code i}-th batches of N processes together are the {@code
 * i}-th batch of one process with an N times larger batch size.
 *
 * <pre>{@code
 * new ArrayDataset.Builder()
 *         .setData(x).optLabels(y)
 *         .setSampling(DistributedSampler.builder().setBatchSize(32).build())
 * }</pre>
 *
 * <p>Items at the end of an epoch that do not make a batch for every process are dropped, or, with
 * {@link Builder#optPad}, filled up from the epoch's beginning. Each epoch has its own order, which
 * follows from the seed and the epoch's number. Not thread-safe.
 */
public final class DistributedSampler implements Sampler {

    private final int batchSize;
    private final int rank;
    private final int worldSize;
    private final boolean shuffle;
    private final long seed;
    private final boolean pad;
    private long epoch;
    private long skipped; // items of the order at the start of the next epoch

    private DistributedSampler(Builder builder) {
        batchSize = builder.batchSize;
        rank = builder.rank;
        worldSize = builder.worldSize;
        shuffle = builder.shuffle;
        seed = builder.seed;
        pad = builder.pad;
    }

    /** Sets the number of the next epoch, from 0, as PyTorch's {@code set_epoch}. */
    public void setEpoch(long epoch) {
        setPosition(epoch, 0);
    }

    /**
     * Sets the number of the next epoch, from 0, and skips items of all processes together at its
     * start, to resume a job with another number of processes or size of batches. {@link #sample}
     * throws if the epoch has fewer.
     */
    public void setPosition(long epoch, long items) {
        if (epoch < 0 || items < 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "sampler: epoch %d or item %d is out of range: both are 0 or more",
                            epoch, items));
        }
        this.epoch = epoch;
        skipped = items;
    }

    /** {@return the number of items in a batch of all processes together} */
    public int itemsPerBatch() {
        return batchSize * worldSize;
    }

    /** {@return the settings that decide the order of items, of all processes together} */
    public String order() {
        return (shuffle ? "seed " + seed : "unshuffled") + (pad ? ", padded" : "");
    }

    @Override
    public Iterator<List<Long>> sample(RandomAccessDataset dataset) {
        List<Long> order = new ArrayList<>(LongStream.range(0, dataset.size()).boxed().toList());
        if (shuffle) {
            Collections.shuffle(order, new Random(seed * 1_000_003 + epoch));
        }
        epoch++;
        int step = itemsPerBatch();
        int count = pad ? (order.size() + step - 1) / step : order.size() / step;
        if (count == 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "a dataset of %d items is too small for a batch of %d on each of %d"
                                    + " processes; use a smaller batch size%s",
                            order.size(), batchSize, worldSize, pad ? "" : ", or optPad(true)"));
        }
        if (skipped > Math.max(order.size(), (long) count * step)) {
            throw new IllegalArgumentException(
                    String.format(
                            "cannot skip %d items, because the epoch has %d; the dataset must have"
                                    + " changed",
                            skipped, order.size()));
        }
        int end = pad ? order.size() : order.size() - step + 1;
        List<List<Long>> batches = new ArrayList<>();
        for (int first = (int) skipped; first < end; first += step) {
            List<Long> batch = new ArrayList<>();
            int begin = first + rank * batchSize;
            for (int k = begin; k < begin + batchSize; k++) {
                batch.add(order.get(k % order.size()));
            }
            batches.add(batch);
        }
        skipped = 0;
        return batches.iterator();
    }

    @Override
    public int getBatchSize() {
        return batchSize;
    }

    public static Builder builder() {
        return new Builder();
    }

    public static final class Builder {

        private int batchSize;
        private int rank = environment("RANK", 0);
        private int worldSize = environment("WORLD_SIZE", 1);
        private boolean shuffle = true;
        private long seed;
        private boolean pad;

        private Builder() {}

        private static int environment(String name, int otherwise) {
            String value = LaunchEnvironment.current().get(name);
            try {
                return value == null ? otherwise : Integer.parseInt(value.trim());
            } catch (NumberFormatException e) {
                throw new IllegalArgumentException(
                        "the environment variable " + name + " is not a number: " + value, e);
            }
        }

        /** Sets the number of items in this process's batches. Required. */
        public Builder setBatchSize(int size) {
            batchSize = size;
            return this;
        }

        /**
         * Sets this rank's handle on the group among which the dataset is divided. Unless set, the
         * environment variables {@code RANK} and {@code WORLD_SIZE} are used; without them there is
         * one process.
         */
        public Builder optGroup(ProcessGroup group) {
            rank = Required.argument("optGroup: group", group).rank();
            worldSize = group.worldSize();
            return this;
        }

        /** Sets whether each epoch has a random order, the default, or the dataset's. */
        public Builder optShuffle(boolean shuffle) {
            this.shuffle = shuffle;
            return this;
        }

        /** Sets the seed of the random orders; default 0. The same on all processes. */
        public Builder optSeed(long seed) {
            this.seed = seed;
            return this;
        }

        /**
         * Sets whether an epoch is filled up with items from its beginning, so that none is
         * dropped; default false.
         */
        public Builder optPad(boolean pad) {
            this.pad = pad;
            return this;
        }

        public DistributedSampler build() {
            if (batchSize < 1) {
                throw new IllegalArgumentException(
                        "setBatchSize: "
                                + batchSize
                                + " is out of range: a batch has 1 item or more");
            }
            if (worldSize < 1 || rank < 0 || rank >= worldSize) {
                throw new IllegalArgumentException(
                        "rank " + rank + " is out of range: there are " + worldSize + " processes");
            }
            return new DistributedSampler(this);
        }
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.train;

import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.loss.Loss;
import java.util.Arrays;
import java.util.Locale;
import java.util.function.Function;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.engine.P2pEngine;

/**
 * A training configuration that says how {@link P2pEngine} trains on several ranks. What it leaves
 * open, and any other configuration, is taken from system properties: {@code org.djlx.ranks},
 * {@code org.djlx.gradientReduction}, {@code org.djlx.gradientCompression}, {@code
 * org.djlx.bucketBytes}, {@code org.djlx.backend}.
 */
public final class DataParallelConfig extends DefaultTrainingConfig {

    private static final String PREFIX = "org.djlx.";

    /** The system property that sets the gradient reduction of processes. */
    static final String GRADIENT_REDUCTION = PREFIX + "gradientReduction";

    private static final long BUCKET_BYTES = 25L << 20; // as PyTorch's DistributedDataParallel

    private Integer ranks = property("ranks", Integer::valueOf, null);
    private final GradientReduction usualReduction =
            property("gradientReduction", GradientReduction.class, GradientReduction.SUM);
    private final boolean isReductionProperty = System.getProperty(GRADIENT_REDUCTION) != null;
    private GradientReduction reduction; // null if it is not set here
    private GradientCompression compression =
            property("gradientCompression", GradientCompression.class, GradientCompression.NONE);
    private long bucketBytes = property("bucketBytes", Long::valueOf, BUCKET_BYTES);
    private String backend = System.getProperty(PREFIX + "backend");
    private ProcessGroup group;

    /**
     * Creates a configuration.
     *
     * @param loss the loss
     * @throws IllegalArgumentException if one of the system properties has a value that it cannot
     *     have
     */
    public DataParallelConfig(Loss loss) {
        super(loss);
    }

    private static <N> N property(String name, Function<String, N> parser, N otherwise) {
        String value = System.getProperty(PREFIX + name);
        try {
            return value == null ? otherwise : parser.apply(value.trim());
        } catch (NumberFormatException e) {
            throw new IllegalArgumentException(
                    String.format(
                            "the system property %s%s is not a number: %s", PREFIX, name, value),
                    e);
        }
    }

    private static <E extends Enum<E>> E property(String name, Class<E> type, E otherwise) {
        String value = System.getProperty(PREFIX + name, otherwise.name());
        try {
            return Enum.valueOf(type, value.trim().toUpperCase(Locale.ROOT));
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(
                    String.format(
                            "the system property %s%s must be one of %s, not %s",
                            PREFIX, name, Arrays.toString(type.getEnumConstants()), value),
                    e);
        }
    }

    /**
     * Sets the number of ranks in this JVM that train on the CPU. On GPUs there is one for each
     * device.
     *
     * @param ranks the number, 1 or more
     * @return this configuration
     */
    public DataParallelConfig optRanks(int ranks) {
        this.ranks = ranks;
        return this;
    }

    /**
     * Sets how the gradients of processes, or of trainers with a group, become one. The same on all
     * of them. Several ranks in this JVM have one loss, of the whole batch, and so gradients as one
     * device has them: {@code newTrainer} then refuses {@link GradientReduction#MEAN} from here,
     * which would make them smaller, while the system property {@code org.djlx.gradientReduction},
     * which may be that of all programs, is for processes alone.
     *
     * @param reduction {@link GradientReduction#SUM}, the default, or {@link
     *     GradientReduction#MEAN}. The trainer warns if several processes sum by default, because
     *     PyTorch's DistributedDataParallel averages
     * @return this configuration
     */
    public DataParallelConfig optGradientReduction(GradientReduction reduction) {
        if (reduction == null) {
            throw new IllegalArgumentException("optGradientReduction: reduction is null");
        }
        this.reduction = reduction;
        return this;
    }

    /**
     * Sets as what gradients go from rank to rank. The same on all of them.
     *
     * @param compression {@link GradientCompression#NONE}, which is the default, or {@link
     *     GradientCompression#BFLOAT16}
     * @return this configuration
     */
    public DataParallelConfig optGradientCompression(GradientCompression compression) {
        if (compression == null) {
            throw new IllegalArgumentException("optGradientCompression: compression is null");
        }
        this.compression = compression;
        return this;
    }

    /**
     * Sets how many bytes of gradients are reduced at once. The same on all ranks.
     *
     * @param bytes the size of a bucket, 25 MiB unless set, before they are compressed; a larger
     *     gradient has one to itself
     * @return this configuration
     */
    public DataParallelConfig optBucketBytes(long bytes) {
        bucketBytes = bytes;
        return this;
    }

    /**
     * Sets the backend of the group that the trainer makes.
     *
     * @param backend the backend; unless set, {@code shm} on CPUs and {@code cuda_p2p} on GPUs
     * @return this configuration
     */
    public DataParallelConfig optBackend(String backend) {
        this.backend = backend;
        return this;
    }

    /**
     * Sets the group of the processes, or threads, each of which has a trainer of its own with one
     * rank. Otherwise the trainer makes one if the environment says that this is one of several
     * processes.
     *
     * @param group this rank's handle, which stays the caller's; on the trainer's device
     * @return this configuration
     */
    public DataParallelConfig optProcessGroup(ProcessGroup group) {
        this.group = group;
        return this;
    }

    /** Returns the number of ranks in this JVM; null if it is not said. */
    Integer ranks() {
        if (ranks != null && ranks < 1) {
            throw new IllegalArgumentException(
                    String.format(
                            "the number of ranks, of optRanks or the system property %sranks, must"
                                    + " be 1 or more: %d",
                            PREFIX, ranks));
        }
        return ranks;
    }

    /** Tells whether the program or the system property chose the gradient reduction. */
    boolean isReductionSet() {
        return reduction != null || isReductionProperty;
    }

    GradientReduction reduction() {
        return reduction == null ? usualReduction : reduction;
    }

    /** Checks that nothing was asked for that several ranks of a JVM do not do. */
    void checkRanksOfOneJvm(int ranks) {
        if (reduction == GradientReduction.MEAN) {
            throw new IllegalArgumentException(
                    String.format(
                            "newTrainer: optGradientReduction(MEAN) is for processes, each of which"
                                + " has a loss of its own; the %d ranks of this JVM have one loss,"
                                + " of the whole batch, and so gradients as one device has them."
                                + " Leave it out, or give it to processes alone, by"
                                + " -D%sgradientReduction=MEAN",
                            ranks, PREFIX));
        }
    }

    GradientCompression compression() {
        return compression;
    }

    long bucketBytes() {
        if (bucketBytes < 1) {
            throw new IllegalArgumentException(
                    "the size of a bucket must be 1 byte or more: " + bucketBytes);
        }
        return bucketBytes;
    }

    String backend(boolean gpu) {
        return backend != null ? backend : gpu ? "cuda_p2p" : "shm";
    }

    ProcessGroup group() {
        return group;
    }
}

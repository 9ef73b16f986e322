/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.cost;

import java.util.List;
import org.djlx.nativeops.torch.ScalarType;

/**
 * What an operator takes that is one launch of the persistent matmul, by a model of waves: its
 * tiles, each of one rank's rows, are dealt out to the multiprocessors; a tile begins no sooner
 * than the rows that it needs are there.
 *
 * <p>What follows from it, tiles and pushers, is the same on all ranks that have the same sizes.
 */
public final class FusedMatmulModel {

    /** The rows of a tile. */
    public static final int TILE_ROWS = 128;

    /** The columns of each shape of tiles. */
    public static final List<Integer> TILE_COLUMNS = List.of(256, 128, 64);

    /** The elements in 16 bytes: rows have whole ones. */
    public static final int UNIT = 8;

    /** How many Bs an all-gather + matmul can have. */
    public static final int MAX_RIGHTS = 4;

    /** How many ranks it can have. */
    public static final int MAX_RANKS = 8;

    private static final int MAX_TILES = 1 << 24; // beyond, a schedule does as well
    private static final int MAX_SIZE = Integer.MAX_VALUE / 2;
    private static final int STEP = 64; // columns of A that a tile multiplies at once
    private static final long PIECE = 32768; // bytes that a block pushes at once
    private static final int[] PUSHERS = {8, 16, 32, 4, 2, 1};
    private static final double EPSILON = 1e-9;

    private final Machine machine;
    private final Workload work;

    /**
     * Describes a launch.
     *
     * @param machine the GPUs
     * @param work the operator
     * @throws IllegalArgumentException if an argument is null
     */
    public FusedMatmulModel(Machine machine, Workload work) {
        if (machine == null || work == null) {
            throw new IllegalArgumentException("a launch needs a machine and an operator");
        }
        this.machine = machine;
        this.work = work;
    }

    /**
     * How an operator is divided.
     *
     * @param tile which of the {@link #TILE_COLUMNS}
     * @param pushers how many blocks push the shard before they multiply; 0 where none is pushed
     * @param micros how long it takes, in microseconds, by operators that were measured
     */
    public record Tiling(int tile, int pushers, double micros) {}

    /**
     * Tells whether the kernel can do it: in 16-bit types, with rows of whole units, for up to 8
     * ranks and 4 Bs; and with a flag for each half of a tile of a part that is scattered.
     *
     * @param flags how many each rank has
     * @return whether it can
     */
    public boolean isPossible(int flags) {
        boolean sizes = work.type() == ScalarType.FLOAT16 || work.type() == ScalarType.BFLOAT16;
        sizes &= work.ranks() <= MAX_RANKS && work.columns().size() <= MAX_RIGHTS;
        sizes &= work.rows() > 0 && work.rows() < MAX_SIZE;
        sizes &= work.columns().stream().allMatch(FusedMatmulModel::isWhole);
        if (work.isGather()) {
            sizes &= isWhole(work.inner());
        }
        if (!sizes || work.ranks() * tilesOfPart(TILE_COLUMNS.size() - 1) >= MAX_TILES) {
            return false;
        }
        return work.isGather() || 2 * tilesOfPart(fastest().tile()) <= flags;
    }

    private static boolean isWhole(long size) {
        return size > 0 && size % UNIT == 0 && size < MAX_SIZE;
    }

    /**
     * Returns the number of tiles of one rank's rows.
     *
     * @param tile which of the {@link #TILE_COLUMNS}
     * @return their number
     */
    public long tilesOfPart(int tile) {
        long across = 0;
        for (long n : work.columns()) {
            across += ceilDiv(n, TILE_COLUMNS.get(tile));
        }
        return ceilDiv(work.rows(), TILE_ROWS) * across;
    }

    /**
     * Returns the fastest way to divide the operator, by {@link Machine.Launch#tiles}; and how long
     * the fastest takes by {@link Machine.Launch#steps}.
     *
     * @return tiles and pushers
     */
    public Tiling fastest() {
        Machine.Launch launch = machine.launch();
        Tiling now = fastest(launch.tiles());
        return new Tiling(now.tile, now.pushers, fastest(launch.steps()).micros);
    }

    private Tiling fastest(List<Double> steps) {
        Tiling best = null;
        for (int tile = 0; tile < TILE_COLUMNS.size(); tile++) {
            if (!work.isGather()) {
                best = faster(best, tiling(tile, 0, steps));
                continue;
            }
            for (int pushers : PUSHERS) {
                boolean idle = pushers > 1 && (pushers - 1) * PIECE >= work.bytesIn();
                if (pushers <= machine.multiprocessors() && !idle) {
                    best = faster(best, tiling(tile, pushers, steps));
                }
            }
        }
        return best;
    }

    /** The same, divided in a certain way. */
    Tiling tiling(int tile, int pushers) {
        return tiling(tile, pushers, machine.launch().steps());
    }

    private Tiling tiling(int tile, int pushers, List<Double> steps) {
        double one = ceilDiv(work.inner(), STEP) * steps.get(tile);
        double micros = work.isGather() ? gather(tile, one, pushers) : scatter(tile, one);
        return new Tiling(tile, pushers, micros);
    }

    private static Tiling faster(Tiling best, Tiling next) {
        return best == null || next.micros < best.micros ? next : best;
    }

    private double gather(int tile, double one, int pushers) {
        Machine.Launch launch = machine.launch();
        double rate = launch.pushRate(pushers, work.ranks());
        return launch.start() + waves(tile, one, pushers, work.bytesIn() / rate / 1e3);
    }

    /**
     * The last of a rank's own tiles wait for those that the others have sent, which they do from
     * the end of their first tiles on.
     */
    private double scatter(int tile, double multiplied) {
        Machine.Launch launch = machine.launch();
        double one = multiplied + launch.exchange();
        double sent = one + work.bytesIn() / launch.linkRate() / 1e3;
        return launch.start() + Math.max(waves(tile, one, 0, 0), sent);
    }

    /** How long it takes until all tiles have been dealt out and computed. */
    private double waves(int tile, double one, int pushers, double push) {
        // Blocks that push begin later, and so end later; the earlier one of both ends will do.
        return Math.min(end(tile, one, pushers, push, 0), end(tile, one, pushers, push, push));
    }

    /** The end of the first wave, of those from a begin on, in which all tiles are done. */
    private double end(int tile, double one, int pushers, double push, double begin) {
        int blocks = machine.multiprocessors();
        long tiles = work.ranks() * tilesOfPart(tile);
        long waves = Math.max(1, (long) (tiles / blocks - begin / one) - 1);
        while (true) {
            double end = begin + waves * one;
            long late = (long) Math.max(0, (end - push) / one + EPSILON);
            long early = (long) (end / one + EPSILON);
            // No tile of the shard that comes last can begin before it is there.
            if ((blocks - pushers) * early + pushers * late >= tiles
                    && (work.ranks() == 1 || blocks * late >= tilesOfPart(tile))) {
                return end;
            }
            waves++;
        }
    }

    private static long ceilDiv(long a, long b) {
        return (a + b - 1) / b;
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.cost;

import java.util.List;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Predicts the time of an operator on the path FUSED, by a model of waves. Each tile of the product
 * covers rows of one rank. Tiles are distributed over the SMs. A tile starts after the rows that it
 * needs have arrived.
 *
 * <p>Ranks with the same sizes get the same tiles and the same number of pushing thread blocks.
 */
public final class FusedMatmulModel {

    private static final KernelConstants KERNEL =
            new KernelConstants(
                    KernelSource.ofResource(NativeLibrary.class, "fused_matmul/fused_matmul.cu"));

    /** The rows of a tile. */
    public static final int TILE_ROWS = KERNEL.value("TILE_M");

    /** The columns of each shape of tiles. */
    public static final List<Integer> TILE_COLUMNS = List.of(256, 128, 64);

    /** The 16-bit elements in 16 bytes. The length of rows must be a multiple of 16 bytes. */
    public static final int UNIT = 8;

    /** The largest number of Bs of an all-gather + matmul. */
    public static final int MAX_RIGHTS = KERNEL.value("MAX_RIGHTS");

    public static final int MAX_RANKS = KERNEL.value("MAX_RANKS");

    private static final int MAX_TILES = 1 << 24; // beyond it, PIPELINED is as fast
    private static final int MAX_SIZE = Integer.MAX_VALUE / 2;
    private static final int STEP =
            KERNEL.value("STEP_BYTES"); // of a row of A that a tile multiplies at a time
    private static final long PIECE =
            KERNEL.value("PUSH_BYTES"); // bytes that a thread block pushes at a time
    private static final int[] PUSHERS = {8, 16, 32, 4, 2, 1};
    private static final double EPSILON = 1e-9;

    // The time of a step in float8, which adds sums of 128 products in float32, divided by the time
    // of a step in 16-bit types: 1.36 to 1.53 on one H100, for 1 rank and tiles of 128 columns.
    private static final double SCALED_STEP = 1.5;

    private final Machine machine;
    private final Workload work;

    public FusedMatmulModel(Machine machine, Workload work) {
        if (machine == null || work == null) {
            throw new IllegalArgumentException(
                    "the model needs a machine and an operator; one of them is null");
        }
        this.machine = machine;
        this.work = work;
    }

    /**
     * A way to divide an operator into tiles.
     *
     * @param tile the index into {@link #TILE_COLUMNS}
     * @param pushers the number of thread blocks that push the shard before they multiply; 0 for
     *     matmul + reduce-scatter
     */
    public record Tiling(int tile, int pushers, double micros) {}

    /**
     * Returns whether the kernel can compute the operator:
     *
     * <ul>
     *   <li>float16, bfloat16 or float8 (e4m3), and rows of multiples of 16 bytes
     *   <li>at most {@link #MAX_RANKS} ranks and {@link #MAX_RIGHTS} Bs
     *   <li>for matmul + reduce-scatter, a flag for each half tile of a part
     * </ul>
     *
     * @param flags the number of signal flags of each rank
     */
    public boolean isPossible(int flags) {
        boolean sizes = work.type().isReducedFloatingPoint() || isScaled();
        sizes &= work.ranks() <= MAX_RANKS && work.columns().size() <= MAX_RIGHTS;
        sizes &= work.rows() > 0 && work.rows() < MAX_SIZE;
        sizes &= work.columns().stream().allMatch(FusedMatmulModel::isWhole);
        if (work.isGather()) {
            sizes &= isWhole(work.inner()) && (!isScaled() || work.inner() % (2 * UNIT) == 0);
        }
        if (!sizes || work.ranks() * tilesOfPart(TILE_COLUMNS.size() - 1) >= MAX_TILES) {
            return false;
        }
        return work.isGather() || 2 * tilesOfPart(fastest().tile()) <= flags;
    }

    private boolean isScaled() {
        return work.type() == ScalarType.FLOAT8_E4M3FN;
    }

    private static boolean isWhole(long size) {
        return size > 0 && size % UNIT == 0 && size < MAX_SIZE;
    }

    /**
     * {@return the number of tiles of one rank's rows}
     *
     * @param tile the index into {@link #TILE_COLUMNS}
     */
    public long tilesOfPart(int tile) {
        long across = 0;
        for (long n : work.columns()) {
            across += ceilDiv(n, TILE_COLUMNS.get(tile));
        }
        return ceilDiv(work.rows(), TILE_ROWS) * across;
    }

    /** {@return the division with the shortest predicted time} */
    public Tiling fastest() {
        Tiling best = null;
        // Float8 has no tiles of 256 columns: the kernel keeps each sum in two registers.
        for (int tile = isScaled() ? 1 : 0; tile < TILE_COLUMNS.size(); tile++) {
            if (!work.isGather()) {
                best = faster(best, tiling(tile, 0));
                continue;
            }
            for (int pushers : PUSHERS) {
                boolean idle = pushers > 1 && (pushers - 1) * PIECE >= work.bytesIn();
                if (pushers <= machine.multiprocessors() && !idle) {
                    best = faster(best, tiling(tile, pushers));
                }
            }
        }
        return best;
    }

    /** Returns a given division, with its predicted time. */
    Tiling tiling(int tile, int pushers) {
        double step = machine.fused().steps().get(tile) * (isScaled() ? SCALED_STEP : 1);
        double one = ceilDiv(work.inner() * work.type().itemSize(), STEP) * step;
        double micros = work.isGather() ? gather(tile, one, pushers) : scatter(tile, one);
        return new Tiling(tile, pushers, micros);
    }

    private static Tiling faster(Tiling best, Tiling next) {
        return best == null || next.micros < best.micros ? next : best;
    }

    private double gather(int tile, double one, int pushers) {
        Machine.Fused fused = machine.fused();
        double rate = fused.pushRate(pushers, work.ranks());
        return fused.start() + waves(tile, one, pushers, work.bytesIn() / rate / 1e3);
    }

    /**
     * A rank's last tiles wait for the tiles of other ranks. Ranks send tiles from the end of their
     * first tiles on.
     */
    private double scatter(int tile, double multiplied) {
        Machine.Fused fused = machine.fused();
        double one = multiplied + fused.exchange();
        double sent = one + work.bytesIn() / fused.linkRate() / 1e3;
        return fused.start() + Math.max(waves(tile, one, 0, 0), sent);
    }

    /** Returns the time until all tiles are computed. */
    private double waves(int tile, double one, int pushers, double push) {
        // Blocks that push start their first tile later. Waves may start with either group.
        return Math.min(end(tile, one, pushers, push, 0), end(tile, one, pushers, push, push));
    }

    /**
     * Returns the end of the wave in which the last tile is computed, for waves that start at
     * {@code begin}.
     */
    private double end(int tile, double one, int pushers, double push, double begin) {
        int blocks = machine.multiprocessors();
        long tiles = work.ranks() * tilesOfPart(tile);
        long waves = Math.max(1, (long) (tiles / blocks - begin / one) - 1);
        // Another rank's tiles end after the push, which slow links make longer than the waves.
        waves = Math.max(waves, (long) ((push - begin) / one));
        while (true) {
            double end = begin + waves * one;
            long late = (long) Math.max(0, (end - push) / one + EPSILON);
            long early = (long) (end / one + EPSILON);
            // Tiles of the shard that arrives last start after it has arrived.
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

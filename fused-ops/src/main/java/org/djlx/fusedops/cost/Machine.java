/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.cost;

import java.util.List;
import org.djlx.nativeops.torch.ScalarType;

/**
 * A kind of GPU, several of which are linked within a host, by the constants of the {@link
 * CostModel}. Times are in microseconds, rates in GB/s.
 *
 * <p>The constants of {@link #H200} are fitted to the rows of {@link Measurement#all()}, by a test
 * that fails if they are not what the rows give. Other GPUs are {@linkplain #scaled scaled} from
 * them, which nobody has measured.
 *
 * @param name the name, in lower case
 * @param multiprocessors how many multiply at once
 * @param library matmuls of a library
 * @param launch operators of one launch
 * @param copies copies from GPU to GPU by copy engines
 * @param exchange all-gather and reduce-scatter by kernels
 * @param nccl NCCL's all-gather and reduce-scatter
 * @param host what calls take the host
 */
public record Machine(
        String name,
        int multiprocessors,
        Library library,
        Launch launch,
        Copies copies,
        Exchange exchange,
        Nccl nccl,
        Host host) {

    private static final double H200_MEGAHERTZ = 1980;

    /** How many ranks are measured at most, which is how many GPUs a host has. */
    private static final int MEASURED = 8;

    /** NVIDIA H200s, all linked by NVSwitch without multicast, up to 8 in a host. */
    public static final Machine H200 =
            new Machine(
                    "h200",
                    132,
                    new Library(2.65, 688, 3730),
                    new Launch(
                            13.4,
                            List.of(0.765, 0.425, 0.258),
                            List.of(0.761, 0.381, 0.23),
                            3.51,
                            32.4,
                            342,
                            219),
                    new Copies(9.62, 389, 15.7, 0.0153, 3890),
                    new Exchange(3.19, 306),
                    new Nccl(
                            List.of(18.2, 25.3, 23.7),
                            List.of(215.0, 307.0, 331.0),
                            List.of(6.32, 7.46, 10.8),
                            List.of(85.2, 112.0, 172.0)),
                    new Host(27.4, 42.5, 43.5, List.of(58.1, 104.0, 289.0)));

    /**
     * Matmuls of a library.
     *
     * @param start what each takes besides
     * @param teraflops how fast it multiplies 16-bit types, in 10^12 operations a second
     * @param memoryRate how fast the operands are read and the product written
     */
    public record Library(double start, double teraflops, double memoryRate) {

        /** Not measured: the ratio of an H200's rates on its data sheet, 989 and 67. */
        private static final double WIDE_TYPES = 989.0 / 67;

        /** What a matmul takes. */
        double micros(ScalarType type, long m, long n, long k) {
            double slower = type.itemSize() > 2 ? WIDE_TYPES : 1;
            double multiply = 2.0 * m * n * k * slower / teraflops / 1e6;
            double bytes = ((double) m * k + (double) k * n + (double) m * n) * type.itemSize();
            return start + Math.max(multiply, bytes / memoryRate / 1e3);
        }
    }

    /**
     * Operators of one launch.
     *
     * @param start what each takes besides, from the launch to the first load and after the last
     *     store
     * @param steps what a tile takes for each 64 columns of A, for each of the {@link
     *     FusedMatmulModel#TILE_COLUMNS}
     * @param tiles the same for the kernel that is there, by which tiles are chosen; operators were
     *     measured with one that was slower, and paths are chosen by that
     * @param exchange what a tile takes more where it is sent to another rank or added to others'
     * @param blockRate how fast a block pushes
     * @param linkRate how fast all blocks together do with nothing beside them, on 8 GPUs
     * @param crowdedRate how fast 8 or 16 of them do on 8 GPUs while the others multiply; on 2 and
     *     4, where 8 of them were not held back, the links are the limit
     */
    public record Launch(
            double start,
            List<Double> steps,
            List<Double> tiles,
            double exchange,
            double blockRate,
            double linkRate,
            double crowdedRate) {

        /** How fast so many blocks push to all other ranks, beside tiles. */
        double pushRate(int pushers, int ranks) {
            double most = at(List.of(linkRate, linkRate, crowdedRate), ranks);
            return Math.min(pushers * blockRate, most);
        }
    }

    /**
     * Copies by copy engines, a rank's one after the other.
     *
     * @param start what each takes besides
     * @param rate how fast they are
     * @param schedule what a schedule takes besides, from events and waits for signals
     * @param cut how much longer its matmuls take for each further rank, as a part of one matmul:
     *     their tiles fill the multiprocessors less well, and copies run beside them
     * @param reduction how fast memory is read and written where parts are summed
     */
    public record Copies(double start, double rate, double schedule, double cut, double reduction) {

        double micros(long copies, long byteSize) {
            return copies * (start + byteSize / rate / 1e3);
        }
    }

    /**
     * All-gather and reduce-scatter by kernels, in which data tells that it has arrived.
     *
     * @param start what each takes besides
     * @param rate how fast the bytes into each GPU arrive
     */
    public record Exchange(double start, double rate) {}

    /**
     * NCCL's all-gather and reduce-scatter: a start, and bytes into each GPU at a rate. Few bytes
     * go by another protocol. Beyond 8 ranks the start is taken to grow as it does from 2 to 8.
     *
     * @param starts of 2, 4 and 8 ranks
     * @param rates of 2, 4 and 8 ranks
     * @param fewStarts of 2, 4 and 8 ranks, for few bytes
     * @param fewRates of 2, 4 and 8 ranks, for few bytes
     */
    public record Nccl(
            List<Double> starts,
            List<Double> rates,
            List<Double> fewStarts,
            List<Double> fewRates) {

        /** What takes the bytes into each GPU, at a rate that may be a network's. */
        double micros(int ranks, long bytes, double rate) {
            double micros = at(starts, ranks) + bytes / rate / 1e3;
            if (ranks > MEASURED) {
                double doubled = (starts.get(starts.size() - 1) - starts.get(0)) / 2;
                return micros + doubled * (doublings(ranks) - doublings(MEASURED));
            }
            return Math.min(micros, at(fewStarts, ranks) + bytes / at(fewRates, ranks) / 1e3);
        }

        double rate(int ranks) {
            return at(rates, ranks);
        }
    }

    /**
     * What a call takes the calling thread.
     *
     * @param launch an operator of one launch, whatever the ranks
     * @param nccl a collective of NCCL and a matmul, whatever the ranks
     * @param gathered an exchange and a matmul, whatever the ranks
     * @param pipelined the pipeline of 2, 4 and 8 ranks, with copies, signals, waits and a matmul
     *     for each: what one call in four exceeds, as the GPU waits for the slowest rank
     */
    public record Host(double launch, double nccl, double gathered, List<Double> pipelined) {

        /** A schedule of so many ranks, at most as many as were measured. */
        double pipelined(int ranks) {
            return at(pipelined, ranks);
        }
    }

    /** Of 2, 4 and 8 ranks; in between along the logarithm of the ranks, beyond as of 8. */
    private static double at(List<Double> values, int ranks) {
        double place = Math.max(doublings(Math.min(ranks, MEASURED)) - 1, 0);
        int below = (int) Math.min(place, values.size() - 2);
        return values.get(below) + (place - below) * (values.get(below + 1) - values.get(below));
    }

    private static double doublings(int ranks) {
        return StrictMath.log(ranks) / StrictMath.log(2);
    }

    /**
     * Returns how many GPUs of this kind a host has at most.
     *
     * @return 8, which is what was measured
     */
    public int hostRanks() {
        return MEASURED;
    }

    /**
     * Returns a machine that multiplies at another rate; links and host stay as they are. A GPU
     * that nobody has measured is predicted so, and so are ranks that share a GPU.
     *
     * @param count its multiprocessors
     * @param megahertz the clock at which they run at best, of which an H200 has 1980
     * @return the machine
     * @throws IllegalArgumentException if there is no multiprocessor or no clock
     */
    public Machine scaled(int count, double megahertz) {
        if (count < 1 || !(megahertz > 0)) {
            throw new IllegalArgumentException(
                    "a GPU has multiprocessors and a clock, not %d and %s MHz"
                            .formatted(count, megahertz));
        }
        double faster = megahertz / H200_MEGAHERTZ;
        double flops = library.teraflops * faster * count / H200.multiprocessors;
        List<Double> steps = launch.steps.stream().map(step -> step / faster).toList();
        List<Double> tiles = launch.tiles.stream().map(step -> step / faster).toList();
        return new Machine(
                name,
                count,
                new Library(library.start, flops, library.memoryRate),
                new Launch(
                        launch.start,
                        steps,
                        tiles,
                        launch.exchange,
                        launch.blockRate,
                        launch.linkRate,
                        launch.crowdedRate),
                copies,
                exchange,
                nccl,
                host);
    }

    /**
     * Returns this machine with another number of multiprocessors, at an H200's clock.
     *
     * @param count as many as all ranks have
     * @return the machine
     * @throws IllegalArgumentException if there is none
     */
    public Machine withMultiprocessors(int count) {
        return scaled(count, H200_MEGAHERTZ);
    }
}

/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.cost;

import java.util.List;
import org.djlx.nativeops.ScalarType;

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

    /** NVIDIA H200s, all linked by NVSwitch without multicast, up to 8 in a host. */
    public static final Machine H200 =
            new Machine(
                    "h200",
                    132,
                    new Library(2.37, 687, 3710),
                    new Launch(10.9, List.of(0.778, 0.44, 0.27), 2.89, 32.5, 342),
                    new Copies(9.62, 389, 16.5, 3880),
                    new Exchange(2.85, 327),
                    new Nccl(
                            List.of(18.2, 25.3, 49.7),
                            List.of(215.0, 307.0, 346.0),
                            List.of(6.32, 7.46),
                            List.of(85.2, 112.0)),
                    new Host(23.9, 39.5, 39.0, 59.7, 5.2, 3.8));

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
     *     OneLaunch#TILE_COLUMNS}
     * @param exchange what a tile takes more where it is sent to another rank or added to others'
     * @param blockRate how fast a block pushes
     * @param linkRate how fast all blocks together do
     */
    public record Launch(
            double start, List<Double> steps, double exchange, double blockRate, double linkRate) {}

    /**
     * Copies by copy engines, a rank's one after the other.
     *
     * @param start what each takes besides
     * @param rate how fast they are
     * @param schedule what a schedule takes besides, from events and waits for signals
     * @param reduction how fast memory is read and written where parts are summed
     */
    public record Copies(double start, double rate, double schedule, double reduction) {

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
     * NCCL's all-gather and reduce-scatter: a start that grows with the ranks, and bytes into each
     * GPU at a rate. Few bytes go by another protocol, which was measured of up to 4 ranks only.
     *
     * @param starts of 2, 4 and 8 ranks
     * @param rates of 2, 4 and 8 ranks
     * @param fewStarts of 2 and 4 ranks, for few bytes
     * @param fewRates of 2 and 4 ranks, for few bytes
     */
    public record Nccl(
            List<Double> starts,
            List<Double> rates,
            List<Double> fewStarts,
            List<Double> fewRates) {

        /** How many ranks are measured at most, which is how many GPUs a host has. */
        static final int MEASURED = 8;

        /** Between what is measured, along the logarithm of the ranks; the start beyond, too. */
        private static double at(List<Double> values, double power) {
            int below = (int) Math.min(Math.max(power - 1, 0), values.size() - 2);
            double part = Math.max(power - 1, 0) - below;
            return values.get(below) + part * (values.get(below + 1) - values.get(below));
        }

        private static double power(int ranks) {
            return StrictMath.log(ranks) / StrictMath.log(2);
        }

        /** What takes the bytes into each GPU, at a rate that may be a network's. */
        double micros(int ranks, long bytes, double rate) {
            double micros = at(starts, power(ranks)) + bytes / rate / 1e3;
            if (ranks > 1 << fewStarts.size()) {
                return micros;
            }
            double fewRate = at(fewRates, power(ranks));
            return Math.min(micros, at(fewStarts, power(ranks)) + bytes / fewRate / 1e3);
        }

        double rate(int ranks) {
            return at(rates, power(Math.min(ranks, MEASURED)));
        }
    }

    /**
     * What a call takes the calling thread.
     *
     * @param launch an operator of one launch, whatever the ranks
     * @param plain a collective of NCCL and a matmul, whatever the ranks
     * @param whole an exchange and a matmul, whatever the ranks
     * @param scheduled a schedule of 2 ranks
     * @param peer what each further rank adds to a schedule: a copy, a signal and a wait
     * @param matmul what each further matmul adds
     */
    public record Host(
            double launch,
            double plain,
            double whole,
            double scheduled,
            double peer,
            double matmul) {}

    /**
     * Returns how many GPUs of this kind a host has at most.
     *
     * @return 8, which is what was measured
     */
    public int hostRanks() {
        return Nccl.MEASURED;
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
        return new Machine(
                name,
                count,
                new Library(library.start, flops, library.memoryRate),
                new Launch(launch.start, steps, launch.exchange, launch.blockRate, launch.linkRate),
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

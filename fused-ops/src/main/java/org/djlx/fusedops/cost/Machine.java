// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.cost;

import java.util.List;
import java.util.Locale;
import org.djlx.nativeops.cuda.GpuRates;
import org.djlx.nativeops.torch.ScalarType;

/**
 * The constants of the {@link CostModel} for a kind of GPU, with several GPUs linked in a host.
 * Times are in microseconds, rates in GB/s.
 *
 * <p>The constants of {@link #H200} are fitted to the rows of {@link Measurement#all()}. A test
 * repeats the fit and compares. For another GPU, {@link #of} takes the measured rates of its
 * matmuls and memory, and everything else from an H200. {@link #withLinks} sets the measured rate
 * of the links. {@link #withMultiprocessors} uses no measurements of the GPU.
 *
 * @param name the name, in lower case
 */
public record Machine(
        String name,
        int multiprocessors,
        Library library,
        Fused fused,
        Copies copies,
        Exchange exchange,
        Nccl nccl,
        Host host) {

    /** The rate of an H200's matmul, in TFLOP/s, as {@link GpuRates} measures it. */
    private static final double H200_TERAFLOPS = 688;

    /** The rate of an H200's memory in a local copy, in GB/s, as {@link GpuRates} measures it. */
    private static final double H200_MEMORY = 4100;

    // In GB/s. Other rates are errors of a measurement, and would end as 0 or infinity.
    private static final double SLOWEST_LINK = 1e-6;
    private static final double FASTEST_LINK = 1e6;

    private static final double LOG_2 = StrictMath.log(2);
    private static final String LINKS = " with links of ";

    /** The largest number of ranks that was measured, which is the number of GPUs of a host. */
    private static final int MEASURED = 8;

    /** NVIDIA H200: up to 8 in a host, linked by NVSwitch, without multicast. */
    public static final Machine H200 =
            new Machine(
                    "h200",
                    132,
                    new Library(4.3, 743, 3880),
                    new Fused(11.4, List.of(0.706, 0.367, 0.285), 2.59, 32, 342, 220),
                    new Copies(9.62, 389, 10.3, 0.0169, 4050),
                    new Exchange(3.35, 328),
                    new Nccl(
                            List.of(17.9, 25.3, 23.7),
                            List.of(217.0, 307.0, 331.0),
                            List.of(6.32, 7.46, 10.8),
                            List.of(85.2, 112.0, 172.0)),
                    new Host(24.2, 41.1, 39.3, List.of(63.8, 104.0, 289.0)));

    /**
     * NVIDIA H100 with 80 GB: matmuls and memory as measured on one GPU (672 TFLOP/s in a bfloat16
     * matmul of 4096 × 8192 by 8192 × 8192, 3,030 GB/s in copies), links, NCCL and host as on H200.
     */
    public static final Machine H100 = of(new GpuRates("h100", 132, 672, 3030));

    /**
     * Matmuls of a library.
     *
     * @param start the fixed time of a matmul
     * @param teraflops the rate for 16-bit types, in 10^12 operations a second
     * @param memoryRate the rate of reading operands and writing the product
     */
    public record Library(double start, double teraflops, double memoryRate) {

        /**
         * Ratio of the 16-bit and the 32-bit rate. Not measured: an H200's data sheet says 989 and
         * 67. The rate of float8 is twice the 16-bit rate.
         */
        private static final double WIDE_TYPES = 989.0 / 67;

        double micros(ScalarType type, long m, long n, long k) {
            int item = type.itemSize();
            double slower = item > 2 ? WIDE_TYPES : item / 2.0;
            double multiply = 2.0 * m * n * k * slower / teraflops / 1e6;
            double product = (double) m * n * Workload.typeOfProduct(type).itemSize();
            double bytes = ((double) m * k + (double) k * n) * item + product;
            return start + Math.max(multiply, bytes / memoryRate / 1e3);
        }
    }

    /**
     * Operators on the path FUSED.
     *
     * @param start the fixed time: from the launch to the first load, and after the last store
     * @param steps the times of a tile for 64 columns of A in 16-bit types, one for each of the
     *     {@link FusedMatmulModel#TILE_COLUMNS}
     * @param exchange the additional time of a tile that is sent to another rank, or added to tiles
     *     of other ranks
     * @param blockRate the rate of a thread block that pushes; timed in the kernel, not fitted
     * @param linkRate the total rate when all thread blocks only push, on 8 GPUs
     * @param crowdedRate the total rate of 8 or 16 thread blocks that push while the other blocks
     *     multiply, on 8 GPUs. On 2 and 4 GPUs the links are the limit
     */
    public record Fused(
            double start,
            List<Double> steps,
            double exchange,
            double blockRate,
            double linkRate,
            double crowdedRate) {

        /**
         * Returns the rate of thread blocks that push to all other ranks while other blocks compute
         * tiles.
         */
        double pushRate(int pushers, int ranks) {
            double most = at(List.of(linkRate, linkRate, crowdedRate), ranks);
            return Math.min(pushers * blockRate, most);
        }
    }

    /**
     * Copies by copy engines. The copies of a rank run one after the other.
     *
     * @param start the fixed time of a copy
     * @param rate the rate of a copy
     * @param pipeline the fixed time of a pipeline, for events and waits for signals
     * @param cut the additional time of a pipeline's matmuls for each further rank, as a share of
     *     one matmul: smaller matmuls fill the SMs less well, and copies run at the same time
     * @param reduction the rate of reading and writing memory when parts are summed
     */
    public record Copies(double start, double rate, double pipeline, double cut, double reduction) {

        double micros(long copies, long byteSize) {
            return copies * (start + byteSize / rate / 1e3);
        }
    }

    /**
     * All-gather and reduce-scatter by kernels, on the path GATHERED.
     *
     * @param start the fixed time
     * @param rate the rate of bytes into each GPU
     */
    public record Exchange(double start, double rate) {}

    /**
     * NCCL's all-gather and reduce-scatter: a fixed time, and a rate of bytes into each GPU. NCCL
     * uses another protocol for few bytes. Beyond 8 ranks the fixed time is assumed to grow as from
     * 2 to 8 ranks.
     *
     * @param starts the fixed times of 2, 4 and 8 ranks
     * @param rates the rates of 2, 4 and 8 ranks
     * @param fewStarts the fixed times for few bytes
     * @param fewRates the rates for few bytes
     */
    public record Nccl(
            List<Double> starts,
            List<Double> rates,
            List<Double> fewStarts,
            List<Double> fewRates) {

        /**
         * Returns the time to transfer {@code bytes} into each GPU. The rate may be a network's
         * rate.
         */
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
     * The time that a call takes on the calling thread.
     *
     * @param fused an operator on FUSED, for any number of ranks
     * @param nccl a collective of NCCL and a matmul, for any number of ranks
     * @param gathered an exchange and a matmul, for any number of ranks
     * @param pipelined a pipeline of 2, 4 and 8 ranks, with copies, signals, waits and a matmul for
     *     each rank. These are third quartiles of the measurements, because the GPU waits for the
     *     slowest rank
     */
    public record Host(double fused, double nccl, double gathered, List<Double> pipelined) {

        /** Returns the time of a pipeline, interpolated between the measured numbers of ranks. */
        double pipelined(int ranks) {
            return at(pipelined, ranks);
        }
    }

    /**
     * Interpolates values of 2, 4 and 8 ranks by the logarithm of the ranks. Beyond 8 ranks,
     * returns the value of 8.
     */
    private static double at(List<Double> values, int ranks) {
        double place = Math.max(doublings(Math.min(ranks, MEASURED)) - 1, 0);
        int below = (int) Math.min(place, values.size() - 2);
        return values.get(below) + (place - below) * (values.get(below + 1) - values.get(below));
    }

    private static double doublings(int ranks) {
        return StrictMath.log(ranks) / LOG_2;
    }

    /** {@return the largest number of GPUs of a host: 8, the largest number that was measured} */
    public int hostRanks() {
        return MEASURED;
    }

    /**
     * {@return this machine with another number of SMs, and the same memory, links and host} Used
     * for GPUs that were not measured, and for ranks that share a GPU.
     */
    public Machine withMultiprocessors(int count) {
        if (count < 1) {
            throw new IllegalArgumentException("a GPU needs 1 or more SMs, not " + count);
        }
        return count == multiprocessors
                ? this
                : with(name + " scaled to " + count + " SMs", count, 1, 1);
    }

    /**
     * {@return this machine with a measured rate of the links} The rates of NCCL change in
     * proportion. Two measurements of the same links differ, but rarely give different machines:
     *
     * <ul>
     *   <li>a rate of 0.75 to 1.33 times this machine's rate gives this machine
     *   <li>any other rate is rounded to steps of 19 % (2^(1/4))
     * </ul>
     *
     * @param gigabytesPerSecond the rate at which a copy engine copies from a rank to the next,
     *     from 10^-6 to 10^6
     */
    public Machine withLinks(double gigabytesPerSecond) {
        if (!(gigabytesPerSecond >= SLOWEST_LINK && gigabytesPerSecond <= FASTEST_LINK)) {
            throw new IllegalArgumentException(
                    String.format(
                            "the rate of links must be from %s to %s GB/s, not %s",
                            SLOWEST_LINK, FASTEST_LINK, gigabytesPerSecond));
        }
        double ratio = gigabytesPerSecond / copies.rate;
        if (ratio >= 0.75 && ratio <= 1 / 0.75) {
            return this;
        }
        double scale = StrictMath.pow(2, Math.rint(4 * StrictMath.log(ratio) / LOG_2) / 4);
        return new Machine(
                String.format(Locale.ROOT, "%s%s%.0f GB/s", name, LINKS, scale * copies.rate),
                multiprocessors,
                library,
                new Fused(
                        fused.start,
                        fused.steps,
                        fused.exchange,
                        fused.blockRate * scale,
                        fused.linkRate * scale,
                        fused.crowdedRate * scale),
                new Copies(
                        copies.start,
                        copies.rate * scale,
                        copies.pipeline,
                        copies.cut,
                        copies.reduction),
                new Exchange(exchange.start, exchange.rate * scale),
                new Nccl(
                        nccl.starts,
                        scaled(nccl.rates, scale),
                        nccl.fewStarts,
                        scaled(nccl.fewRates, scale)),
                host);
    }

    private static List<Double> scaled(List<Double> values, double scale) {
        return values.stream().map(value -> value * scale).toList();
    }

    /**
     * Returns this machine with other SMs and other memory.
     *
     * @param faster the speed of an SM, divided by the speed of this machine's SMs
     * @param wider the bandwidth of memory, divided by the bandwidth of this machine's memory
     */
    private Machine with(String newName, int count, double faster, double wider) {
        double flops = library.teraflops * faster * count / multiprocessors;
        return new Machine(
                newName,
                count,
                new Library(library.start, flops, library.memoryRate * wider),
                new Fused(
                        fused.start,
                        fused.steps.stream().map(step -> step / faster).toList(),
                        fused.exchange,
                        fused.blockRate,
                        fused.linkRate,
                        fused.crowdedRate),
                new Copies(
                        copies.start,
                        copies.rate,
                        copies.pipeline,
                        copies.cut,
                        copies.reduction * wider),
                exchange,
                nccl,
                host);
    }

    /**
     * Returns the machine of a GPU, named after it: {@link #H200} for an H200; for others the
     * measured rates of matmuls and memory, and the links, NCCL and host of an H200.
     */
    public static Machine of(GpuRates rates) {
        if (rates == null) {
            throw new IllegalArgumentException("a machine needs the rates of a GPU, not null");
        }
        String gpu = rates.gpu().toLowerCase(Locale.ROOT);
        if (gpu.matches("(.*\\W)?h200(\\W.*)?")) { // not a GH200
            return H200.withMultiprocessors(rates.multiprocessors());
        }
        double ofSm = H200_TERAFLOPS / H200.multiprocessors;
        return H200.with(
                gpu,
                rates.multiprocessors(),
                rates.teraflops() / rates.multiprocessors() / ofSm,
                rates.gigabytesPerSecond() / H200_MEMORY);
    }

    /** {@return a sentence that says from which measurements the constants come} */
    public String basis() {
        if (name.contains(" scaled to ")) {
            return "Not measured: " + name + ".";
        }
        int end = name.indexOf(LINKS);
        String gpu = end < 0 ? name : name.substring(0, end);
        String measured =
                gpu.equals(H200.name)
                        ? "Fitted to measurements on H200s"
                        : "Matmuls and memory as measured on " + gpu;
        if (end >= 0) {
            return measured
                    + "; links measured at "
                    + name.substring(end + LINKS.length())
                    + ", NCCL in proportion; host as on H200s.";
        }
        return gpu.equals(H200.name)
                ? measured + "."
                : measured + "; links, NCCL and host as on H200s.";
    }
}

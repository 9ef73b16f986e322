// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import ai.djl.ndarray.NDArray;
import com.sun.management.ThreadMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiConsumer;
import org.djlx.nativeops.host.NativeCalls;

/**
 * Measures contenders on one rank, called by the host and replayed from recordings. All warm up
 * first, then take turns, because clocks drift with heat and power.
 *
 * @param turns the number of inputs that a contender's calls use in rotation; a recording has one
 *     call for each input
 */
record SideBySide(BenchRank rank, int turns, long turnBytes, Calls calls) {

    /**
     * The number of calls of a contender: before the timed ones, timed in a round (one untimed call
     * comes first), and rounds, in which contenders take turns. If {@code recorded}, calls are also
     * recorded, and replayed in each round.
     */
    record Calls(int warmUp, int timed, int rounds, boolean recorded) {}

    /** The number of first warm-up calls, which are reported separately. */
    static final int FIRST = 20;

    private static final int LAUNCHES =
            2; // timed launches of a recording in a round; one untimed launch comes first
    private static final int COUNTED = 20;
    // Limits the memory of results while one rank calls and the other ranks do not.
    private static final long MOST_COUNTED_BYTES = 4L << 30;
    private static final int MAX_IN_FLIGHT = 50;
    private static final int ELEMENT_BYTES = 2;
    // libtorch caches arrays up to this size separately.
    private static final long SMALL_BYTES = 1 << 20;
    private static final int SMALL_ARRAYS = 64;

    /**
     * The results by contender; {@code heap} has the bytes that a call allocates on the Java heap.
     */
    record Result(
            Map<String, CallTimes> columns,
            Map<String, Double> replay,
            Map<String, String> notes,
            Map<String, Long> heap) {}

    private static final class Samples {
        private final String name;
        private final Contender contender;
        private final double[] first;
        private final double[] gpu;
        private final double[] host;
        private final double[] replay;
        private Double alone; // null on CPUs
        private double driverCalls;
        private double otherCalls;
        private long heap;
        private int turn;
        private Lane.Recording recording; // null if there is none
        private final List<NDArray> recorded = new ArrayList<>(); // results of the recorded calls

        Samples(String name, Contender contender, Calls calls) {
            this.name = name;
            this.contender = contender;
            first = new double[Math.min(FIRST, calls.warmUp)];
            gpu = new double[calls.rounds * calls.timed];
            host = new double[calls.rounds * calls.timed];
            replay = new double[calls.rounds * LAUNCHES];
        }

        CallTimes times() {
            return new CallTimes(
                    hundredths(Stats.median(gpu)),
                    hundredths(Stats.median(host)),
                    alone,
                    hundredths(Stats.median(first)),
                    hundredths(Arrays.stream(first).sum()),
                    first.length == 0 ? null : hundredths(first[0]),
                    first.length < 2
                            ? null
                            : hundredths(Arrays.stream(first).skip(1).max().getAsDouble()),
                    hundredths(driverCalls),
                    hundredths(otherCalls));
        }

        void close() {
            if (recording != null) {
                recording.close();
            }
            recorded.forEach(NDArray::close);
        }
    }

    /**
     * Measures all contenders, owned by the caller. All ranks call this with the same contenders in
     * the same order. {@code check} gets the results for the first input, of a call and of a
     * replay. If the rank fails, its recordings stay open: closing one waits for the GPU, which may
     * wait for another rank forever.
     */
    Result measure(Map<String, Contender> contenders, BiConsumer<String, NDArray> check) {
        List<Samples> all = new ArrayList<>();
        contenders.forEach((name, contender) -> all.add(new Samples(name, contender, calls)));
        Map<String, String> notes = new LinkedHashMap<>();
        all.forEach(this::warmUp);
        for (Samples samples : all) {
            String failure = calls.recorded ? record(samples) : "";
            if (!failure.isEmpty()) {
                notes.put(samples.name, "not recorded into a graph: " + failure);
            }
        }
        for (int round = 0; round < calls.rounds; round++) {
            for (Samples samples : all) {
                time(samples, round);
                replay(samples, round);
            }
        }
        all.forEach(this::count);
        all.forEach(samples -> check(samples, check));
        rank.lane().synchronize();
        Map<String, CallTimes> columns = new LinkedHashMap<>();
        Map<String, Double> replay = new LinkedHashMap<>();
        Map<String, Long> heap = new LinkedHashMap<>();
        for (Samples samples : all) {
            columns.put(samples.name, samples.times());
            heap.put(samples.name, samples.heap);
            if (samples.recording != null) {
                replay.put(samples.name, hundredths(Stats.median(samples.replay)));
            }
            samples.close();
        }
        return new Result(columns, replay, notes, heap);
    }

    private void warmUp(Samples samples) {
        meet();
        for (int i = 0; i < calls.warmUp; i++) {
            double micros = call(samples);
            if (i < samples.first.length) {
                samples.first[i] = micros;
            }
            if (i % MAX_IN_FLIGHT == MAX_IN_FLIGHT - 1) {
                rank.lane().synchronize();
            }
        }
    }

    /**
     * Records one call for each input. Returns the cause if recording fails, otherwise an empty
     * text.
     */
    private String record(Samples samples) {
        callAll(samples.contender, new ArrayList<>()).forEach(NDArray::close);
        fillCache();
        meet();
        String failure = "";
        try {
            samples.recording =
                    rank.lane().record(() -> callAll(samples.contender, samples.recorded));
        } catch (RuntimeException e) {
            failure = String.valueOf(e.getMessage());
        }
        // If one rank fails, the other ranks must not launch their recordings, which would wait
        // forever.
        String first = rank.meeting().failureOfAny(failure);
        if (!first.isEmpty() && samples.recording != null) {
            samples.recording.close();
            samples.recording = null;
        }
        return first;
    }

    /**
     * Fills libtorch's cache: a recording can only use cached memory, and needs new memory for each
     * call.
     */
    private void fillCache() {
        List<NDArray> arrays = new ArrayList<>();
        arrays.add(rank.empty(2 * turns * turnBytes / ELEMENT_BYTES));
        for (int i = 0; i < SMALL_ARRAYS; i++) {
            arrays.add(rank.empty(SMALL_BYTES / ELEMENT_BYTES));
        }
        arrays.forEach(NDArray::close);
    }

    private List<NDArray> callAll(Contender contender, List<NDArray> results) {
        for (int turn = 0; turn < turns; turn++) {
            NDArray result = contender.call(turn);
            if (result != null) {
                results.add(result);
            }
        }
        return results;
    }

    private void time(Samples samples, int round) {
        samples.contender.reset();
        meet();
        Lane lane = rank.lane();
        call(samples); // Ranks do not start together; this call synchronizes them.
        lane.set(0);
        for (int i = 0; i < calls.timed; i++) {
            samples.host[round * calls.timed + i] = call(samples);
            lane.set(i + 1);
        }
        lane.synchronize();
        for (int i = 0; i < calls.timed; i++) {
            samples.gpu[round * calls.timed + i] = lane.micros(i, i + 1);
        }
    }

    private void replay(Samples samples, int round) {
        if (samples.recording == null) {
            return;
        }
        samples.contender.reset();
        meet();
        Lane lane = rank.lane();
        samples.recording.launch();
        lane.set(0);
        for (int i = 0; i < LAUNCHES; i++) {
            samples.recording.launch();
            lane.set(i + 1);
        }
        lane.synchronize();
        for (int i = 0; i < LAUNCHES; i++) {
            samples.replay[round * LAUNCHES + i] = lane.micros(i, i + 1) / turns;
        }
    }

    /**
     * Counts native calls. The timed calls are not counted, because their marks call the driver
     * too. On GPUs, one rank calls after the other, because threads of a process wait for each
     * other in the driver; kernels wait on the GPU for the other ranks. On CPUs, all ranks call at
     * the same time, because a call waits for all ranks.
     */
    private void count(Samples samples) {
        meet();
        if (!rank.ours().device().isGpu()) {
            countCalls(samples);
            return;
        }
        for (int turn = 0; turn < rank.worldSize(); turn++) {
            if (turn == rank.ours().rank()) {
                samples.alone = hundredths(Stats.median(countCalls(samples)));
            }
            rank.meeting().await();
        }
    }

    private double[] countCalls(Samples samples) {
        int counted = (int) Math.max(2, Math.min(COUNTED, MOST_COUNTED_BYTES / turnBytes));
        double[] micros = new double[counted];
        ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        NativeCalls before = NativeCalls.ofThread();
        long allocated = threads.getCurrentThreadAllocatedBytes();
        for (int i = 0; i < counted; i++) {
            micros[i] = call(samples);
        }
        samples.heap = (threads.getCurrentThreadAllocatedBytes() - allocated) / counted;
        NativeCalls after = NativeCalls.ofThread();
        samples.driverCalls = (after.driver() - before.driver()) / (double) counted;
        samples.otherCalls = (after.other() - before.other()) / (double) counted;
        return micros;
    }

    private void check(Samples samples, BiConsumer<String, NDArray> check) {
        if (!samples.contender.isChecked()) {
            return;
        }
        samples.contender.reset();
        meet();
        NDArray result = samples.contender.call(0);
        rank.lane().synchronize();
        check.accept(samples.name, result == null ? samples.contender.kept() : result);
        if (result != null) {
            result.close();
        }
        if (samples.recording != null) {
            samples.contender.reset();
            meet();
            samples.recording.launch();
            rank.lane().synchronize();
            NDArray recorded =
                    samples.recorded.isEmpty() ? samples.contender.kept() : samples.recorded.get(0);
            check.accept(samples.name + ", replayed", recorded);
        }
    }

    private void meet() {
        rank.lane().synchronize();
        rank.meeting().await();
    }

    /** Calls once; returns the microseconds of the calling thread. */
    private double call(Samples samples) {
        int turn = samples.turn++ % turns;
        long start = System.nanoTime();
        NDArray result = samples.contender.call(turn);
        long nanos = System.nanoTime() - start;
        if (result != null) {
            result.close();
        }
        return nanos / 1e3;
    }

    private static double hundredths(double value) {
        return Math.round(100 * value) / 100.0;
    }
}

// SPDX-License-Identifier: Apache-2.0
import org.bytedeco.pytorch.GlooDeviceVector;
import org.bytedeco.pytorch.PrefixStore;
import org.bytedeco.pytorch.ProcessGroupGloo;
import org.bytedeco.pytorch.TCPStore;
import org.bytedeco.pytorch.TCPStoreOptions;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.Work;
import org.bytedeco.pytorch.gloo.Device;
import org.bytedeco.pytorch.global.torch;

import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Measures Gloo's all-reduce over loopback as `ci/bench/run.sh bench` measures this project's all-reduce: 2
 * processes, float32, in place, sum. A row has the median of the iterations, each with the slowest
 * rank's time.
 *
 * <p>Run from source with PyTorch's JavaCPP jars as class path; arguments are SIZE:WARMUP:ITERATIONS.
 * The first process starts the second with {@code --port} before the same arguments.
 */
public final class GlooBench {

    private static final int WORLD_SIZE = 2;

    private final ProcessGroupGloo group;
    private final int rank;

    private GlooBench(ProcessGroupGloo group, int rank) {
        this.group = group;
        this.rank = rank;
    }

    public static void main(String[] args) throws Exception {
        boolean child = args[0].equals("--port");
        TCPStoreOptions options = new TCPStoreOptions();
        options.isServer(!child);
        options.port((short) (child ? Integer.parseInt(args[1]) : 0));
        options.waitWorkers(false);
        TCPStore store = new TCPStore("127.0.0.1", options);
        // Starts the peer after this JVM has unpacked the libraries: two JVMs must not unpack at the same time.
        Process other = child ? null : startOther(Short.toUnsignedInt(store.getPort()), args);
        ProcessGroupGloo.Options gloo = ProcessGroupGloo.Options.create();
        Device loopback = ProcessGroupGloo.createDeviceForHostname("127.0.0.1");
        gloo.devices(new GlooDeviceVector(loopback));
        int rank = child ? 1 : 0;
        ProcessGroupGloo group =
                new ProcessGroupGloo(new PrefixStore("bench", store), rank, WORLD_SIZE, gloo);
        GlooBench bench = new GlooBench(group, rank);
        for (String arg : args) {
            String[] words = arg.split(":");
            if (words.length == 3) {
                bench.measure(
                        Integer.parseInt(words[0]) / Float.BYTES,
                        Integer.parseInt(words[1]),
                        Integer.parseInt(words[2]));
            }
        }
        if (other != null) {
            System.exit(other.waitFor());
        }
        // Skips the destructors of static objects, which wait for threads of Gloo.
        Runtime.getRuntime().halt(0);
    }

    private static Process startOther(int port, String[] args) throws Exception {
        List<String> command =
                new ArrayList<>(
                        List.of(
                                ProcessHandle.current().info().command().orElseThrow(),
                                "-cp",
                                System.getProperty("java.class.path"),
                                "-Dorg.bytedeco.javacpp.cachedir="
                                        + System.getProperty("org.bytedeco.javacpp.cachedir"),
                                System.getProperty("bench.source"),
                                "--port",
                                Integer.toString(port)));
        command.addAll(Arrays.asList(args));
        return new ProcessBuilder(command).inheritIO().start();
    }

    private void measure(int count, int warmUp, int iterations) {
        Tensor tensor = torch.zeros(count);
        TensorVector tensors = new TensorVector(tensor);
        group.barrier()._wait();
        for (int i = 0; i < warmUp; i++) {
            allReduce(tensors);
        }
        double[] nanos = new double[iterations];
        for (int i = 0; i < iterations; i++) {
            long start = System.nanoTime();
            allReduce(tensors);
            nanos[i] = System.nanoTime() - start;
        }
        report(count, slowest(nanos), wrong(tensor, tensors));
        tensors.close();
        tensor.close();
    }

    private void allReduce(TensorVector tensors) {
        try (Work work = group.allreduce(tensors)) {
            work._wait();
        }
    }

    /** All-reduces an input that differs between ranks, with exact sums. Returns the number of wrong sums. */
    private long wrong(Tensor tensor, TensorVector tensors) {
        FloatBuffer values = values(tensor);
        for (int i = 0; i < values.capacity(); i++) {
            values.put(i, (rank + 1) * (i % 1021 + 1));
        }
        allReduce(tensors);
        long wrong = 0;
        for (int i = 0; i < values.capacity(); i++) {
            wrong += values.get(i) == 3 * (i % 1021 + 1) ? 0 : 1;
        }
        return wrong;
    }

    /** Returns the slowest rank's time of each iteration. */
    private double[] slowest(double[] nanos) {
        // Each rank writes its own half; the other rank adds zeros there.
        Tensor tensor = torch.zeros(WORLD_SIZE * nanos.length);
        FloatBuffer values = values(tensor);
        for (int i = 0; i < nanos.length; i++) {
            values.put(rank * nanos.length + i, (float) nanos[i]);
        }
        allReduce(new TensorVector(tensor));
        double[] slowest = new double[nanos.length];
        Arrays.setAll(slowest, i -> Math.max(values.get(i), values.get(nanos.length + i)));
        return slowest;
    }

    private static FloatBuffer values(Tensor tensor) {
        return tensor.data_ptr_float().capacity(tensor.numel()).asBuffer();
    }

    private void report(int count, double[] nanos, long wrong) {
        if (rank != 0) {
            return;
        }
        Arrays.sort(nanos);
        double micros = nanos[nanos.length / 2] / 1e3;
        double bandwidth = count * (double) Float.BYTES / micros / 1e3;
        System.out.printf(
                "%12d  %12d  %8s  %6s  %6d  %9.2f  %6.2f  %6.2f  %6d%n",
                count * Float.BYTES, count, "float32", "sum", -1, micros, bandwidth, bandwidth, wrong);
    }
}

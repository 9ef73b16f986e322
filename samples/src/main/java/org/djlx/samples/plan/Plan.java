// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.plan;

import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.stream.Collectors;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.launch.cli.MatmulShape;
import org.djlx.collectives.launch.cli.TextTable;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.CostModel;
import org.djlx.fusedops.cost.FusedOperator;
import org.djlx.fusedops.cost.Machine;
import org.djlx.fusedops.cost.Measurement;
import org.djlx.fusedops.cost.Network;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.cost.Prediction;
import org.djlx.fusedops.cost.Workload;
import org.djlx.nativeops.torch.ScalarType;

/**
 * The predicted cost of an operator on groups of tensor-parallel ranks. Each group has a replica of
 * B.
 *
 * <p>A group takes one host, or several if it has more ranks than a host has GPUs. More hosts hold
 * more groups, which sum the gradients of B across the network.
 */
final class Plan {

    private static final double MIB = 1 << 20;

    private final Machine machine;
    private final Network network;
    private final MatmulShape shape;
    private final ScalarType type;
    private final FusedOperator operator;
    private final int ranks;
    private final int hosts;
    private final Workload work;
    private final CostModel model;

    /**
     * Makes a plan.
     *
     * @param shape the sizes of each replica
     * @param ranks the ranks of a group
     * @param hosts the total number of hosts; 0 for the hosts of one group
     * @throws IllegalArgumentException if the shape cannot be divided among the ranks, or the hosts
     *     among groups
     */
    Plan(
            Machine machine,
            Network network,
            FusedOperator operator,
            MatmulShape shape,
            ScalarType type,
            int ranks,
            int hosts) {
        this.machine = machine;
        this.network = network;
        this.shape = shape;
        this.type = type;
        this.operator = operator;
        this.ranks = ranks;
        int needed = hostsOfGroup();
        this.hosts = hosts == 0 ? needed : hosts;
        refuseIf(
                this.hosts % needed != 0,
                "a group of %d ranks takes %d hosts of %d GPUs, which do not divide %d"
                        .formatted(ranks, needed, machine.hostRanks(), hosts));
        work = Workload.unsharded(operator, type, ranks, shape.m(), shape.n(), shape.k());
        model = new CostModel(machine, network);
    }

    private int hostsOfGroup() {
        return (ranks + machine.hostRanks() - 1) / machine.hostRanks();
    }

    private int replicas() {
        return hosts / hostsOfGroup();
    }

    private Choice choice(boolean recorded) {
        return model.choose(work, work, model::possible, recorded);
    }

    /** Returns the microseconds of the path that eager calls take. */
    private double micros() {
        return model.predict(work, choice(false).path()).micros(false);
    }

    /** Returns the bytes of the gradients of a GPU's part of B. */
    private double gradientBytes() {
        return (double) shape.n() * shape.k() / ranks * type.itemSize();
    }

    private double gradients() {
        return network.allReduce(gradientBytes(), replicas());
    }

    /** Returns the prediction for each path, the chosen path with its reason, and the limit. */
    String details() {
        Set<Path> possible = model.possible(work);
        TextTable table =
                new TextTable(
                        "path",
                        "eager us",
                        "graph us",
                        "host us",
                        "of the limit",
                        "measured us",
                        "taken");
        double limit = model.limit(work);
        for (Path path : Path.values()) {
            if (possible.contains(path)) {
                Prediction prediction = model.predict(work, path);
                table.add(
                        path.toString(),
                        micros(prediction.micros(false)),
                        path == Path.NCCL && possible.size() > 1
                                ? "-"
                                : micros(prediction.device()),
                        micros(prediction.host()),
                        String.format(Locale.ROOT, "%.2f", prediction.device() / limit),
                        measured(path.name()),
                        taken(path));
            } else {
                table.add(path.toString(), "-", "-", "-", "-", measured(path.name()), "impossible");
            }
        }
        table.add("matmul", "", micros(model.matmul(work)), "", "", measured("matmul"), "");
        table.add("limit", "", micros(limit), "", "1.00", "", "");
        StringBuilder text = new StringBuilder();
        text.append(operator).append(' ').append(shape).append(", ").append(typeName());
        text.append(": ").append(ranks).append(" ranks, ").append(machine.name()).append('\n');
        text.append(
                String.format(
                        Locale.ROOT,
                        "%.1f MiB into each GPU, %.2f TFLOP of each GPU%n",
                        work.bytesIn() / MIB,
                        2e-12 * shape.m() * shape.n() * shape.k() / ranks));
        text.append('\n').append(table).append('\n');
        text.append("eager:    ").append(choice(false)).append('\n');
        text.append("in graph: ").append(choice(true)).append('\n');
        return text.append(notes(possible)).toString();
    }

    /** Says for which machine the prediction is. */
    String basis() {
        return machine.basis();
    }

    private String notes(Set<Path> possible) {
        StringBuilder text = new StringBuilder(basis()).append('\n');
        long buffer = CostModel.bufferSize(work);
        if (possible.size() > 1 && buffer > CudaP2pOptions.DEFAULT_BUFFER_SIZE) {
            text.append(
                    String.format(
                            Locale.ROOT,
                            "Predicted for P2P buffers of %.0f MiB: set optBufferSize. With the"
                                    + " default of %.0f MiB FUSED is not possible, and PIPELINED"
                                    + " sends parts in rounds.%n",
                            buffer / MIB,
                            CudaP2pOptions.DEFAULT_BUFFER_SIZE / MIB));
        }
        if (hostsOfGroup() > 1) {
            text.append(
                    "Extrapolated: the group has several hosts, whose network was not measured.\n");
        } else if (Integer.bitCount(ranks) > 1) {
            text.append(
                    "NCCL was measured with 2, 4 and 8 ranks; its time for other numbers is"
                            + " estimated.\n");
        }
        if (type.itemSize() > 2) {
            text.append(
                    "Matmuls were measured with bfloat16; the rate of other types is from a data"
                            + " sheet.\n");
        }
        if (replicas() > 1) {
            text.append(
                    String.format(
                            Locale.ROOT,
                            "%d replicas on %d hosts, %d GPUs: %.0f MiB of gradients a GPU take %s"
                                    + " us across %.0f GB/s a GPU (extrapolated)%n",
                            replicas(),
                            hosts,
                            ranks * replicas(),
                            gradientBytes() / MIB,
                            micros(gradients()),
                            network.rate()));
        }
        return text.toString();
    }

    private String taken(Path path) {
        boolean eager = choice(false).path() == path;
        boolean graph = choice(true).path() == path;
        return eager && graph ? "yes" : eager ? "eager" : graph ? "in graph" : "";
    }

    /** Returns the measured time of a path; empty if there is none. */
    private String measured(String path) {
        return Measurement.all().stream()
                .filter(row -> row.machine().equals(machine.name()))
                .filter(row -> row.type().equals(typeName()))
                .filter(row -> row.operator().equals(operator.toString()))
                .filter(row -> row.m() == shape.m() && row.n() == shape.n() && row.k() == shape.k())
                .filter(row -> row.ranks() == ranks && row.path().equalsIgnoreCase(path))
                .map(row -> micros(row.micros()))
                .collect(Collectors.joining(" "));
    }

    private String typeName() {
        return type.name().toLowerCase(Locale.ROOT);
    }

    private static String micros(double value) {
        return String.format(Locale.ROOT, value < 100 ? "%.1f" : "%.0f", value);
    }

    /** Returns a row for each plan, with the cost of training if any plan has replicas. */
    static TextTable table(List<Plan> plans) {
        boolean training = plans.stream().anyMatch(plan -> plan.replicas() > 1);
        List<String> header =
                List.of("operator", "M, N, K", "ranks", "hosts", "GPUs", "path", "us", "limit us");
        TextTable table =
                new TextTable(
                        with(header, training, "nccl us", "gradients us", "efficiency")
                                .toArray(String[]::new));
        plans.forEach(plan -> table.add(plan.row(training).toArray()));
        return table;
    }

    private static List<String> with(
            List<String> cells, boolean training, String plain, String... ofTraining) {
        List<String> all = new ArrayList<>(cells);
        all.add(plain);
        if (training) {
            all.addAll(List.of(ofTraining));
        }
        return all;
    }

    /**
     * Returns the cells of this plan. A training step takes three times the operator: forward, and
     * twice that backward. Its efficiency is the part of the time in which a GPU does not wait for
     * gradients. The first figure is for gradients summed after the backward pass, the second for
     * gradients summed during it.
     */
    private List<String> row(boolean training) {
        double step = 3 * micros();
        double after = step / (step + gradients());
        double beside = step / Math.max(step, micros() + gradients());
        List<String> cells =
                List.of(
                        operator.toString(),
                        shape.toString(),
                        "" + ranks,
                        "" + hosts,
                        "" + ranks * replicas(),
                        choice(false).path().toString(),
                        micros(micros()),
                        micros(model.limit(work)));
        return with(
                cells,
                training,
                micros(model.predict(work, Path.NCCL).micros(false)),
                replicas() == 1 ? "-" : micros(gradients()),
                replicas() == 1 ? "-" : String.format(Locale.ROOT, "%.2f to %.2f", after, beside));
    }
}

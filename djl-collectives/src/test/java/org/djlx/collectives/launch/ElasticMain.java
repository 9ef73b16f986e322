// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.spi.BackendOptions;

/**
 * One rank of {@link RestartsTest}: fits a line by gradient descent, with a checkpoint after each
 * step, from which it goes on when it starts again, with as many ranks as there are then. The
 * gradients of all samples are gathered and added in the order of the samples, so that losses do
 * not depend on the number of ranks. Ends when there is a file named finish.
 */
public final class ElasticMain {

    static final int SAMPLES = 12;
    private static final double RATE = 0.01;

    private ElasticMain() {}

    /** What is saved: the two parameters, and the losses of all steps. */
    record State(double slope, double offset, List<Double> losses) {

        static final State START = new State(0, 0, List.of());

        /** Returns the next state. */
        State step(double[] gradients) {
            double loss = 0;
            double bySlope = 0;
            double byOffset = 0;
            for (int sample = 0; sample < SAMPLES; sample++) {
                loss += gradients[3 * sample];
                bySlope += gradients[3 * sample + 1];
                byOffset += gradients[3 * sample + 2];
            }
            List<Double> all = new ArrayList<>(losses);
            all.add(loss);
            return new State(slope - RATE * bySlope, offset - RATE * byOffset, all);
        }

        /** Writes loss and gradients of a sample. */
        void put(int sample, double[] to, int at) {
            double x = Math.sin(sample);
            double error = slope * x + offset - Math.cos(3 * sample);
            to[at] = error * error;
            to[at + 1] = 2 * error * x;
            to[at + 2] = 2 * error;
        }
    }

    /** Reads a checkpoint. */
    static State load(Path folder) throws IOException {
        Path file = folder.resolve("checkpoint");
        if (!Files.exists(file)) {
            return State.START;
        }
        List<Double> numbers = Files.readAllLines(file).stream().map(Double::valueOf).toList();
        return new State(numbers.get(0), numbers.get(1), numbers.subList(2, numbers.size()));
    }

    private static void save(Path folder, State state) throws IOException {
        StringBuilder text = new StringBuilder(state.slope() + "\n" + state.offset() + "\n");
        state.losses().forEach(loss -> text.append(loss).append('\n'));
        Path temporary = folder.resolve("temporary");
        Files.writeString(temporary, text);
        Files.move(temporary, folder.resolve("checkpoint"), StandardCopyOption.ATOMIC_MOVE);
    }

    public static void main(String[] args) throws Exception {
        Path folder = Path.of(args[0]);
        BackendOptions options = new BackendOptions(Duration.ofSeconds(60));
        try (ProcessGroup group = ProcessGroups.init("shm", options);
                NDManager manager = NDManager.newBaseManager("PyTorch")) {
            State state = load(folder);
            int own = SAMPLES / group.worldSize();
            boolean finish = false;
            while (!finish) {
                // The last number is the word of rank 0 to finish.
                double[] part = new double[3 * own + 1];
                for (int i = 0; i < own; i++) {
                    state.put(group.rank() * own + i, part, 3 * i);
                }
                boolean first = group.rank() == 0;
                part[3 * own] = first && Files.exists(folder.resolve("finish")) ? 1 : 0;
                double[] all = new double[group.worldSize() * part.length];
                try (NDManager step = manager.newSubManager()) {
                    NDArray gathered = step.create(new Shape(all.length), DataType.FLOAT64);
                    group.allGatherIntoTensor(gathered, step.create(part)).await();
                    double[] numbers = gathered.toDoubleArray();
                    for (int rank = 0; rank < group.worldSize(); rank++) {
                        System.arraycopy(numbers, rank * part.length, all, rank * 3 * own, 3 * own);
                    }
                    finish = numbers[3 * own] == 1;
                }
                state = state.step(all);
                if (first) {
                    save(folder, state);
                    Files.writeString(folder.resolve("world"), "" + group.worldSize());
                }
                // No rank is ahead of the checkpoint by more than a step.
                group.barrier().await();
                Thread.sleep(20);
            }
        }
    }
}

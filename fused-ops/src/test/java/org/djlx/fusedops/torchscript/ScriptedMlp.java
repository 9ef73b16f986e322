// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.torchscript;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.Device;
import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.ParameterStore;
import ai.djl.translate.NoopTranslator;
import ai.djl.translate.TranslateException;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.pool.RankWorker;

/**
 * The models written by {@code src/test/peer/TorchScriptPeer.java}, their expected results in
 * float64, and the use of one rank's model without the loader.
 */
final class ScriptedMlp implements RankWorker<ScriptedMlp.Task, Void> {

    /** The code of a rank. */
    @FunctionalInterface
    interface Task {
        void run(ProcessGroup group, ScriptedMlp model) throws Exception;
    }

    private static final Map<Integer, Path> DIRECTORIES = new ConcurrentHashMap<>();

    static final int ROWS = 8;
    static final int IN = 8;
    static final int HIDDEN = 16;
    static final int OUT = 4;

    private final ProcessGroup group;
    private final Model model;
    private final Predictor<NDList, NDList> predictor;

    /** Loads the model of a group's rank. */
    ScriptedMlp(ProcessGroup group) throws IOException, MalformedModelException {
        this.group = group;
        String name = "model_rank" + group.rank();
        model = Model.newInstance(name, group.device(), "PyTorch");
        model.load(directory(group.worldSize()), name);
        predictor = model.newPredictor(new NoopTranslator());
    }

    /** Returns the directory of the models for a number of ranks. */
    static Path directory(int worldSize) {
        return DIRECTORIES.computeIfAbsent(worldSize, ScriptedMlp::copy);
    }

    /** Copies models out of a jar, from which libtorch cannot read. */
    private static Path copy(int worldSize) {
        try {
            Path directory = Files.createTempDirectory("mlp-" + worldSize + "-");
            directory.toFile().deleteOnExit();
            for (int rank = 0; rank < worldSize; rank++) {
                Path file = directory.resolve("model_rank" + rank + ".pt");
                String name = worldSize + "/" + file.getFileName();
                try (InputStream in = ScriptedMlp.class.getResourceAsStream(name)) {
                    Files.copy(in, file);
                }
                file.toFile().deleteOnExit();
            }
            return directory;
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Calls a method of the model; the result is in the manager of the first argument. */
    NDList call(String method, NDArray... arguments) throws Exception {
        return TorchOperators.call(group, () -> callOutside(method, arguments));
    }

    /** As {@link #call}, but outside of {@link TorchOperators#call}. */
    NDList callOutside(String method, NDArray... arguments) throws TranslateException {
        NDList outputs = predictor.predict(inputs(method, arguments));
        outputs.attach(arguments[0].getManager());
        return outputs;
    }

    /** As {@link #call}, but in the training mode of the model, in which DJL records gradients. */
    NDList train(String method, NDArray... arguments) throws Exception {
        ParameterStore parameters = new ParameterStore(model.getNDManager(), false);
        return TorchOperators.call(
                group, () -> model.getBlock().forward(parameters, inputs(method, arguments), true));
    }

    /**
     * The arguments of a method other than {@code forward}, as DJL takes them. The method name is
     * an array on the CPU: see {@link TestArrays#awaited} on copies to GPUs that ranks share.
     */
    static NDList inputs(String method, NDArray... arguments) {
        NDList inputs = new NDList(arguments);
        if (!method.equals("forward")) {
            NDArray name = arguments[0].getManager().newSubManager(Device.cpu()).create(0);
            name.setName("module_method:" + method);
            inputs.add(name);
        }
        return inputs;
    }

    @Override
    public Void serve(Task task) throws Exception {
        task.run(group, this);
        return null;
    }

    @Override
    public void close() {
        predictor.close();
        model.close();
    }

    /** Random values in (-1, 1). */
    static float[] random(int size, long seed) {
        Random random = new Random(seed);
        float[] values = new float[size];
        for (int i = 0; i < size; i++) {
            values[i] = random.nextFloat() * 2 - 1;
        }
        return values;
    }

    static float[] input() {
        return random(ROWS * IN, 1);
    }

    static NDArray input(NDManager manager) {
        return manager.create(input(), new Shape(ROWS, IN));
    }

    /** Returns the expected result of {@code forward} for {@link #input}, applied twice. */
    static double[] expected() {
        double[] hidden = multiply(doubles(input()), weight(1, IN * HIDDEN), ROWS, IN, HIDDEN);
        for (int i = 0; i < hidden.length; i++) {
            hidden[i] = Math.max(hidden[i], 0);
        }
        double[] y = multiply(hidden, weight(2, HIDDEN * IN), ROWS, HIDDEN, IN);
        return multiply(y, weight(3, IN * OUT), ROWS, IN, OUT);
    }

    private static double[] weight(int number, int size) {
        double[] values = new double[size];
        for (int i = 0; i < size; i++) {
            values[i] = (float) Math.sin(number + i);
        }
        return values;
    }

    static double[] doubles(float[] values) {
        double[] doubles = new double[values.length];
        for (int i = 0; i < values.length; i++) {
            doubles[i] = values[i];
        }
        return doubles;
    }

    static double[] multiply(double[] a, double[] b, int rows, int inner, int columns) {
        double[] product = new double[rows * columns];
        for (int i = 0; i < rows; i++) {
            for (int j = 0; j < columns; j++) {
                for (int k = 0; k < inner; k++) {
                    product[i * columns + j] += a[i * inner + k] * b[k * columns + j];
                }
            }
        }
        return product;
    }

    /** Checks the result of {@code forward}. */
    static void check(NDList outputs) {
        assertEquals(2, outputs.size());
        for (NDArray output : outputs) {
            assertEquals(new Shape(ROWS, OUT), output.getShape());
            check(expected(), output);
        }
    }

    static void check(double[] expected, NDArray actual) {
        assertArrayEquals(expected, doubles(TestArrays.awaited(actual).toFloatArray()), 1e-4);
    }
}

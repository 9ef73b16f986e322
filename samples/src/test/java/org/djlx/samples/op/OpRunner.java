// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.op;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.function.IntToDoubleFunction;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.samples.Main;
import picocli.CommandLine;

/** Runs {@code op} on files in a folder of its own. */
final class OpRunner implements AutoCloseable {

    private final StringWriter out = new StringWriter();
    private final StringWriter err = new StringWriter();
    private final NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch");
    private final String backend;
    private final int ranks;
    private final Path folder;

    OpRunner(String backend, int ranks) {
        this.backend = backend;
        this.ranks = ranks;
        try {
            folder = Files.createTempDirectory("op");
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    @Override
    public void close() throws IOException {
        manager.close();
        try (Stream<Path> files = Files.list(folder)) {
            for (Path file : files.toList()) {
                Files.delete(file);
            }
        }
        Files.delete(folder);
    }

    NDManager manager() {
        return manager;
    }

    String out() {
        return out.toString();
    }

    String err() {
        return err.toString();
    }

    /** Clears the output. */
    void reset() {
        out.getBuffer().setLength(0);
        err.getBuffer().setLength(0);
    }

    /** Returns the path of a file. */
    String path(String name) {
        return folder.resolve(name).toString();
    }

    /** Runs op with this backend and number of ranks, unless others are given. */
    int run(String... args) {
        List<String> given = List.of(args);
        List<String> all = new ArrayList<>(List.of("op"));
        if (!given.contains("--ranks")) {
            all.addAll(List.of("--ranks", Integer.toString(ranks)));
        }
        if (!given.contains("--backend")) {
            all.addAll(List.of("--backend", backend));
        }
        for (String arg : args) {
            all.add(arg.endsWith(".npz") ? path(arg) : arg);
        }
        CommandLine root = Main.commandLine();
        root.setOut(new PrintWriter(out, true)).setErr(new PrintWriter(err, true));
        return root.execute(all.toArray(String[]::new));
    }

    void write(String name, NDArray... arrays) {
        try (OutputStream file = Files.newOutputStream(folder.resolve(name))) {
            new NDList(arrays).encode(file, NDList.Encoding.NPZ);
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    NDList read(String name) {
        try {
            return NDList.decode(manager, Files.readAllBytes(folder.resolve(name)));
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    NDArray array(Shape shape, IntToDoubleFunction value) {
        double[] values = IntStream.range(0, (int) shape.size()).mapToDouble(value).toArray();
        return manager.create(values, shape).toType(DataType.FLOAT32, false);
    }
}

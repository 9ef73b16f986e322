// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.op;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * One operation: reads its inputs from files and writes its results to files.
 *
 * @param operation the operation
 * @param input the source of the inputs; null without inputs
 * @param b the source of the right operands; null without right operands
 * @param output the name of the file for the results, as in {@link OpInput}; null for none
 * @param reduceOp how to reduce
 * @param root the root
 * @param dim the dimension along which a fused operator gathers or scatters
 */
record OpJob(
        OpKind operation,
        OpInput input,
        OpInput b,
        String output,
        ReduceOp reduceOp,
        int root,
        int dim) {

    private static final int SHOWN = 4; // values of a result

    /** The arrays that one rank read, on the CPU. */
    record Arrays(List<NDArray> inputs, List<NDArray> bs) {}

    /** One result of one rank; the file is null if it was not written. */
    record Result(int rank, String name, String shape, String type, String values, Path file) {}

    /** Returns the files that a rank reads. */
    List<Path> files(int rank) {
        List<Path> files = new ArrayList<>();
        if (operation.readsOn(rank, root)) {
            files.add(OpInput.file(input.pattern(), rank));
        }
        if (b != null) {
            files.add(OpInput.file(b.pattern(), rank));
        }
        return files;
    }

    /**
     * Reads the inputs of a rank.
     *
     * @param manager the manager that owns the arrays, on the CPU
     * @throws IOException if a file cannot be read
     * @throws IllegalArgumentException if a file lacks an array
     */
    Arrays read(NDManager manager, int rank, int worldSize) throws IOException {
        List<NDArray> bs = b == null ? List.of() : b.read(manager, rank, worldSize);
        if (!operation.readsOn(rank, root)) {
            return new Arrays(List.of(), bs);
        }
        if (input.split() != null && operation.scattersParts()) {
            return new Arrays(input.readParts(manager, rank, worldSize), bs);
        }
        List<NDArray> inputs = input.read(manager, rank, worldSize);
        if (!operation.readsSome() || inputs.isEmpty()) {
            input.requireCount(inputs, operation.inputs(worldSize), rank);
        }
        return new Arrays(inputs, bs);
    }

    /** Runs the operation as a rank of a group, and writes the results. */
    List<Result> run(ProcessGroup group, Arrays arrays) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            List<NDArray> results =
                    operation.run(
                            new OpCall(
                                    group,
                                    manager,
                                    onDevice(manager, arrays.inputs()),
                                    onDevice(manager, arrays.bs()),
                                    reduceOp,
                                    root,
                                    dim));
            if (group.device().isGpu()) {
                try (CudaDevice gpu = CudaDevice.open(group.device())) {
                    gpu.synchronize();
                }
            }
            Path file = null;
            if (output != null && !results.isEmpty()) {
                file = OpInput.file(output, group.rank());
                NpzFile.write(file, results);
            }
            return described(group.rank(), results, file);
        }
    }

    private static List<NDArray> onDevice(NDManager manager, List<NDArray> arrays) {
        List<NDArray> copies = new ArrayList<>();
        for (NDArray array : arrays) {
            NDArray copy = Torch.empty(manager, array.getShape(), Torch.scalarType(array));
            Torch.copy(copy, array);
            copies.add(copy);
        }
        return copies;
    }

    private static List<Result> described(int rank, List<NDArray> results, Path file) {
        List<Result> described = new ArrayList<>();
        for (NDArray result : results) {
            String name = result.getName();
            described.add(
                    new Result(
                            rank,
                            name == null ? "arr_" + described.size() : name,
                            result.getShape().toString(),
                            Torch.scalarType(result).name().toLowerCase(Locale.ROOT),
                            firstValues(result),
                            file));
        }
        return described;
    }

    private static String firstValues(NDArray result) {
        int count = (int) Math.min(SHOWN, result.size());
        ScalarType type = Torch.scalarType(result);
        try (NDManager cpu = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
            ScalarType shown = type.isFloatingPoint() ? ScalarType.FLOAT64 : ScalarType.INT64;
            NDArray copy = Torch.empty(cpu, new Shape(count), shown);
            Torch.copy(copy, Torch.narrow(result.reshape(-1), 0, 0, count));
            String values =
                    Stream.of(copy.toArray())
                            .map(value -> text(value, type))
                            .collect(Collectors.joining(" "));
            return values + (count < result.size() ? " ..." : "");
        }
    }

    /** Formats a number with the precision of its type. */
    private static String text(Number value, ScalarType type) {
        boolean narrow = type.isFloatingPoint() && type != ScalarType.FLOAT64;
        return narrow ? Float.toString(value.floatValue()) : value.toString();
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.op;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.List;

/**
 * Writes example inputs for {@code op --example}. Element i of rank r's first array is 100 r + i,
 * so a result shows the rank and index of its values. Existing files are not changed.
 */
final class ExampleFiles {

    private static final int ROWS_PER_RANK = 2;
    private static final int COLUMNS = 4;
    private static final int B_COLUMNS = 3;

    private ExampleFiles() {}

    /** Writes a rank's inputs: each has as many rows as every operation can divide among ranks. */
    static void writeInputs(Path file, int rank, int count, int worldSize) throws IOException {
        write(file, count, 100f * rank, new Shape((long) ROWS_PER_RANK * worldSize, COLUMNS));
    }

    /** Writes a rank's right operand of a fused operator. */
    static void writeB(Path file, int rank) throws IOException {
        write(file, 1, 100f * rank, new Shape(COLUMNS, B_COLUMNS));
    }

    private static void write(Path file, int count, float first, Shape shape) throws IOException {
        if (Files.exists(file)) {
            return;
        }
        Path part = Files.createTempFile(file.toAbsolutePath().getParent(), "example", ".npz");
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
            List<NDArray> arrays = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                float begin = first + 1000 * i;
                arrays.add(manager.arange(begin, begin + shape.size(), 1).reshape(shape));
            }
            NpzFile.write(part, arrays);
            // Ranks that are processes may write the same file.
            Files.move(part, file, StandardCopyOption.ATOMIC_MOVE);
        } finally {
            Files.deleteIfExists(part);
        }
    }
}

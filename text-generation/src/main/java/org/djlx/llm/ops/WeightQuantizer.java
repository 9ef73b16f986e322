// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.ObjLongConsumer;
import org.djlx.llm.model.ModelConfig;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.Torch;

/** Quantizes projections while they are read. Owns the quantized matrices. */
final class WeightQuantizer implements AutoCloseable {

    private final ModelConfig config;
    private final WeightFormat format;
    private final NDManager manager;
    private final Optional<QuantizeKernels> kernels; // on a GPU
    private final List<QuantizedMatrix> matrices = new ArrayList<>();
    private NativeMemory staging; // of rows to be quantized on a CPU; null at first

    WeightQuantizer(ModelConfig config, WeightFormat format, NDManager manager) {
        this.config = config;
        this.format = format;
        this.manager = manager;
        kernels =
                manager.getDevice().isGpu()
                        ? Optional.of(
                                new QuantizeKernels(manager.getDevice(), config.type(), format))
                        : Optional.empty();
    }

    QuantizedMatrix quantize(NDArray rows) {
        QuantizedMatrix matrix = allocate(rows.getShape());
        matrix.put(0, rows);
        return matrix;
    }

    /**
     * Reads and quantizes a matrix of shape (outputs, inputs); on a CPU some rows at a time,
     * through memory that is reused, unless {@code whole}. {@code source} fills an array with rows,
     * from a row on.
     */
    QuantizedMatrix quantize(Shape shape, boolean whole, ObjLongConsumer<NDArray> source) {
        QuantizedMatrix matrix = allocate(shape);
        long outputs = shape.get(0);
        long inputs = shape.get(1);
        // Whole heads and whole panels.
        long block = (long) QuantizedMatrix.PANEL * config.headSize();
        boolean atOnce = whole || kernels.isPresent();
        long step = atOnce ? outputs : block * (1 + WeightReader.READ_ELEMENTS / inputs / block);
        for (long first = 0; first < outputs; first += step) {
            Shape part = new Shape(Math.min(step, outputs - first), inputs);
            try (NDArray rows = unquantized(part)) {
                source.accept(rows, first);
                matrix.put(first, rows);
            }
        }
        return matrix;
    }

    private QuantizedMatrix allocate(Shape shape) {
        QuantizedMatrix matrix = QuantizedMatrix.allocate(shape, format, kernels);
        matrices.add(matrix);
        return matrix;
    }

    private NDArray unquantized(Shape shape) {
        if (kernels.isPresent()) {
            return Torch.empty(manager, shape, config.type());
        }
        // New memory for each would be new pages, and malloc would keep some of it.
        long bytes = shape.size() * config.type().itemSize();
        if (staging == null || staging.byteSize() < bytes) {
            closeStaging();
            staging = NativeMemory.allocateZeros(bytes, true);
        }
        return Torch.view(manager, staging, 0, shape, config.type());
    }

    /** Frees the memory of rows that were to be quantized, when all are. */
    void closeStaging() {
        if (staging != null) {
            staging.close();
        }
    }

    @Override
    public void close() {
        matrices.forEach(QuantizedMatrix::close);
        kernels.ifPresent(QuantizeKernels::close);
        closeStaging();
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelConstants.Layout;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.LaunchSize;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * Launches the kernels of {@code transformer_block.cu} on one GPU: the operators of a transformer
 * block between its matmuls, and their gradients.
 *
 * <ul>
 *   <li>The arrays of a call are on the GPU and have the same supported type, unless the method
 *       says otherwise.
 *   <li>Results are new arrays in the manager of the first array.
 *   <li>Kernels run on the calling thread's current stream. Autograd does not record them.
 *   <li>Not thread-safe.
 * </ul>
 */
final class BlockKernels implements AutoCloseable {

    private static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "transformer_block/transformer_block.cu");
    private static final KernelConstants CONSTANTS = new KernelConstants(SOURCE);
    private static final int WARP = CONSTANTS.value("WARP");
    private static final int PACK = 16; // bytes
    private static final int NORM_THREADS = CONSTANTS.value("MAX_THREADS");
    private static final int NORM_BLOCKS = 3; // per SM
    private static final int GRADIENT_BLOCKS = 2; // per SM, for a norm's gradient
    private static final int ROTATION_THREADS = 256; // at most
    private static final Heads NO_HEADS = new Heads(0, 0, 0, 0, 0, false);
    private static final Layout NORM = CONSTANTS.struct("Norm");
    private static final Layout NORM_GRADIENT = CONSTANTS.struct("NormGradient");
    private static final Layout WEIGHT_GRADIENT = CONSTANTS.struct("WeightGradient");
    private static final Layout ROTATION = CONSTANTS.struct("Rotation");
    private static final Layout GATE = CONSTANTS.struct("Gate");
    private static final Layout GATE_GRADIENT = CONSTANTS.struct("GateGradient");
    private static final Layout COLUMNS = CONSTANTS.struct("Columns");
    private static final int SUM_THREADS = CONSTANTS.value("PART_WARPS") * WARP;
    private static final int PASS_THREADS = 256;
    private static final int PASS_BLOCKS = 8; // per SM
    private static final int MAX_SHARED = 47 << 10; // a thread block has 48 KiB on any GPU

    private final CudaDevice device;
    private final CurrentStreams streams;
    private final CudaModule module;
    private final int multiprocessors;
    private final Map<ScalarType, CudaKernel> norm;
    private final Map<ScalarType, CudaKernel> normGradient;
    private final Map<ScalarType, CudaKernel> weightGradient;
    private final Map<ScalarType, CudaKernel> rotate;
    private final Map<ScalarType, CudaKernel> gate;
    private final Map<ScalarType, CudaKernel> gateGradient;
    private final Map<ScalarType, CudaKernel> convertColumns; // to 16-bit types
    private final KernelArguments arguments = new KernelArguments();

    /** Compiles the kernels, or takes them from the cache. */
    public BlockKernels(Device gpu) {
        device = CudaDevice.open(gpu);
        try {
            multiprocessors = device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
            module = new KernelCompiler(KernelCache.user()).load(device, SOURCE);
            norm = module.kernels("rms_norm");
            normGradient = module.kernels("rms_norm_gradient");
            weightGradient = module.kernels("rms_norm_weight_gradient");
            rotate = module.kernels("rotate");
            gate = module.kernels("gate");
            gateGradient = module.kernels("gate_gradient");
            convertColumns = module.kernels("convert_columns");
            streams = new CurrentStreams(device);
        } catch (Throwable e) {
            device.close();
            throw e;
        }
    }

    public boolean isSupported(NDArray array) {
        return gate.containsKey(Torch.scalarType(array))
                && Torch.device(array).equals(device.device());
    }

    /** Returns whether rows are short enough to be normalised. */
    public boolean isNormalizable(long size) {
        return size + PACK <= MAX_SHARED / Float.BYTES; // The last pack may be partly filled.
    }

    /** The arrays of one call, temporary copies included. */
    private final class Call implements AutoCloseable {

        private final CudaStream stream = streams.get();
        private final List<NDArray> used = new ArrayList<>();
        private final List<NDArray> temporary = new ArrayList<>();

        long operand(NDArray array) {
            TensorInfo info = Torch.info(array);
            if (info.isContiguous()) {
                used.add(array);
                return info.address();
            }
            return Torch.dataPointer(temporary(Torch.cast(array, info.type())));
        }

        NDArray temporary(NDArray array) {
            temporary.add(array);
            return use(array);
        }

        NDArray like(NDArray array) {
            return empty(array, array.getShape());
        }

        NDArray empty(NDArray like, Shape shape) {
            return use(Torch.empty(like.getManager(), shape, Torch.scalarType(like)));
        }

        NDArray use(NDArray array) {
            used.add(array);
            return array;
        }

        void launch(Map<ScalarType, CudaKernel> kernels, NDArray array, LaunchSize size) {
            kernels.get(Torch.scalarType(array)).launch(stream, size, arguments);
        }

        /**
         * Closes temporary arrays. If a graph is being recorded, the graph keeps all arrays for
         * replays.
         */
        @Override
        public void close() {
            if (stream.isCapturing()) {
                stream.keepAlive(used.toArray(new NDArray[0]));
            }
            temporary.forEach(NDArray::close);
        }
    }

    private static long packs(NDArray array, long elements) {
        long count = PACK / Torch.scalarType(array).itemSize();
        return (elements + count - 1) / count;
    }

    private static int threads(long wanted, int most) {
        return (int) Math.min(most, (wanted + WARP - 1) / WARP * WARP);
    }

    /** Computes RMSNorm of rows of shape (…, size), {@linkplain #isNormalizable short enough}. */
    public NDArray normalized(NDArray x, NDArray weight, float epsilon) {
        try (Call call = new Call()) {
            NDArray y = call.like(x);
            norm(call, y, 0, x, 0, weight, epsilon);
            return y;
        }
    }

    /**
     * Adds rows, rounds the sum to their element type, and computes the RMSNorm of the rounded sum.
     * Returns the sum and its norm.
     */
    public List<NDArray> addedNormalized(NDArray x, NDArray addend, NDArray weight, float epsilon) {
        try (Call call = new Call()) {
            NDArray sum = call.like(x);
            NDArray y = call.like(x);
            norm(call, y, Torch.dataPointer(sum), x, call.operand(addend), weight, epsilon);
            return List.of(sum, y);
        }
    }

    private void norm(
            Call call, NDArray y, long sum, NDArray x, long addend, NDArray weight, float epsilon) {
        if (x.size() > 0) {
            long size = weight.size();
            long rows = x.size() / size;
            arguments
                    .clear()
                    .addStruct(NORM)
                    .put("y", Torch.dataPointer(y))
                    .put("sum", sum)
                    .put("x", call.operand(x))
                    .put("addend", addend)
                    .put("weight", call.operand(weight))
                    .put("rows", rows)
                    .put("size", size)
                    .add(epsilon);
            int blocks = (int) Math.min(rows, (long) NORM_BLOCKS * multiprocessors);
            call.launch(norm, x, LaunchSize.of(blocks, normThreads(x, size)));
        }
    }

    private static int normThreads(NDArray x, long size) {
        return threads(packs(x, size), NORM_THREADS);
    }

    /**
     * Returns the gradients of at least one row and of the weight; {@code ofRows} is added to that
     * of the rows, null for none.
     */
    public List<NDArray> normalizedGradients(
            NDArray x, NDArray weight, NDArray gradient, NDArray ofRows, float epsilon) {
        long size = weight.size();
        long rows = x.size() / size;
        try (Call call = new Call()) {
            NDArray ofX = call.like(x);
            NDArray ofWeight = call.like(weight);
            int blocks = (int) Math.min(rows, (long) GRADIENT_BLOCKS * multiprocessors);
            NDArray parts =
                    call.temporary(
                            Torch.empty(
                                    x.getManager(), new Shape(blocks, size), ScalarType.FLOAT32));
            arguments
                    .clear()
                    .addStruct(NORM_GRADIENT)
                    .put("dx", Torch.dataPointer(ofX))
                    .put("parts", Torch.dataPointer(parts))
                    .put("dy", call.operand(gradient))
                    .put("dsum", ofRows == null ? 0 : call.operand(ofRows))
                    .put("x", call.operand(x))
                    .put("weight", call.operand(weight))
                    .put("rows", rows)
                    .put("size", size)
                    .add(epsilon);
            long whole = packs(x, size) * PACK / Torch.scalarType(x).itemSize();
            call.launch(
                    normGradient,
                    x,
                    LaunchSize.of(blocks, normThreads(x, size))
                            .withShared((int) whole * Float.BYTES));
            arguments
                    .clear()
                    .addStruct(WEIGHT_GRADIENT)
                    .put("dweight", Torch.dataPointer(ofWeight))
                    .put("parts", Torch.dataPointer(parts))
                    .put("count", blocks)
                    .put("size", size);
            call.launch(
                    weightGradient,
                    x,
                    LaunchSize.of((int) ((size + WARP - 1) / WARP), SUM_THREADS));
            return List.of(ofX, ofWeight);
        }
    }

    /**
     * Applies the rotary embedding, or its inverse, to heads of shape (…, positions, heads, head
     * size). Cosines and sines have shape (positions, 1, half of the head size).
     */
    public NDArray rotated(NDArray x, NDArray cosines, NDArray sines, boolean back) {
        try (Call call = new Call()) {
            NDArray y = call.like(x);
            List<Heads> heads = new ArrayList<>();
            heads.add(heads(Torch.dataPointer(y), call.operand(x), x, x, heads(x), true));
            heads.add(NO_HEADS);
            heads.add(NO_HEADS);
            rotate(call, heads, x, cosines, sines, back);
            return y;
        }
    }

    private static long heads(NDArray x) {
        return x.getShape().get(x.getShape().dimension() - 2);
    }

    /**
     * The kernel's description of heads: addresses of the first ones, and elements from a token to
     * the next. They are rotated, or copied.
     */
    private record Heads(
            long y, long x, long yDistance, long xDistance, long count, boolean rotated) {}

    private static Heads heads(
            long y, long x, NDArray ofY, NDArray ofX, long count, boolean rotated) {
        long size = ofX.getShape().getLastDimension();
        return new Heads(y, x, heads(ofY) * size, heads(ofX) * size, count, rotated);
    }

    /** Launches the rotation for the tokens of an array. */
    private void rotate(
            Call call,
            List<Heads> heads,
            NDArray tokens,
            NDArray cosines,
            NDArray sines,
            boolean back) {
        if (tokens.size() == 0) {
            return;
        }
        Shape shape = tokens.getShape();
        long half = shape.getLastDimension() / 2;
        arguments.clear().addStruct(ROTATION);
        for (int i = 0; i < heads.size(); i++) {
            Heads each = heads.get(i);
            String kind = "heads[" + i + "].";
            arguments
                    .put(kind + "y", each.y)
                    .put(kind + "x", each.x)
                    .put(kind + "y_distance", each.yDistance)
                    .put(kind + "x_distance", each.xDistance)
                    .put(kind + "count", each.count)
                    .put(kind + "rotated", each.rotated ? 1 : 0);
        }
        arguments
                .put("cosines", call.operand(cosines))
                .put("sines", call.operand(sines))
                .put("positions", shape.get(shape.dimension() - 3))
                .put("half", half)
                .add(back ? -1f : 1f);
        call.launch(
                rotate,
                tokens,
                LaunchSize.of(
                        Math.toIntExact(tokens.size() / (heads(tokens) * 2 * half)),
                        threads(heads(tokens) * packs(tokens, half), ROTATION_THREADS)));
    }

    /**
     * Splits heads of shape (…, positions, heads, head size), queries first, into queries, keys and
     * values, and rotates queries and keys.
     */
    public List<NDArray> divided(NDArray x, List<Long> counts, NDArray cosines, NDArray sines) {
        try (Call call = new Call()) {
            int axis = x.getShape().dimension() - 2;
            List<NDArray> results = new ArrayList<>();
            List<Heads> heads = new ArrayList<>();
            long from = call.operand(x);
            for (long count : counts) {
                long[] sizes = x.getShape().getShape().clone();
                sizes[axis] = count;
                NDArray y = call.empty(x, new Shape(sizes));
                boolean turned = results.size() < 2;
                heads.add(heads(Torch.dataPointer(y), from, y, x, count, turned));
                results.add(y);
                from += count * sizes[axis + 1] * Torch.scalarType(x).itemSize();
            }
            rotate(call, heads, x, cosines, sines, false);
            return results;
        }
    }

    /** Computes the gradient of all heads, in one array, of {@link #divided}. */
    public NDArray dividedGradient(List<NDArray> gradients, NDArray cosines, NDArray sines) {
        try (Call call = new Call()) {
            NDArray first = gradients.get(0);
            int axis = first.getShape().dimension() - 2;
            long[] sizes = first.getShape().getShape().clone();
            sizes[axis] = gradients.stream().mapToLong(BlockKernels::heads).sum();
            NDArray y = call.empty(first, new Shape(sizes));
            long to = Torch.dataPointer(y);
            List<Heads> heads = new ArrayList<>();
            for (NDArray x : gradients) {
                boolean turned = heads.size() < 2;
                heads.add(heads(to, call.operand(x), y, x, heads(x), turned));
                to += heads(x) * sizes[axis + 1] * Torch.scalarType(x).itemSize();
            }
            rotate(call, heads, y, cosines, sines, true);
            return y;
        }
    }

    /** The addresses of gates and values, and the shape of their product. */
    private record Gates(long gate, long value, long rows, long size, long distance, Shape shape) {

        static Gates of(Call call, List<NDArray> in) {
            NDArray gate = in.get(0);
            long address = call.operand(gate);
            if (in.size() > 1) {
                long count = gate.size();
                long value = call.operand(in.get(1));
                return new Gates(address, value, 1, count, count, gate.getShape());
            }
            long[] sizes = gate.getShape().getShape().clone();
            long both = sizes[sizes.length - 1];
            long size = both / 2;
            sizes[sizes.length - 1] = size;
            long value = address + size * Torch.scalarType(gate).itemSize();
            long rows = size == 0 ? 0 : gate.size() / both;
            return new Gates(address, value, rows, size, both, new Shape(sizes));
        }
    }

    /**
     * Computes {@code silu(gate) * value} of two arrays of the same shape, or of one of shape (…, 2
     * size), whose rows hold the gate and then the value.
     */
    public NDArray gated(List<NDArray> in) {
        try (Call call = new Call()) {
            Gates gates = Gates.of(call, in);
            NDArray y = call.empty(in.get(0), gates.shape);
            if (y.size() > 0) {
                arguments
                        .clear()
                        .addStruct(GATE)
                        .put("y", Torch.dataPointer(y))
                        .put("gate", gates.gate)
                        .put("value", gates.value)
                        .put("rows", gates.rows)
                        .put("size", gates.size)
                        .put("distance", gates.distance);
                call.launch(gate, y, passSize(y, gates.rows, gates.size));
            }
            return y;
        }
    }

    private LaunchSize passSize(NDArray array, long rows, long size) {
        long wanted = (rows * packs(array, size) + PASS_THREADS - 1) / PASS_THREADS;
        return LaunchSize.of(
                (int) Math.min(wanted, (long) PASS_BLOCKS * multiprocessors), PASS_THREADS);
    }

    /**
     * Computes the gradients of {@link #gated}, in arrays of the shapes of {@code in}, which is not
     * empty.
     */
    public List<NDArray> gatedGradients(List<NDArray> in, NDArray gradient) {
        try (Call call = new Call()) {
            Gates gates = Gates.of(call, in);
            List<NDArray> results = in.stream().map(call::like).toList();
            long ofGate = Torch.dataPointer(results.get(0));
            long ofValue =
                    in.size() > 1
                            ? Torch.dataPointer(results.get(1))
                            : ofGate + (gates.value - gates.gate);
            arguments
                    .clear()
                    .addStruct(GATE_GRADIENT)
                    .put("dgate", ofGate)
                    .put("dvalue", ofValue)
                    .put("dy", call.operand(gradient))
                    .put("gate", gates.gate)
                    .put("value", gates.value)
                    .put("rows", gates.rows)
                    .put("size", gates.size)
                    .put("distance", gates.distance);
            call.launch(gateGradient, gradient, passSize(gradient, gates.rows, gates.size));
            return results;
        }
    }

    /**
     * Returns whether a kernel can convert and join matrices: they are float32 and the result has a
     * 16-bit type.
     */
    public boolean isJoinable(List<NDArray> matrices, ScalarType type) {
        return convertColumns.containsKey(type)
                && matrices.stream()
                        .allMatch(
                                matrix ->
                                        Torch.scalarType(matrix) == ScalarType.FLOAT32
                                                && isSupported(matrix));
    }

    /**
     * Converts {@linkplain #isJoinable float32} matrices of as many rows, and joins them side by
     * side.
     */
    public NDArray joined(List<NDArray> matrices, ScalarType type) {
        long rows = matrices.get(0).getShape().get(0);
        long columns = matrices.stream().mapToLong(matrix -> matrix.getShape().get(1)).sum();
        try (Call call = new Call()) {
            NDArray first = matrices.get(0);
            NDArray y = call.use(Torch.empty(first.getManager(), new Shape(rows, columns), type));
            long address = Torch.dataPointer(y);
            for (NDArray matrix : matrices) {
                long size = matrix.getShape().get(1);
                if (matrix.size() > 0) {
                    arguments
                            .clear()
                            .addStruct(COLUMNS)
                            .put("y", address)
                            .put("x", call.operand(matrix))
                            .put("rows", rows)
                            .put("size", size)
                            .put("distance", columns);
                    call.launch(convertColumns, y, passSize(y, rows, size));
                }
                address += size * type.itemSize();
            }
            return y;
        }
    }

    /** Waits for enqueued work, and frees the kernels. */
    @Override
    public void close() {
        device.synchronize();
        module.close();
        streams.close();
        device.close();
    }
}

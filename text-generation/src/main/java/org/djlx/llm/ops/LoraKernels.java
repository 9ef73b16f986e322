// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelConstants.Layout;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.LaunchSize;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Launches the kernels of {@code lora.cu}, which add LoRA adapters to the matmuls of decode steps.
 * The kernels read from memory which row has which adapter, so a CUDA graph serves all mixes:
 *
 * <ul>
 *   <li>each adapter has a {@linkplain #table table} of its matrices
 *   <li>each step has {@linkplain #writeGroups groups} of rows with the same adapter
 * </ul>
 *
 * <p>Not thread-safe.
 */
final class LoraKernels implements AutoCloseable {

    private static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "decoder/lora.cu");
    private static final KernelConstants CONSTANTS = new KernelConstants(SOURCE);
    private static final Layout LORA = CONSTANTS.struct("Lora");
    private static final Layout LOW_RANK = CONSTANTS.struct("LowRank");
    private static final Layout GROUP = CONSTANTS.struct("AdaptedRows");
    private static final int GROUP_ROWS = CONSTANTS.value("GROUP_ROWS");
    private static final int THREADS = CONSTANTS.value("LORA_WARPS") * CONSTANTS.value("WARP");
    private static final int MAX_LOW = CONSTANTS.value("MAX_LOW");
    private static final int MAX_PARTS = CONSTANTS.value("MAX_PARTS"); // thread blocks along x
    private static final int EXPAND_OUTPUTS = CONSTANTS.value("EXPAND_OUTPUTS");
    private static final int MAX_SLICES = CONSTANTS.value("MAX_SLICES");

    /** Thread blocks along y, which take groups in turn. */
    private static final int GRID_GROUPS = 8;

    /** Blocks of an SM that multiply by B. A matmul's block must fit beside them. */
    private static final int EXPAND_BLOCKS = 4;

    /** The ranks of matrices in a {@link #table} are multiples of this. */
    static final int RANK_STEP = CONSTANTS.value("RANK_STEP");

    private final CudaModule module;
    private final CudaKernel shrink;
    private final CudaKernel expand;
    private final NDArray low;
    private final NDArray addend;
    private final NDArray ready; // of each projection, an int: whether its x is complete
    private final int expandBlocks; // the most blocks along x
    private final KernelArguments arguments = new KernelArguments();

    /**
     * Compiles the kernels for float16 or bfloat16, and allocates buffers.
     *
     * @param maxRows the most rows of a step
     * @param maxOutputs the most outputs of a projection
     * @param projections how many a {@link #table} has
     */
    LoraKernels(
            CudaDevice device,
            ScalarType type,
            NDManager manager,
            int maxRows,
            int maxOutputs,
            int projections) {
        ready = manager.zeros(new Shape(projections), DataType.INT32);
        low = Torch.empty(manager, new Shape(MAX_PARTS, maxRows, MAX_LOW), ScalarType.FLOAT32);
        addend = Torch.empty(manager, new Shape(maxRows, maxOutputs), ScalarType.FLOAT32);
        String option = "-DTYPE=" + DecoderKernels.TYPES.get(type);
        module = new KernelCompiler(KernelCache.user()).load(device, SOURCE, option);
        shrink = module.kernel("lora_shrink");
        expand = module.kernel("lora_expand");
        // As the matmuls: kernels with different preferences cannot share an SM.
        shrink.preferSharedMemory();
        expand.preferSharedMemory();
        int multiprocessors = device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
        expandBlocks = Math.max(1, EXPAND_BLOCKS * multiprocessors / GRID_GROUPS);
    }

    /**
     * Returns an adapter's matrices for each projection, null for none, as kernels read them: an
     * array of the struct {@code LowRank}.
     */
    static NDArray table(NDManager manager, List<Adapters.LowRank> projections) {
        ByteBuffer table =
                ByteBuffer.allocate(projections.size() * LOW_RANK.byteSize())
                        .order(ByteOrder.nativeOrder());
        for (int i = 0; i < projections.size(); i++) {
            Adapters.LowRank of = projections.get(i);
            if (of == null) {
                continue; // zeros
            }
            int at = i * LOW_RANK.byteSize();
            NDArray a = of.a().weight();
            table.putLong(at + LOW_RANK.offset("a"), Torch.dataPointer(a));
            table.putLong(at + LOW_RANK.offset("b"), Torch.dataPointer(of.b().weight()));
            table.putInt(at + LOW_RANK.offset("rank"), of.rank());
            table.putInt(at + LOW_RANK.offset("depth"), (int) a.getShape().get(1));
            for (int slice = 0; slice < MAX_SLICES; slice++) {
                boolean there = slice < of.slices().size();
                Adapters.Outputs outputs = there ? of.slices().get(slice) : Adapters.Outputs.NONE;
                int offset = slice * Integer.BYTES;
                table.putInt(at + LOW_RANK.offset("ends") + offset, outputs.end());
                table.putInt(at + LOW_RANK.offset("columns") + offset, outputs.column());
            }
        }
        long[] words = new long[table.capacity() / Long.BYTES];
        table.asLongBuffer().get(words);
        return manager.create(words);
    }

    /** Returns the bytes that {@link #writeGroups} writes. */
    static int groupBytes(int rows) {
        return rows * (GROUP.byteSize() + Integer.BYTES);
    }

    /**
     * Writes the groups of a step at the buffer's position: for each row a struct {@code
     * AdaptedRows}; then for each row an int, 1 if it has an adapter.
     *
     * @param adapters the address of each row's {@link #table}, 0 for none
     */
    static void writeGroups(ByteBuffer to, long[] adapters) {
        Map<Long, List<List<Integer>>> groups = new LinkedHashMap<>();
        for (int row = 0; row < adapters.length; row++) {
            if (adapters[row] != 0) {
                List<List<Integer>> same =
                        groups.computeIfAbsent(adapters[row], key -> new ArrayList<>());
                if (same.isEmpty() || same.get(same.size() - 1).size() == GROUP_ROWS) {
                    same.add(new ArrayList<>());
                }
                same.get(same.size() - 1).add(row);
            }
        }
        int begin = to.position();
        int next = begin;
        for (Map.Entry<Long, List<List<Integer>>> of : groups.entrySet()) {
            for (List<Integer> rows : of.getValue()) {
                to.putLong(next + GROUP.offset("projections"), of.getKey());
                for (int i = 0; i < GROUP_ROWS; i++) {
                    int row = i < rows.size() ? rows.get(i) : -1;
                    to.putInt(next + GROUP.offset("rows") + i * Integer.BYTES, row);
                }
                next += GROUP.byteSize();
            }
        }
        int end = begin + adapters.length * GROUP.byteSize();
        for (; next < end; next += GROUP.byteSize()) {
            to.putLong(next + GROUP.offset("projections"), 0);
        }
        to.position(end);
        for (long adapter : adapters) {
            to.putInt(adapter == 0 ? 0 : 1);
        }
    }

    /**
     * Begins to launch or record a step; call it before the step's first kernel.
     *
     * @param groups the address of what {@link #writeGroups} has written for {@code rows} rows
     */
    Step begin(CudaStream stream, int rows, long groups) {
        stream.memsetAsync(Torch.dataPointer(ready), (byte) 0, ready.size() * Integer.BYTES);
        return new Step(stream, rows, groups);
    }

    /**
     * The adapters of a step's matmuls, one of each projection: {@link #shrink}, then one of the
     * other methods.
     */
    final class Step {

        private final CudaStream stream;
        private final int rows;
        private final long groups;
        private int projection;
        private long inputs; // of the projection

        private Step(CudaStream stream, int rows, long groups) {
            this.stream = stream;
            this.rows = rows;
            this.groups = groups;
        }

        /**
         * Multiplies x, of shape (rows, inputs), by A.
         *
         * @param projection the index of the projection in each {@link #table}
         */
        void shrink(int projection, long x, long inputs) {
            this.projection = projection;
            this.inputs = inputs;
            launch(shrink, MAX_PARTS, MAX_SLICES, x, 0, 0, 0);
        }

        /** Multiplies by B; returns the addend of the matmul, which has {@code outputs} outputs. */
        DecoderKernels.Addend expand(long outputs) {
            launchExpand(0, outputs, 0);
            long adapted = groups + (long) rows * GROUP.byteSize();
            return new DecoderKernels.Addend(Torch.dataPointer(addend), adapted, ready());
        }

        /** Multiplies by B, and adds to a product whose rows are {@code stride} elements apart. */
        void expandInto(long product, long outputs, long stride) {
            launchExpand(product, outputs, stride);
        }

        private void launchExpand(long product, long outputs, long stride) {
            int width = EXPAND_OUTPUTS * THREADS;
            int blocks = Math.toIntExact((outputs + width - 1) / width);
            launch(expand, Math.min(blocks, expandBlocks), 1, 0, product, outputs, stride);
        }

        private long ready() {
            return Torch.dataPointer(ready) + (long) projection * Integer.BYTES;
        }

        private void launch(
                CudaKernel kernel,
                int blocks,
                int blocksAlongZ,
                long x,
                long product,
                long outputs,
                long stride) {
            arguments
                    .clear()
                    .addStruct(LORA)
                    .put("x", x)
                    .put("low", Torch.dataPointer(low))
                    .put("addend", Torch.dataPointer(addend))
                    .put("output", product)
                    .put("groups", groups)
                    .put("projection", projection)
                    .put("batch", rows)
                    .put("inputs", inputs)
                    .put("outputs", outputs)
                    .put("stride", stride)
                    .put("x_ready", ready());
            LaunchSize size =
                    LaunchSize.of(blocks, THREADS)
                            .withGrid(Math.min(rows, GRID_GROUPS), blocksAlongZ);
            kernel.launch(stream, size.asDependent(), arguments);
        }
    }

    @Override
    public void close() {
        module.close();
    }
}

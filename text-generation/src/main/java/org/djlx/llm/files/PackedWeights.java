// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.nio.ByteOrder;
import java.nio.ShortBuffer;
import java.util.EnumSet;
import java.util.LongSummaryStatistics;
import java.util.Optional;
import java.util.Set;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import java.util.stream.Stream;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.model.BlockFiles;
import org.djlx.llm.model.DerivedFiles;
import org.djlx.llm.model.PackedFormat;
import org.djlx.llm.model.PackedFormat.Layout;
import org.djlx.nativeops.host.CpuKernels;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Files whose linear layers have packed 4-bit weights: {@link PackedFormat}. A layer's {@code
 * .qweight}, {@code .qzeros}, {@code .scales} and {@code .g_idx} appear as one {@code .weight} of
 * shape (outputs, inputs), which is dequantised in float32 when it is read. Kernels take its
 * numbers, scales and zeros as blocks of {@link CpuKernels#INT4_ZEROS}, if scales are in float16
 * and 32 adjacent inputs are of one group.
 */
final class PackedWeights extends DerivedFiles implements BlockFiles {

    private static final int IN_WORD = 8; // numbers of 4 bits in an integer
    private static final int IN_BLOCK = 32; // numbers
    private static final int BLOCK_INTS = 5;
    private static final int ROWS = 16; // that a thread converts to blocks at a time
    private static final Set<ScalarType> INTEGERS = EnumSet.of(ScalarType.INT32);
    private static final Set<ScalarType> FLOATS =
            EnumSet.of(ScalarType.FLOAT16, ScalarType.BFLOAT16, ScalarType.FLOAT32);
    private static final String WORDS = ".qweight";
    private static final String ZEROS = ".qzeros";
    private static final String SCALES = ".scales";
    private static final String GROUPS = ".g_idx";

    /** The place of each of 8 consecutive outputs in an integer of AutoAWQ. */
    private static final int[] INTERLEAVED = {0, 4, 1, 5, 2, 6, 3, 7};

    private final PackedFormat format;

    /**
     * Takes files, which {@link #close} closes.
     *
     * @throws IllegalArgumentException if shapes do not fit together; the message names the file
     */
    PackedWeights(TensorFiles files, PackedFormat format) {
        super(files);
        this.format = format;
        for (TensorSpec each : files.specs()) {
            String name = each.name();
            if (name.endsWith(WORDS)) {
                TensorSpec spec = unpacked(name.substring(0, name.length() - WORDS.length()));
                specs.put(spec.name(), spec);
            } else if (Stream.of(ZEROS, SCALES, GROUPS).noneMatch(name::endsWith)) {
                specs.put(name, each);
            }
        }
    }

    @Override
    public int int4Group() {
        int size = format.groupSize();
        return files.specs().stream().allMatch(this::hasOwnGroups)
                ? IntStream.of(128, 64, 32).filter(each -> size % each == 0).findFirst().orElse(0)
                : 0;
    }

    /** Returns whether kernels take scales, and whether adjacent inputs are of one group. */
    private boolean hasOwnGroups(TensorSpec spec) {
        if (!spec.name().endsWith(GROUPS)) {
            return !spec.name().endsWith(SCALES) || spec.type() == ScalarType.FLOAT16;
        }
        try (NDManager manager = NDManager.newBaseManager(Device.cpu());
                NDArray array = Torch.empty(manager, spec.shape(), ScalarType.INT32)) {
            files.read(spec.name(), 0, 0, spec.shape().get(0), array);
            int[] groups = array.toIntArray();
            int size = format.groupSize() == 0 ? groups.length : format.groupSize();
            return IntStream.range(0, groups.length).allMatch(i -> groups[i] == i / size);
        }
    }

    /** Checks a layer's tensors; returns its unpacked weight. */
    private TensorSpec unpacked(String layer) {
        TensorSpec words = files.spec(layer + WORDS);
        Required.check(
                words.shape().dimension() == 2,
                "%s: %s must have 2 dimensions",
                files.file(words.name()),
                words);
        boolean packsOutputs = format.layout() == Layout.AWQ;
        long rows = words.shape().get(0);
        long columns = words.shape().get(1);
        long inputs = rows * (packsOutputs ? 1 : IN_WORD);
        long outputs = columns * (packsOutputs ? IN_WORD : 1);
        long size = format.groupSize() == 0 ? inputs : format.groupSize();
        long groups = (inputs + size - 1) / size;
        require(words.name(), words.name(), INTEGERS, rows, columns);
        require(words.name(), layer + SCALES, FLOATS, groups, outputs);
        require(words.name(), layer + ZEROS, INTEGERS, groups, outputs / IN_WORD);
        if (files.contains(layer + GROUPS)) {
            require(words.name(), layer + GROUPS, INTEGERS, inputs);
        }
        Required.check(
                outputs % IN_WORD == 0,
                "%s: %s has %d outputs, not a multiple of 8",
                files.file(words.name()),
                layer,
                outputs);
        return TensorSpec.of(layer + ".weight", ScalarType.FLOAT32, new Shape(outputs, inputs));
    }

    private void require(String words, String name, Set<ScalarType> types, long... sizes) {
        Required.check(
                files.contains(name),
                "%s: %s is missing; download the model again",
                files.file(words),
                name);
        TensorSpec spec = files.spec(name);
        Shape expected = new Shape(sizes);
        Required.check(
                types.contains(spec.type()) && spec.shape().equals(expected),
                "%s: %s must have the shape %s, which config.json requires, and a type of %s",
                files.file(name),
                spec,
                expected,
                types);
    }

    /** Returns the name of a tensor from which a weight is computed. */
    private static String packed(String weight, String suffix) {
        return weight.substring(0, weight.length() - ".weight".length()) + suffix;
    }

    private boolean isPacked(String name) {
        return specs.containsKey(name) && !files.contains(name);
    }

    @Override
    protected String stored(String name) {
        return isPacked(name) ? packed(name, WORDS) : name;
    }

    @Override
    public Optional<NDArray> view(
            String name, int dimension, long from, long to, NDManager manager) {
        return isPacked(name) ? Optional.empty() : super.view(name, dimension, from, to, manager);
    }

    @Override
    public void read(String name, int dimension, long from, long to, NDArray destination) {
        if (!isPacked(name)) {
            super.read(name, dimension, from, to, destination);
            return;
        }
        Shape shape = spec(name).shape();
        Shape part = spec(name).part(dimension, from, to);
        Range slice = new Range(from, to);
        Range outputs = dimension == 0 ? slice : new Range(0, shape.get(0));
        Range inputs = dimension == 1 ? slice : new Range(0, shape.get(1));
        try (NDManager manager = destination.getManager().newSubManager(Device.cpu());
                NDArray weights =
                        manager.create(new Block(name, outputs, inputs, manager).weights(), part)) {
            Torch.copy(destination, weights);
        }
    }

    @Override
    public Optional<Blocks> blocks(
            String name, long[] rows, long from, long to, NDManager manager) {
        if (!isPacked(name)
                || from % IN_BLOCK != 0
                || to % IN_BLOCK != 0
                || files.spec(packed(name, SCALES)).type() != ScalarType.FLOAT16) {
            return Optional.empty();
        }
        LongSummaryStatistics some =
                LongStream.of(rows).filter(row -> row >= 0).summaryStatistics();
        Range outputs =
                some.getCount() == 0
                        ? new Range(0, 1) // Any.
                        : new Range(some.getMin(), some.getMax() + 1);
        Block block = new Block(name, outputs, new Range(from, to), manager);
        return block.hasWholeGroups()
                ? Optional.of(block.blocks(name, rows, manager))
                : Optional.empty();
    }

    private record Range(long from, long to) {

        long count() {
            return to - from;
        }

        /** Returns the integers that contain these numbers. */
        Range words() {
            return new Range(from / IN_WORD, (to + IN_WORD - 1) / IN_WORD);
        }
    }

    /** The packed weights of some outputs and inputs. */
    private final class Block {

        private final Range outputs;
        private final Range inputs;
        private final int[] words;
        private final int[] zeros;
        private final float[] scales;
        private final int[] groups; // of each input
        private final boolean packsOutputs = format.layout() == Layout.AWQ;
        private final int firstOutput;
        private final int firstInput;
        private final int readInput; // the first one in the words
        private final int rows;
        private final int outputWords; // integers that contain the outputs

        Block(String name, Range outputs, Range inputs, NDManager manager) {
            this.outputs = outputs;
            this.inputs = inputs;
            firstOutput = (int) outputs.from;
            firstInput = (int) inputs.from;
            rows = (int) outputs.count();
            outputWords = (int) outputs.words().count();
            Shape all = spec(name).shape();
            boolean someOutputs = outputs.count() < all.get(0);
            readInput = someOutputs ? 0 : firstInput; // A file is read in a range of one dimension.
            String stored = packed(name, WORDS);
            Range ofOutputs = packsOutputs ? outputs.words() : outputs;
            Range ofInputs = packsOutputs ? inputs : inputs.words();
            words =
                    someOutputs
                            ? integers(stored, 1, ofOutputs, manager)
                            : integers(stored, 0, ofInputs, manager);
            zeros = integers(packed(name, ZEROS), 1, outputs.words(), manager);
            String factors = packed(name, SCALES);
            try (NDArray array = manager.zeros(shape(factors, 1, outputs))) {
                files.read(factors, 1, outputs.from, outputs.to, array);
                scales = array.toFloatArray();
            }
            groups = groups(name, scales.length / Math.max(1, rows), manager);
        }

        private int[] groups(String name, int count, NDManager manager) {
            String indices = packed(name, GROUPS);
            if (files.contains(indices)) {
                int[] groups = integers(indices, 0, inputs, manager);
                Required.check(
                        IntStream.of(groups).allMatch(each -> each >= 0 && each < count),
                        "%s: %s names groups other than 0 to %d",
                        files.file(indices),
                        indices,
                        count - 1);
                return groups;
            }
            int size = format.groupSize() == 0 ? Integer.MAX_VALUE : format.groupSize();
            return IntStream.range((int) inputs.from, (int) inputs.to).map(i -> i / size).toArray();
        }

        private Shape shape(String name, int dimension, Range range) {
            long[] sizes = files.spec(name).shape().getShape().clone();
            sizes[dimension] = range.count();
            return new Shape(sizes);
        }

        private int[] integers(String name, int dimension, Range range, NDManager manager) {
            Shape shape = shape(name, dimension, range);
            try (NDArray array = Torch.empty(manager, shape, ScalarType.INT32)) {
                files.read(name, dimension, range.from, range.to, array);
                return array.toIntArray();
            }
        }

        float[] weights() {
            int columns = (int) inputs.count();
            float[] weights = new float[Math.multiplyExact(rows, columns)];
            IntStream.range(0, rows)
                    .parallel()
                    .forEach(
                            row -> {
                                for (int column = 0; column < columns; column++) {
                                    int group = groups[column];
                                    weights[row * columns + column] =
                                            scales[group * rows + row]
                                                    * (number(row, column) - zero(group, row));
                                }
                            });
            return weights;
        }

        /** Returns whether the inputs of each block are of one group. */
        boolean hasWholeGroups() {
            return IntStream.range(0, groups.length)
                    .allMatch(i -> groups[i] == groups[i - i % IN_BLOCK]);
        }

        Blocks blocks(String name, long[] order, NDManager manager) {
            int sets = groups.length / IN_BLOCK;
            int rowInts = sets * BLOCK_INTS;
            int[] blocks = new int[Math.multiplyExact(order.length, rowInts)];
            String factors = packed(name, SCALES);
            NDArray array = Torch.empty(manager, shape(factors, 1, outputs), ScalarType.FLOAT16);
            files.read(factors, 1, outputs.from, outputs.to, array);
            ShortBuffer halves =
                    array.toByteBuffer().order(ByteOrder.nativeOrder()).asShortBuffer();
            // Rows next to each other share integers, so threads convert some rows, set by set.
            IntStream.range(0, (order.length + ROWS - 1) / ROWS)
                    .parallel()
                    .forEach(
                            part -> {
                                int end = Math.min(order.length, (part + 1) * ROWS);
                                for (int set = 0; set < sets; set++) {
                                    for (int i = part * ROWS; i < end; i++) {
                                        if (order[i] >= 0) {
                                            int row = (int) order[i] - firstOutput;
                                            int at = i * rowInts + set * BLOCK_INTS;
                                            put(blocks, at, row, set, halves);
                                        }
                                    }
                                }
                            });
            NDArray stored = manager.create(blocks);
            long first = Torch.dataPointer(stored);
            long[] addresses =
                    IntStream.range(0, order.length)
                            .mapToLong(
                                    i ->
                                            order[i] < 0
                                                    ? 0
                                                    : first + (long) i * rowInts * Integer.BYTES)
                            .toArray();
            return new Blocks(CpuKernels.INT4_ZEROS, addresses, stored);
        }

        private void put(int[] blocks, int at, int row, int set, ShortBuffer halves) {
            int first = set * IN_BLOCK;
            int group = groups[first];
            int scale = halves.get(group * rows + row) & 0xffff;
            int zero = zero(group, row);
            // From 1 on, float16 has the exponent less 112, and 13 bits fewer.
            int half = zero == 0 ? 0 : (Float.floatToIntBits(zero) >> 13) - (112 << 10);
            blocks[at] = scale | half << 16;
            for (int i = 1; i < BLOCK_INTS; i++, first += 4) {
                blocks[at + i] = four(row, first) | four(row, first + IN_BLOCK / 2) << 4;
            }
        }

        /** Returns four numbers, one in the lower half of each byte. */
        private int four(int row, int column) {
            return number(row, column)
                    | number(row, column + 1) << 8
                    | number(row, column + 2) << 16
                    | number(row, column + 3) << 24;
        }

        private int number(int row, int column) {
            if (packsOutputs) {
                int output = firstOutput + row;
                int word =
                        (firstInput + column - readInput) * outputWords
                                + output / IN_WORD
                                - firstOutput / IN_WORD;
                return words[word] >>> 4 * INTERLEAVED[output % IN_WORD] & 15;
            }
            int input = firstInput + column;
            int word = (input / IN_WORD - readInput / IN_WORD) * rows + row;
            return words[word] >>> 4 * (input % IN_WORD) & 15;
        }

        private int zero(int group, int row) {
            int output = firstOutput + row;
            int word = group * outputWords + output / IN_WORD - firstOutput / IN_WORD;
            int place = output % IN_WORD;
            int stored = zeros[word] >>> 4 * (packsOutputs ? INTERLEAVED[place] : place) & 15;
            return format.layout() == Layout.GPTQ ? stored + 1 & 15 : stored;
        }
    }
}

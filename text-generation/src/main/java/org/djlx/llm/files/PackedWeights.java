// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.model.DerivedFiles;
import org.djlx.llm.model.PackedFormat;
import org.djlx.llm.model.PackedFormat.Layout;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Files whose linear layers have packed 4-bit weights: {@link PackedFormat}. A layer's {@code
 * .qweight}, {@code .qzeros}, {@code .scales} and {@code .g_idx} appear as one {@code .weight} of
 * shape (outputs, inputs), which is dequantised in float32 when it is read.
 */
final class PackedWeights extends DerivedFiles {

    private static final int IN_WORD = 8; // numbers of 4 bits in an integer
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

    /** Checks the shapes of a layer's tensors; returns its unpacked weight. */
    private TensorSpec unpacked(String layer) {
        long[] words = sizes(layer + WORDS, 2);
        boolean packsOutputs = format.layout() == Layout.AWQ;
        long inputs = words[0] * (packsOutputs ? 1 : IN_WORD);
        long outputs = words[1] * (packsOutputs ? IN_WORD : 1);
        long size = format.groupSize() == 0 ? inputs : format.groupSize();
        long groups = (inputs + size - 1) / size;
        requireShape(layer + SCALES, groups, outputs);
        requireShape(layer + ZEROS, groups, outputs / IN_WORD);
        if (files.contains(layer + GROUPS)) {
            requireShape(layer + GROUPS, inputs);
        }
        Required.check(
                outputs % IN_WORD == 0,
                "%s: %s has %d outputs, not a multiple of 8",
                files.file(layer + WORDS),
                layer,
                outputs);
        for (String each : List.of(WORDS, ZEROS)) {
            Required.check(
                    files.spec(layer + each).type() == ScalarType.INT32,
                    "%s: %s must have the type INT32",
                    files.file(layer + each),
                    files.spec(layer + each));
        }
        ScalarType type = files.spec(layer + SCALES).type();
        return TensorSpec.of(layer + ".weight", type, new Shape(outputs, inputs));
    }

    private long[] sizes(String name, int dimensions) {
        long[] sizes = files.spec(name).shape().getShape();
        Required.check(
                sizes.length == dimensions,
                "%s: %s must have %d dimensions",
                files.file(name),
                files.spec(name),
                dimensions);
        return sizes;
    }

    private void requireShape(String name, long... sizes) {
        Shape expected = new Shape(sizes);
        Required.check(
                files.spec(name).shape().equals(expected),
                "%s: %s must have the shape %s",
                files.file(name),
                files.spec(name),
                expected);
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
        Required.check(
                dimension >= 0
                        && dimension < 2
                        && from >= 0
                        && from <= to
                        && to <= shape.get(dimension),
                "%s has no indices %d to %d along dimension %d",
                spec(name),
                from,
                to,
                dimension);
        Range slice = new Range(from, to);
        Range outputs = dimension == 0 ? slice : new Range(0, shape.get(0));
        Range inputs = dimension == 1 ? slice : new Range(0, shape.get(1));
        try (NDManager manager = destination.getManager().newSubManager(Device.cpu());
                NDArray weights =
                        manager.create(
                                new Block(name, outputs, inputs, manager).weights(),
                                new Shape(outputs.count(), inputs.count()))) {
            Torch.copy(destination, weights);
        }
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

        Block(String name, Range outputs, Range inputs, NDManager manager) {
            this.outputs = outputs;
            this.inputs = inputs;
            Shape all = spec(name).shape();
            boolean someOutputs = outputs.count() < all.get(0);
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
            groups = groups(name, (int) (scales.length / Math.max(1, outputs.count())), manager);
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
            int rows = (int) outputs.count();
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

        private int number(int row, int column) {
            long output = outputs.from + row;
            long input = inputs.from + column;
            if (packsOutputs) {
                Range of = outputs.words();
                long word = column * of.count() + output / IN_WORD - of.from;
                return words[(int) word] >>> 4 * INTERLEAVED[(int) (output % IN_WORD)] & 15;
            }
            long word = (input / IN_WORD - inputs.words().from) * outputs.count() + row;
            return words[(int) word] >>> 4 * (input % IN_WORD) & 15;
        }

        private int zero(int group, int row) {
            long output = outputs.from + row;
            Range of = outputs.words();
            int word = zeros[(int) (group * of.count() + output / IN_WORD - of.from)];
            int place = (int) (output % IN_WORD);
            int stored = word >>> 4 * (packsOutputs ? INTERLEAVED[place] : place) & 15;
            return format.layout() == Layout.GPTQ ? stored + 1 & 15 : stored;
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.function.IntFunction;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.model.DerivedFiles;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Files of GPT-OSS, with a matrix for each expert in place of one tensor for all experts of a
 * layer. In the files, rows of gate and up alternate, and a tensor is stored
 *
 * <ul>
 *   <li>in MXFP4, {@code _blocks} of shape (experts, rows, groups, 16 bytes) and {@code _scales} of
 *       shape (experts, rows, groups). A group is 32 numbers of 4 bits, the lower half of a byte
 *       first, times a power of 2. Read as bfloat16, which is exact;
 *   <li>or in its type, of shape (experts, columns, rows).
 * </ul>
 */
final class GptOssWeights extends DerivedFiles {

    private static final Pattern EXPERTS =
            Pattern.compile("(.+\\.mlp\\.experts\\.)(gate_up|down)_proj(|_bias|_blocks|_scales)");

    private static final float[] FP4 = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    private static final int GROUP = 32;
    private static final long CHUNK = 1 << 20; // numbers that are read at a time

    /** Every {@code step}-th row of an expert, from {@code first} on. */
    private record Entry(TensorSpec spec, String stored, int expert, int first, int step) {

        NDIndex rows(long from, long count) {
            long begin = first + from * step;
            return new NDIndex().addSliceDim(begin, begin + (count - 1) * step + 1, step);
        }
    }

    private final Map<String, Entry> entries = new LinkedHashMap<>();

    private GptOssWeights(TensorFiles files) {
        super(files);
        for (TensorSpec spec : files.specs()) {
            Matcher name = EXPERTS.matcher(spec.name());
            if (!name.matches()) {
                specs.put(spec.name(), spec);
            } else if (name.group(2).equals("down")) {
                add(spec, name, "down_proj", 0, 1);
            } else {
                add(spec, name, "gate_proj", 0, 2);
                add(spec, name, "up_proj", 1, 2);
            }
        }
    }

    /** Returns the files, wrapped if they are of GPT-OSS. Takes ownership. */
    static TensorFiles of(TensorFiles files) {
        boolean isGptOss =
                files.specs().stream().anyMatch(s -> s.name().endsWith("gate_up_proj_bias"));
        return isGptOss ? new GptOssWeights(files) : files;
    }

    private void add(TensorSpec stored, Matcher name, String part, int first, int step) {
        long[] sizes = stored.shape().getShape();
        String kind = name.group(3);
        if (kind.equals("_scales")) {
            return;
        }
        boolean isPacked = kind.equals("_blocks");
        int dimensions = isPacked ? 4 : kind.isEmpty() ? 3 : 2;
        Required.check(
                sizes.length == dimensions && (!isPacked || sizes[3] == GROUP / 2),
                "the experts of %s must have %d dimensions, of blocks the last one 16",
                stored,
                dimensions);
        if (isPacked) {
            requireScales(stored);
        }
        long rows = sizes[kind.isEmpty() ? 2 : 1] / step;
        Shape shape =
                switch (kind) {
                    case "_bias" -> new Shape(rows);
                    case "_blocks" -> new Shape(rows, sizes[2] * GROUP);
                    default -> new Shape(rows, sizes[1]);
                };
        String suffix = kind.equals("_bias") ? ".bias" : ".weight";
        ScalarType type = isPacked ? ScalarType.BFLOAT16 : stored.type();
        for (int expert = 0; expert < sizes[0]; expert++) {
            String own = name.group(1) + expert + "." + part + suffix;
            TensorSpec spec = TensorSpec.of(own, type, shape);
            specs.put(own, spec);
            entries.put(own, new Entry(spec, stored.name(), expert, first, step));
        }
    }

    private void requireScales(TensorSpec blocks) {
        String name = scales(blocks.name());
        Shape expected = blocks.shape().slice(0, 3);
        Required.check(
                files.contains(name)
                        && files.spec(name).shape().equals(expected)
                        && files.spec(name).type() == ScalarType.UINT8
                        && blocks.type() == ScalarType.UINT8,
                "%s: %s must be UINT8, with %s of UINT8 and shape %s",
                files.file(blocks.name()),
                blocks,
                name,
                expected);
    }

    private static String scales(String blocks) {
        return blocks.replaceFirst("_blocks$", "_scales");
    }

    @Override
    protected String stored(String name) {
        return entries.containsKey(name) ? entries.get(name).stored : name;
    }

    @Override
    public void read(String name, int dimension, long from, long to, NDArray destination) {
        Entry entry = entries.get(name);
        if (entry == null) {
            super.read(name, dimension, from, to, destination);
            return;
        }
        long first = dimension == 0 ? from : 0;
        long rows = dimension == 0 ? to - from : entry.spec.shape().get(0);
        long step = Math.max(1, CHUNK * rows / Math.max(1, entry.spec.shape().size()));
        for (long done = 0; done < rows; done += step) {
            long count = Math.min(step, rows - done);
            try (NDManager manager = NDManager.newBaseManager(Device.cpu())) {
                NDArray numbers = rows(manager, entry, first + done, count);
                NDArray part = dimension == 0 ? numbers : Torch.narrow(numbers, 1, from, to - from);
                try (NDArray out = Torch.narrow(destination, 0, done, count)) {
                    Torch.copy(out, part);
                }
            }
        }
    }

    private NDArray rows(NDManager manager, Entry entry, long from, long count) {
        NDArray all = expert(manager, entry, entry.stored);
        NDIndex rows = entry.rows(from, count);
        if (entry.spec.shape().dimension() == 1) {
            return all.get(rows);
        }
        if (!entry.stored.endsWith("_blocks")) {
            return all.transpose().get(rows);
        }
        NDArray scales = expert(manager, entry, scales(entry.stored));
        NDArray powers = values(scales.get(rows), GptOssWeights::power);
        return values(all.get(rows), GptOssWeights::pair)
                .reshape(-1, GROUP)
                .mul(powers)
                .reshape(count, -1);
    }

    /** Returns an expert's part of a stored tensor. */
    private NDArray expert(NDManager manager, Entry entry, String stored) {
        TensorSpec spec = files.spec(stored);
        Shape shape = spec.shape().slice(1);
        return files.view(stored, 0, entry.expert, entry.expert + 1L, manager)
                .orElseGet(
                        () -> {
                            Shape whole = new Shape(1).addAll(shape);
                            NDArray copy = Torch.empty(manager, whole, spec.type());
                            files.read(stored, 0, entry.expert, entry.expert + 1L, copy);
                            return copy;
                        })
                .reshape(shape);
    }

    /** Looks up the values of each byte, a row for each. */
    private static NDArray values(NDArray bytes, IntFunction<float[]> decoder) {
        int width = decoder.apply(0).length;
        float[] table = new float[256 * width];
        for (int i = 0; i < 256; i++) {
            System.arraycopy(decoder.apply(i), 0, table, i * width, width);
        }
        NDArray index = bytes.toType(DataType.INT64, false).flatten();
        return bytes.getManager()
                .create(table, new Shape(256, width))
                .get(new NDIndex("{}", index));
    }

    private static float[] power(int code) {
        return new float[] {code == 255 ? Float.NaN : Math.scalb(1f, code - 127)};
    }

    private static float[] pair(int code) {
        return new float[] {number(code & 15), number(code >> 4)};
    }

    private static float number(int code) {
        return code < 8 ? FP4[code] : -FP4[code - 8];
    }

    /** Empty for experts. */
    @Override
    public Optional<NDArray> view(
            String name, int dimension, long from, long to, NDManager manager) {
        return entries.containsKey(name)
                ? Optional.empty()
                : super.view(name, dimension, from, to, manager);
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.norm.LayerNorm;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.regex.Pattern;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.model.EncoderConfig;
import org.djlx.nativeops.torch.Torch;

/** Reads the weights of an encoder, and owns their memory. Names are without the file's prefix. */
final class EncoderWeights implements AutoCloseable {

    /** What files may have beside the encoder: heads of other tasks, and constants. */
    private static final Pattern UNUSED =
            Pattern.compile(
                    "(pooler|cls|lm_head|head|decoder|classifier|predictions)\\..*"
                            + "|.*position_ids|.*\\.inv_freq|logit_scale");

    private static final List<String> PREFIXES = List.of("", "bert.", "roberta.", "model.");

    private final Path directory;
    private final TensorFiles files;
    private final EncoderConfig.Sizes sizes;
    private final NDManager manager;
    private final String prefix;
    private final Set<String> read = new HashSet<>();

    /** A projection: {@code weight} of shape (outputs, inputs), as in the files. */
    record Projection(NDArray weight, NDArray bias) {}

    /** A layer norm. */
    record Norm(NDArray weight, NDArray bias, float epsilon) {

        NDArray apply(NDArray x) {
            return LayerNorm.layerNorm(x, weight.getShape(), weight, bias, epsilon)
                    .singletonOrThrow();
        }
    }

    /** {@code files} may be closed when all weights are read. */
    EncoderWeights(Path directory, TensorFiles files, EncoderConfig.Sizes sizes, Device device) {
        this.directory = directory;
        this.files = files;
        this.sizes = sizes;
        manager = NDManager.newBaseManager(device);
        prefix =
                PREFIXES.stream().filter(each -> hasEmbeddings(files, each)).findFirst().orElse("");
    }

    private static boolean hasEmbeddings(TensorFiles files, String prefix) {
        return files.specs().stream()
                .anyMatch(spec -> spec.name().startsWith(prefix + "embeddings."));
    }

    NDManager manager() {
        return manager;
    }

    /** Reads a tensor. */
    NDArray array(String name, long... shape) {
        NDArray array = Torch.empty(manager, new Shape(shape), sizes.type());
        readInto(array, name);
        return array;
    }

    private void readInto(NDArray to, String name) {
        String full = prefix + name;
        Shape shape = to.getShape();
        check(files.contains(full), "the weights have no tensor '%s' of shape %s", full, shape);
        TensorSpec spec = files.spec(full);
        check(
                spec.shape().equals(shape),
                "the tensor '%s' has the shape %s, but config.json requires %s",
                full,
                spec.shape(),
                shape);
        files.read(full, 0, 0, shape.get(0), to);
        read.add(full);
    }

    private void check(boolean condition, String problem, Object... values) {
        if (!condition) {
            throw new IllegalArgumentException(
                    directory
                            + ": "
                            + problem.formatted(values)
                            + "; take weights and config.json from the same model");
        }
    }

    /** Reads a projection with its bias; of several names, one below the other. */
    Projection projection(long inputs, long outputs, String... names) {
        long rows = outputs / names.length;
        NDArray weight = Torch.empty(manager, new Shape(outputs, inputs), sizes.type());
        NDArray bias = Torch.empty(manager, new Shape(outputs), sizes.type());
        for (int i = 0; i < names.length; i++) {
            try (NDArray part = Torch.narrow(weight, 0, i * rows, rows);
                    NDArray partOfBias = Torch.narrow(bias, 0, i * rows, rows)) {
                readInto(part, names[i] + ".weight");
                readInto(partOfBias, names[i] + ".bias");
            }
        }
        return new Projection(weight, bias);
    }

    Projection projectionWithoutBias(long inputs, long outputs, String name) {
        return new Projection(array(name + ".weight", outputs, inputs), null);
    }

    Norm norm(String name) {
        NDArray bias = array(name + ".bias", sizes.hidden());
        return new Norm(array(name + ".weight", sizes.hidden()), bias, (float) sizes.epsilon());
    }

    Norm normWithoutBias(String name) {
        NDArray weight = array(name + ".weight", sizes.hidden());
        return new Norm(weight, Torch.zerosLike(weight), (float) sizes.epsilon());
    }

    /** Throws an {@link IllegalArgumentException} if the files have weights of other layers. */
    void checkAllRead() {
        for (TensorSpec spec : files.specs()) {
            String name = spec.name();
            boolean own = name.startsWith(prefix) && !read.contains(name);
            check(
                    !own || UNUSED.matcher(name.substring(prefix.length())).matches(),
                    "%s has a tensor '%s', which a model with this config.json does not have",
                    files.file(name),
                    name);
        }
    }

    @Override
    public void close() {
        manager.close();
    }
}

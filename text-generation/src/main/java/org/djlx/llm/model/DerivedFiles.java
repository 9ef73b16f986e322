// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.nio.file.Path;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.collectives.safetensors.TensorSpec;

/**
 * Files whose tensors are those of other files, under other names. A subclass may compute some of
 * them: it then overrides {@link #read} and {@link #view}.
 */
public abstract class DerivedFiles implements TensorFiles {

    protected final TensorFiles files;

    /** The tensors, by name. Subclasses add them. */
    protected final Map<String, TensorSpec> specs = new LinkedHashMap<>();

    /** Takes ownership of the files. */
    protected DerivedFiles(TensorFiles files) {
        this.files = files;
    }

    /** {@return the name of the stored tensor that a tensor is, or is computed from} */
    protected abstract String stored(String name);

    @Override
    public final Collection<TensorSpec> specs() {
        return specs.values();
    }

    @Override
    public final boolean contains(String name) {
        return specs.containsKey(name);
    }

    @Override
    public final TensorSpec spec(String name) {
        TensorSpec spec = specs.get(name);
        return spec == null ? files.spec(stored(name)) : spec;
    }

    @Override
    public final Path file(String name) {
        return files.file(stored(name));
    }

    @Override
    public void read(String name, int dimension, long from, long to, NDArray destination) {
        files.read(stored(name), dimension, from, to, destination);
    }

    @Override
    public Optional<NDArray> view(
            String name, int dimension, long from, long to, NDManager manager) {
        return files.view(stored(name), dimension, from, to, manager);
    }

    @Override
    public final void populate() {
        files.populate();
    }

    @Override
    public final void close() {
        files.close();
    }
}

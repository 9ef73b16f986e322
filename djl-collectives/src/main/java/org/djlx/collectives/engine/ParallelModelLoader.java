// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.engine;

import ai.djl.Device;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Map;

/**
 * Loads models that are divided among ranks, such as large language models. The engine {@code
 * PyTorch-P2P} finds loaders by {@link java.util.ServiceLoader} and uses the first that accepts a
 * model's directory. If no loader accepts it, DJL's PyTorch engine loads the model.
 */
public interface ParallelModelLoader {

    /** {@return whether this loader accepts a directory} Looks at file names only. */
    boolean canLoad(Path directory);

    /**
     * Returns the directory of a model that the option {@code model_id} names otherwise than by a
     * directory of this host, such as by its name on a hub. May download the model.
     *
     * @param options as {@link #load} gets them, without those that this method removes
     * @return null if the loader does not know such names
     * @throws IllegalArgumentException if the options are invalid
     */
    default Path directory(String modelId, Map<String, ?> options) throws IOException {
        return null;
    }

    /**
     * Loads a model.
     *
     * @param directory its directory; the option {@code model_id} names another one than the
     *     model's own
     * @param device the CPU, a GPU, or several GPUs as {@link Device#getDevices()}
     * @param options the options of {@link ai.djl.Model#load(Path, String, Map)}; in {@code
     *     serving.properties} their names begin with {@code option.}. Without {@code model_id}
     * @return the model, to be closed
     * @throws IOException if a file cannot be read
     * @throws IllegalArgumentException if the files or the options are invalid
     */
    ParallelModel load(String name, Path directory, Device device, Map<String, ?> options)
            throws IOException;
}

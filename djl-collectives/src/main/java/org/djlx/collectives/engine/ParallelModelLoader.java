/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.engine;

import ai.djl.Device;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Map;

/**
 * Loads models that are divided among ranks, such as large language models. The engine {@code
 * PyTorch-P2P} finds loaders by {@link java.util.ServiceLoader}, and asks the first that knows a
 * model's directory; DJL's PyTorch engine loads what none knows.
 */
public interface ParallelModelLoader {

    /**
     * Tells whether a directory is for this loader. Looks at its files' names at most.
     *
     * @param directory the model's directory
     * @return whether it is
     */
    boolean canLoad(Path directory);

    /**
     * Loads a model.
     *
     * @param name the model's name
     * @param directory its directory
     * @param device where it is to be: the CPU, a GPU, or several as {@link Device#getDevices()}
     * @param options the options of {@link ai.djl.Model#load(Path, String, Map)}; in {@code
     *     serving.properties} they begin with {@code option.}
     * @return the model, to be closed
     * @throws IOException if a file cannot be read
     * @throws IllegalArgumentException if the files or the options are wrong
     */
    ParallelModel load(String name, Path directory, Device device, Map<String, ?> options)
            throws IOException;
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import java.io.IOException;
import java.nio.file.Path;
import org.djlx.llm.files.ModelHub;
import org.slf4j.Logger;

/** Where the model of a builder comes from. */
interface ModelSource {

    /** Returns the model's directory, or its GGUF file. Downloads the model if it has to. */
    Path directory() throws IOException;

    static ModelSource missing() {
        return () -> {
            throw new IllegalArgumentException(
                    "set the model's directory or its name: setDirectory or setModel");
        };
    }

    /** A name on a hub, a directory or a GGUF file; {@code log} gets the progress of a download. */
    static ModelSource named(String model, Logger log) {
        return () ->
                ModelHub.builder()
                        .optProgress(new LoadingProgress(log::info))
                        .build()
                        .directory(model);
    }
}

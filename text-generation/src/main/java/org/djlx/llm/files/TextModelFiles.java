// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import java.util.HashMap;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.model.DerivedFiles;

/**
 * The language model in files of a model for images and text, under the names that a language model
 * has alone. The other tensors are left out.
 */
final class TextModelFiles extends DerivedFiles {

    /** Names of transformers 4, which published files have, and of transformers 5. */
    private static final Pattern OWN =
            Pattern.compile(
                    "language_model\\.(model\\..+|lm_head\\..+)"
                            + "|model\\.language_model\\.(.+)"
                            + "|(lm_head\\..+)");

    private final Map<String, String> stored = new HashMap<>(); // names in the files

    private TextModelFiles(TensorFiles files) {
        super(files);
        for (TensorSpec each : files.specs()) {
            Matcher own = OWN.matcher(each.name());
            if (own.matches()) {
                String inner = own.group(2);
                String outer = own.group(1) == null ? own.group(3) : own.group(1);
                String name = inner == null ? outer : "model." + inner;
                stored.put(name, each.name());
                specs.put(name, new TensorSpec(name, each.dtype(), each.shape()));
            }
        }
    }

    /** Returns the files, wrapped if they are of a model for images. Takes ownership. */
    static TensorFiles of(TensorFiles files) {
        boolean hasImages =
                files.specs().stream()
                        .anyMatch(each -> each.name().matches("(model\\.)?language_model\\..+"));
        return hasImages ? new TextModelFiles(files) : files;
    }

    @Override
    protected String stored(String name) {
        return stored.getOrDefault(name, name);
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;
import org.djlx.nativeops.torch.ScalarType;

/**
 * A random tiny model, and what transformers computes with it: a folder of {@code
 * src/test/python/make_fixtures.py}, which describes the fields.
 */
public record ModelFixture(String transformers, List<Case> cases) {

    /** A prompt with its greedy continuation. */
    public record Case(
            int[] prompt,
            int[] tokens,
            double[] logprobs,
            List<Top> top,
            double gap,
            double bfloat16,
            double cache) {

        public int length() {
            return prompt.length + tokens.length;
        }
    }

    /** The most likely tokens of a step. */
    public record Top(int[] tokens, double[] logprobs) {}

    private static Path folder() {
        try {
            return Path.of(ModelFixture.class.getResource("fixtures").toURI());
        } catch (URISyntaxException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Returns the names of all fixtures. */
    public static List<String> names() throws IOException {
        try (Stream<Path> folders = Files.list(folder())) {
            return folders.map(each -> each.getFileName().toString()).sorted().toList();
        }
    }

    public static ModelFixture read(String name) throws IOException {
        String json = Files.readString(folder().resolve(name).resolve("expected.json"));
        return new Gson().fromJson(json, ModelFixture.class);
    }

    /** Writes the model's files to a directory, to be computed in a type. */
    public static Path write(String name, Path directory, ScalarType type) throws IOException {
        JsonObject config = config(name);
        config.addProperty("dtype", type.name().toLowerCase());
        Files.writeString(directory.resolve("config.json"), config.toString());
        for (String file : List.of("generation_config.json", "model.safetensors")) {
            Files.copy(folder().resolve(name).resolve(file), directory.resolve(file));
        }
        return directory;
    }

    public static JsonObject config(String name) throws IOException {
        String json = Files.readString(folder().resolve(name).resolve("config.json"));
        return JsonParser.parseString(json).getAsJsonObject();
    }
}

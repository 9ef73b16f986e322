// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.nativeops.torch.ScalarType;

/** A tokenizer with a token for each byte, which has that byte's value, and two special ones. */
public final class ByteTokens {

    public static final int BEGIN = 256;
    public static final int END = 257;
    public static final int VOCABULARY = 258;

    private ByteTokens() {}

    /** Writes a small random Llama in float32 that has this tokenizer. */
    public static void writeModel(Path directory, long seed) throws IOException {
        LlamaFiles.write(
                directory, LlamaFiles.config(ScalarType.FLOAT32, true, VOCABULARY, END), seed);
        write(directory);
    }

    public static void write(Path directory) throws IOException {
        JsonObject vocabulary = new JsonObject();
        int others = 256;
        for (int value = 0; value < 256; value++) {
            // As GPT-2 writes bytes: those that cannot be seen are moved.
            boolean visible = value > 32 && value < 127 || value > 160 && value != 173;
            vocabulary.addProperty(String.valueOf((char) (visible ? value : others++)), value);
        }
        JsonObject model = new JsonObject();
        model.addProperty("type", "BPE");
        model.add("vocab", vocabulary);
        model.add("merges", new JsonArray());
        JsonObject bytes = new JsonObject();
        bytes.addProperty("type", "ByteLevel");
        bytes.addProperty("add_prefix_space", false);
        bytes.addProperty("trim_offsets", false);
        bytes.addProperty("use_regex", false);
        JsonArray special = new JsonArray();
        special.add(special("<s>", BEGIN));
        special.add(special("</s>", END));
        JsonObject json = new JsonObject();
        json.addProperty("version", "1.0");
        json.add("added_tokens", special);
        json.add("pre_tokenizer", bytes);
        json.add("post_processor", template());
        json.add("decoder", bytes);
        json.add("model", model);
        Files.writeString(directory.resolve("tokenizer.json"), json.toString());
    }

    private static JsonObject special(String text, int id) {
        JsonObject token = new JsonObject();
        token.addProperty("id", id);
        token.addProperty("content", text);
        for (String flag : new String[] {"single_word", "lstrip", "rstrip", "normalized"}) {
            token.addProperty(flag, false);
        }
        token.addProperty("special", true);
        return token;
    }

    /** Puts the token that begins a text before it. */
    private static JsonObject template() {
        JsonObject begin = new JsonObject();
        begin.addProperty("id", "<s>");
        JsonObject text = new JsonObject();
        text.addProperty("id", "A");
        JsonArray single = new JsonArray();
        for (JsonObject part : new JsonObject[] {begin, text}) {
            part.addProperty("type_id", 0);
            JsonObject item = new JsonObject();
            item.add(part == begin ? "SpecialToken" : "Sequence", part);
            single.add(item);
        }
        JsonArray ids = new JsonArray();
        ids.add(BEGIN);
        JsonArray tokens = new JsonArray();
        tokens.add("<s>");
        JsonObject entry = new JsonObject();
        entry.addProperty("id", "<s>");
        entry.add("ids", ids);
        entry.add("tokens", tokens);
        JsonObject specials = new JsonObject();
        specials.add("<s>", entry);
        JsonObject template = new JsonObject();
        template.addProperty("type", "TemplateProcessing");
        template.add("single", single);
        template.add("pair", new JsonArray());
        template.add("special_tokens", specials);
        return template;
    }
}

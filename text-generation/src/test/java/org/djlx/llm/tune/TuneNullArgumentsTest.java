// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.tune;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDManager;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Callable;
import java.util.function.Supplier;
import org.djlx.collectives.NullArguments;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.llm.engine.ByteTokens;
import org.djlx.training.nn.Lora;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Null is either allowed or an {@link IllegalArgumentException}, wherever users may pass it. */
@Timeout(120)
class TuneNullArgumentsTest {

    @Test
    void neverEndInNullPointerExceptions(@TempDir Path folder) throws IOException {
        ByteTokens.writeModel(folder, 1);
        Path file = folder.resolve("chats.jsonl");
        Files.writeString(file, "{\"messages\": [{\"role\": \"assistant\", \"content\": \"Hi\"}]}");
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                ProcessGroup group = ProcessGroups.local(1).get(0)) {
            Supplier<ChatDataset.Builder> chats =
                    () ->
                            ChatDataset.builder()
                                    .setFile(file)
                                    .setDirectory(folder)
                                    .setSampling(1, false);
            Supplier<TrainableModel.Builder> models =
                    () -> TrainableModel.builder().setGroup(group).setDirectory(folder);
            NullArguments nulls =
                    new NullArguments()
                            .sample(ProcessGroup.class, () -> group)
                            .sample(NDManager.class, () -> manager)
                            .sample(Path.class, () -> folder.resolve("out"))
                            .sample(ChatDataset.class, () -> unchecked(chats.get()::build))
                            .sample(ChatDataset.Builder.class, chats)
                            .sample(TrainableModel.Builder.class, models)
                            .sample(
                                    TrainableModel.class,
                                    () -> unchecked(models.get().optLora(Lora.of(1))::build));
            assertEquals("", String.join("\n", nulls.check(TrainableModel.class)));
            assertTrue(nulls.calls() > 10, "" + nulls.calls());
        }
    }

    private static <T> T unchecked(Callable<T> maker) {
        try {
            return maker.call();
        } catch (Exception e) {
            throw new AssertionError(e);
        }
    }
}

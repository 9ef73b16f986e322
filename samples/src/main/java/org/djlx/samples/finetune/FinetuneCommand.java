// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.finetune;

import static org.djlx.collectives.launch.cli.UsageException.parsed;
import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import ai.djl.util.Utils;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.launch.cli.CliCommand;
import org.djlx.collectives.launch.cli.RankOptions;
import org.djlx.collectives.launch.cli.Ranks;
import org.djlx.llm.ChatModel;
import org.djlx.llm.ChatRequest;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.model.LoraConfig;
import org.djlx.llm.text.ChatTemplate.Message;
import org.djlx.llm.tune.ChatDataset;
import org.djlx.llm.tune.TrainableModel;
import org.djlx.training.nn.Lora;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/** {@code finetune}: trains a model on chats. */
@Command(
        name = "finetune",
        description = {
            "Fine-tunes a Llama, Mistral or Qwen in Hugging Face's layout on chats, whole or by a"
                    + " LoRA adapter, and shows its answer to a question before and after.",
            "Example: samples/run.sh serve-model tiny && samples/run.sh finetune tiny --data"
                    + " chats.jsonl --lora 8 --save tuned && samples/run.sh serve tuned"
        })
public final class FinetuneCommand extends CliCommand {

    @Parameters(paramLabel = "DIR", description = "Model directory; serve-model writes a tiny one.")
    private Path directory;

    @Option(
            names = "--data",
            required = true,
            paramLabel = "FILE",
            description =
                    "Chats in JSONL: {\"messages\": [{\"role\": \"user\", \"content\": …},"
                            + " {\"role\": \"assistant\", \"content\": …}]} on each line.")
    private Path data;

    @Option(
            names = "--lora",
            paramLabel = "RANK",
            description = "Rank of a LoRA adapter to train; if not given, all weights are trained.")
    private Integer rank;

    @Option(
            names = "--lora-alpha",
            paramLabel = "A",
            description = "Scales the adapter by A / RANK; twice the rank if not given.")
    private Double alpha;

    @Option(
            names = "--lora-dropout",
            paramLabel = "P",
            description = "Part of the adapter's inputs that a step leaves out.")
    private double dropout;

    @Option(
            names = "--target-modules",
            split = ",",
            paramLabel = "NAME",
            description =
                    "Projections that have an adapter, such as q_proj,v_proj; all if not given.")
    private List<String> targets = TrainableModel.TARGETS;

    @Option(
            names = "--rslora",
            description = "Scales the adapter by A / sqrt(RANK), for high ranks.")
    private boolean rsLora;

    @Option(names = "--steps", description = "Batches to train on.")
    private int steps = 150;

    @Option(names = "--batch", description = "Chats in a batch.")
    private int batch = 8;

    @Option(
            names = "--learning-rate",
            paramLabel = "R",
            description = "Learning rate of AdamW; 0.003 with --lora and 0.0003 without.")
    private Float learningRate;

    @Option(names = "--seed", description = "Seed of the adapter and of the order of chats.")
    private long seed = 1;

    @Option(
            names = "--save",
            paramLabel = "OUT",
            description =
                    "Keeps the result: a model directory, with the adapter merged into the weights,"
                            + " and the adapter in OUT/adapter, in PEFT's layout.")
    private Path out;

    @Option(
            names = "--ask",
            paramLabel = "TEXT",
            description = "Question to ask before and after; default: that of the first chat.")
    private String question;

    @Option(names = "--max-tokens", description = "Maximum number of tokens of an answer.")
    private int maxTokens = 64;

    @Mixin
    private final RankOptions options =
            new RankOptions().ranks(1, "Ranks that divide the model; 1 if not given.").device();

    @Override
    public Integer call() throws Exception {
        options.check();
        refuseIf(
                steps < 1 || batch < 1 || maxTokens < 1,
                "--steps, --batch and --max-tokens must be 1 or more, not %d, %d and %d"
                        .formatted(steps, batch, maxTokens));
        refuseIf(
                learningRate != null && !(learningRate > 0),
                "--learning-rate must be above 0, not " + learningRate);
        readFile(data);
        refuseIf(
                !Files.exists(directory.resolve("tokenizer.json")),
                "%s is not a model directory with a tokenizer.json; serve-model writes one"
                        .formatted(directory.toAbsolutePath()));
        refuseIf(
                out != null && Files.exists(out) && Files.isSameFile(out, directory),
                "--save must name another directory than DIR, which would be overwritten");
        Ranks ranks = options.here();
        refuseIf(ranks.areProcesses(), "finetune runs its ranks as threads: leave out launch");
        Lora lora = rank == null ? null : parsed(this::lora);
        refuseIf(
                rank == null
                        && (alpha != null
                                || dropout != 0
                                || rsLora
                                || !targets.equals(TrainableModel.TARGETS)),
                "--lora-alpha, --lora-dropout, --target-modules and --rslora are for adapters: add"
                        + " --lora RANK");
        float rate = learningRate != null ? learningRate : lora == null ? 3e-4f : 3e-3f;
        // Checks the chats before the model is loaded.
        parsed(
                () ->
                        ChatDataset.builder()
                                .setFile(data)
                                .setDirectory(directory)
                                .setSampling(batch, false)
                                .build());
        List<Message> chat = question == null ? firstQuestion() : List.of(user(question));
        print("Question: %s%n", chat.get(chat.size() - 1).content());
        print("Before:   %s%n%n", answer(directory, chat));
        Path result = out == null ? Files.createTempDirectory("djlx-finetune-") : out;
        try {
            FinetuneJob job =
                    new FinetuneJob(
                            directory,
                            data,
                            lora,
                            steps,
                            batch,
                            rate,
                            seed,
                            result,
                            line -> print("%s%n", line));
            ranks.run(
                    options.deviceKind().backend(),
                    group -> {
                        job.run(group);
                        return null;
                    });
            print("%nAfter:    %s%n", answer(result, chat));
        } finally {
            if (out == null) {
                Utils.deleteQuietly(result);
            }
        }
        if (out != null) {
            print("%nWrote the model to %s", out);
            print(lora == null ? "%n" : " and the adapter to %s%n", out.resolve("adapter"));
        }
        return 0;
    }

    private Lora lora() {
        double scale = alpha == null ? 2.0 * rank : alpha;
        return TrainableModel.lora(new LoraConfig(rank, scale, rsLora, dropout, targets));
    }

    private static Message user(String text) {
        return new Message("user", text);
    }

    /** Returns the messages before the first answer of the first chat. */
    private List<Message> firstQuestion() throws Exception {
        String line =
                Files.readAllLines(data).stream().filter(each -> !each.isBlank()).findFirst().get();
        List<Message> chat = new ArrayList<>();
        for (JsonElement each :
                JsonParser.parseString(line).getAsJsonObject().getAsJsonArray("messages")) {
            JsonObject message = each.getAsJsonObject();
            if (message.get("role").getAsString().equals("assistant")) {
                break;
            }
            chat.add(
                    new Message(
                            message.get("role").getAsString(),
                            message.get("content").getAsString()));
        }
        return chat.isEmpty() ? List.of(user("")) : chat;
    }

    /** Returns a model's most probable answer. */
    private String answer(Path files, List<Message> chat) throws Exception {
        ChatRequest.Builder request =
                ChatRequest.builder()
                        .optGeneration(own -> own.optMaxTokens(maxTokens).optTemperature(0));
        chat.forEach(request::addMessage);
        try (TextEngine engine = parsed(() -> TextEngine.builder().setDirectory(files).build());
                ChatModel model = ChatModel.of(engine)) {
            String text = parsed(() -> model.chat(request.build())).content();
            // Control characters would disturb the terminal.
            return text.replaceAll("[\\p{Cc}&&[^\n]]", "·");
        }
    }
}

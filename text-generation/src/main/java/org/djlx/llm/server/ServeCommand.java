// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.djlx.collectives.launch.cli.UsageException.parsed;
import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.function.IntSupplier;
import org.djlx.collectives.launch.cli.CliCommand;
import org.djlx.llm.engine.EmbeddingEngine;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.model.EmbeddingConfig;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.llm.text.ReasoningFormat;
import org.djlx.llm.text.ToolFormat;
import org.slf4j.LoggerFactory;
import picocli.CommandLine.Command;
import picocli.CommandLine.Help.Visibility;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/** {@code serve}: serves a model over HTTP to OpenAI's clients and to browsers. */
@Command(
        name = "serve",
        description = {
            "Serves a language model or an embedding model over HTTP: /v1/chat/completions,"
                    + " /v1/completions, /v1/responses, /v1/embeddings and /v1/models for OpenAI's"
                    + " clients, /tokenize and /detokenize as vLLM, /invocations for DJL Serving's"
                    + " clients, /health, /metrics for Prometheus, and a page to chat with at /.",
            "If the environment variable DJLX_SERVE_TOKEN is set, clients must send it as"
                    + " 'Authorization: Bearer TOKEN'. SIGTERM lets answers end before it stops."
        })
public final class ServeCommand extends CliCommand {

    private static final String TOKEN = "DJLX_SERVE_TOKEN";

    @Parameters(paramLabel = "MODEL", description = ModelOptions.MODEL)
    private String modelId;

    @Mixin private ModelOptions model;

    @Option(names = "--host", description = "The address to listen on.")
    private String host = "127.0.0.1";

    @Option(names = "--port", description = "The port; 0 for any.")
    private int port = 8080;

    @Option(
            names = "--allowed-host",
            paramLabel = "NAME",
            showDefaultValue = Visibility.NEVER,
            description =
                    "Another host name that clients may use, such as a service's or a proxy's;"
                            + " repeatable. Without a token, only localhost, IP addresses, --host"
                            + " and these are allowed.")
    private List<String> allowedHosts = List.of();

    @Option(
            names = "--name",
            description =
                    "The model's name in the API; that on the hub, or the directory's, if not"
                            + " given.")
    private String name;

    @Option(
            names = "--tool-call-parser",
            paramLabel = "FORMAT",
            description =
                    "How the model writes calls of tools: llama3_json, hermes or mistral. Without"
                            + " it, the chat template says so, or the model takes no tools.")
    private String toolCallParser;

    @Option(
            names = "--reasoning-parser",
            paramLabel = "FORMAT",
            description =
                    "How the model writes its reasoning, by vLLM's names: deepseek_r1, qwen3,"
                            + " mistral, openai_gptoss, seed_oss and others. Without it, the chat"
                            + " template says so, or answers are content only.")
    private String reasoningParser;

    @Option(
            names = "--lora",
            paramLabel = "NAME=DIR",
            showDefaultValue = Visibility.NEVER,
            description =
                    "A directory with a LoRA adapter in PEFT's layout. Requests choose it with NAME"
                            + " as their model. Repeatable.")
    private List<String> adapters = List.of();

    @Option(
            names = "--allow-runtime-lora-updating",
            description =
                    "Let clients load and remove adapters with /v1/load_lora_adapter and"
                            + " /v1/unload_lora_adapter, like vLLM's"
                            + " VLLM_ALLOW_RUNTIME_LORA_UPDATING. Clients can then name any"
                            + " directory that this process can read.")
    private boolean updatesAdapters;

    @Option(
            names = "--embedding-model",
            paramLabel = "MODEL",
            description =
                    "A model for /v1/embeddings beside MODEL, on the same ranks. A MODEL that is"
                            + " for embeddings needs none.")
    private String embeddingModel;

    @Option(names = "--max-body", paramLabel = "BYTES", description = "Largest request.")
    private int maxBody = 1048576;

    @Option(
            names = "--max-buffered",
            paramLabel = "BYTES",
            description =
                    "Most bytes of requests, and of answers with embeddings, in memory, of all"
                            + " connections.")
    private int maxBuffered = 67108864;

    @Option(names = "--max-connections", description = "Most open connections.")
    private int maxConnections = 1024;

    @Option(
            names = "--request-timeout",
            description = "How long a client may take to send a request, or be idle.")
    private int requestTimeout = 30;

    @Option(names = "--answer-timeout", description = "How long an answer may take.")
    private int answerTimeout = 300;

    @Option(names = "--shutdown-timeout", description = "How long answers may go on after SIGTERM.")
    private int shutdownTimeout = 10;

    @Override
    public Integer call() throws Exception {
        refuseIf(name != null && name.isBlank(), "--name must not be empty");
        ServerOptions options = options();
        ToolFormat tools =
                toolCallParser == null ? null : parsed(() -> ToolFormat.named(toolCallParser));
        ReasoningFormat reasoning =
                reasoningParser == null
                        ? null
                        : parsed(() -> ReasoningFormat.named(reasoningParser));
        LoggerFactory.getILoggerFactory(); // slf4j drops what is logged while it starts.
        model.check();
        if (model.ranks().here().contains(0)) {
            GenerationServer.checkAddress(options); // Before loading, which may take minutes.
        }
        Path directory = model.directory(modelId);
        if (EmbeddingConfig.isEmbeddingModel(directory)) {
            refuseIf(embeddingModel != null, "--embedding-model is for models that generate text");
            refuseIf(
                    !adapters.isEmpty() || updatesAdapters,
                    "LoRA adapters are for models that generate text");
            try (EmbeddingEngine embedder = model.loadEmbeddings(directory)) {
                serve(
                        List.of(embedder(modelId, name, embedder)),
                        options,
                        () -> 0,
                        embedder::close);
            }
            return 0;
        }
        Path second = embeddingModel == null ? null : model.directory(embeddingModel);
        // Takes about as long as loading libtorch.
        FutureTask<ChatTemplate> reading = new FutureTask<>(() -> ChatTemplate.of(directory));
        new Thread(reading, "chat-template").start();
        model.requireTokenizer(directory);
        ChatTemplate template = result(reading);
        Map<String, Path> loras = adapters();
        try (TextEngine generator =
                model.load(
                        directory,
                        builder -> {
                            loras.forEach(builder::optAdapter);
                            return builder;
                        })) {
            if (generator.isFollower()) {
                // SIGTERM reaches all ranks; close() waits for rank 0, which still needs this one.
                Runtime.getRuntime().addShutdownHook(new Thread(generator::close, "serve-end"));
                generator.awaitEnd();
                return 0;
            }
            TextApi api = new TextApi(modelName(), generator, template, tools, reasoning);
            List<ServedModel> models = new ArrayList<>();
            models.add(new ServedModel.Generator(api, generator, updatesAdapters));
            try (EmbeddingEngine embedder = second == null ? null : model.loadEmbeddings(second)) {
                if (embedder != null) {
                    models.add(embedder(embeddingModel, null, embedder));
                }
                serve(models, options, () -> generator.statistics().running(), generator::close);
            }
        }
        return 0;
    }

    /** Returns the directories of --lora by the adapters' names. */
    private Map<String, Path> adapters() {
        Map<String, Path> directories = new LinkedHashMap<>();
        for (String each : adapters) {
            String[] pair = each.split("=", 2);
            refuseIf(pair.length < 2, "--lora must be NAME=DIR, not '%s'".formatted(each));
            refuseIf(
                    pair[0].equals(modelName()),
                    "--lora %s: the adapter has the model's name; give it another one, or --name"
                            .formatted(pair[0]));
            refuseIf(
                    directories.put(pair[0], Path.of(pair[1])) != null,
                    "--lora names two adapters '%s'; give one of them another name"
                            .formatted(pair[0]));
        }
        return directories;
    }

    private static ServedModel embedder(String id, String name, EmbeddingEngine model) {
        String shown = name == null ? modelName(id) : name;
        return new ServedModel.Embedder(new EmbeddingApi(shown, model), model);
    }

    private void serve(
            List<ServedModel> models, ServerOptions options, IntSupplier running, Runnable close)
            throws Exception {
        try (GenerationServer server = new GenerationServer(models, options)) {
            Runtime.getRuntime().addShutdownHook(ending(server, running, close));
            say(server);
            server.await();
        }
    }

    /** Returns the result of a task; throws the exception of a task that has failed. */
    private static <T> T result(FutureTask<T> task) throws Exception {
        try {
            return task.get();
        } catch (ExecutionException e) {
            throw e.getCause() instanceof Exception cause ? cause : e;
        }
    }

    /** Returns the shutdown hook, which closes the server, then the model. */
    private Thread ending(GenerationServer server, IntSupplier answers, Runnable close) {
        return new Thread(
                () -> {
                    int running = answers.getAsInt();
                    if (running > 0) {
                        err().printf(
                                        "Stopping: %d running answers have %d s to end%n",
                                        running, shutdownTimeout)
                                .flush();
                    }
                    server.close();
                    close.run();
                },
                "serve-end");
    }

    private String modelName() {
        return name == null ? modelName(modelId) : name;
    }

    private static String modelName(String modelId) {
        Path path = Path.of(modelId);
        return Files.exists(path)
                ? path.toAbsolutePath().normalize().getFileName().toString().replace(".gguf", "")
                : modelId;
    }

    private ServerOptions options() {
        return parsed(
                () ->
                        new ServerOptions(
                                host,
                                port,
                                System.getenv(TOKEN),
                                allowedHosts,
                                maxBody,
                                maxBuffered,
                                maxConnections,
                                Duration.ofSeconds(requestTimeout),
                                Duration.ofSeconds(answerTimeout),
                                Duration.ofSeconds(shutdownTimeout)));
    }

    private void say(GenerationServer server) {
        String shown = host.contains(":") ? '[' + host + ']' : host;
        print("Serving %s at http://%s:%d/%n", modelName(), shown, server.port());
        if (System.getenv(TOKEN) == null && !server.listensOnLoopback()) {
            print(
                    "Warning: anyone who reaches this port can use the model; set %s to require a"
                            + " token.%n",
                    TOKEN);
        }
    }
}

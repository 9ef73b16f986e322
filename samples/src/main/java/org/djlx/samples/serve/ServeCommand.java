/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.serve;

import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.Callable;
import org.djlx.fusedops.llm.TextGenerator;
import org.djlx.fusedops.llm.api.TextApi;
import org.djlx.fusedops.llm.engine.LlamaGenerator;
import org.djlx.fusedops.llm.text.ChatTemplate;
import org.djlx.samples.llama.ModelOptions;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;

/** {@code serve}: serves a model over HTTP to OpenAI's clients and to browsers. */
@Command(
        name = "serve",
        description = {
            "Serves a Llama over HTTP: /v1/chat/completions, /v1/completions and /v1/models for"
                    + " OpenAI's clients, /invocations for DJL Serving's, /health,"
                    + " /metrics for Prometheus, and a page to chat with at /.",
            "If the environment variable DJLX_SERVE_TOKEN is set, clients must send it as"
                    + " 'Authorization: Bearer TOKEN'. SIGTERM lets answers end before it stops."
        })
public final class ServeCommand implements Callable<Integer> {

    private static final String TOKEN = "DJLX_SERVE_TOKEN";

    @Spec private CommandSpec spec;

    @Parameters(
            paramLabel = "DIR",
            description =
                    "A Llama in Hugging Face's layout; serve-model writes one to try things with.")
    private Path directory;

    @Mixin private ModelOptions model;

    @Option(
            names = "--host",
            defaultValue = "127.0.0.1",
            description = "The address to listen on; ${DEFAULT-VALUE} if not given.")
    private String host;

    @Option(
            names = "--port",
            defaultValue = "8080",
            description = "The port; 0 for any. ${DEFAULT-VALUE} if not given.")
    private int port;

    @Option(
            names = "--allowed-host",
            paramLabel = "NAME",
            description =
                    "Another host name that clients may use, such as a service's or a proxy's;"
                            + " repeatable. Without a token, only localhost, IP addresses, --host"
                            + " and these are allowed.")
    private List<String> allowedHosts = List.of();

    @Option(
            names = "--name",
            description = "The model's name in the API; the directory's name if not given.")
    private String name;

    @Option(
            names = "--max-body",
            paramLabel = "BYTES",
            defaultValue = "1048576",
            description = "Largest request; ${DEFAULT-VALUE} if not given.")
    private int maxBody;

    @Option(
            names = "--max-buffered",
            paramLabel = "BYTES",
            defaultValue = "67108864",
            description =
                    "Most bytes of requests in memory, of all connections; ${DEFAULT-VALUE} if not"
                            + " given.")
    private int maxBuffered;

    @Option(
            names = "--max-connections",
            paramLabel = "N",
            defaultValue = "1024",
            description = "Most open connections; ${DEFAULT-VALUE} if not given.")
    private int maxConnections;

    @Option(
            names = "--request-timeout",
            paramLabel = "SECONDS",
            defaultValue = "30",
            description =
                    "How long a client may take to send a request, or be idle; ${DEFAULT-VALUE} if"
                            + " not given.")
    private int requestTimeout;

    @Option(
            names = "--answer-timeout",
            paramLabel = "SECONDS",
            defaultValue = "300",
            description = "How long an answer may take; ${DEFAULT-VALUE} if not given.")
    private int answerTimeout;

    @Option(
            names = "--shutdown-timeout",
            paramLabel = "SECONDS",
            defaultValue = "10",
            description =
                    "How long answers may go on after SIGTERM; ${DEFAULT-VALUE} if not given.")
    private int shutdownTimeout;

    private ServeCommand() {}

    @Override
    public Integer call() throws IOException, InterruptedException {
        if (name != null && name.isBlank()) {
            throw new ParameterException(spec.commandLine(), "--name must not be empty");
        }
        ServerOptions options = options();
        model.check();
        model.requireTokenizer(directory);
        ChatTemplate template = ChatTemplate.of(directory);
        if (model.ranks().here().contains(0)) {
            GenerationServer.checkAddress(options); // Before loading, which may take minutes.
        }
        try (LlamaGenerator generator = model.load(directory)) {
            if (generator.isFollower()) {
                // SIGTERM reaches all ranks; close() waits for rank 0, which still needs this one.
                Runtime.getRuntime().addShutdownHook(new Thread(generator::close, "serve-end"));
                generator.awaitEnd();
                return 0;
            }
            TextApi api = new TextApi(modelName(), generator, template);
            try (GenerationServer server = new GenerationServer(api, generator, options)) {
                Runtime.getRuntime().addShutdownHook(ending(server, generator));
                say(server);
                server.await();
            }
        }
        return 0;
    }

    /** Returns the shutdown hook, which closes the server, then the generator. */
    private Thread ending(GenerationServer server, TextGenerator generator) {
        return new Thread(
                () -> {
                    int running = generator.statistics().running();
                    if (running > 0) {
                        PrintWriter err = spec.commandLine().getErr();
                        err.printf(
                                "Stopping: %d running answers have %d s to end%n",
                                running, shutdownTimeout);
                        err.flush();
                    }
                    server.close();
                    generator.close();
                },
                "serve-end");
    }

    private String modelName() {
        return name == null
                ? directory.toAbsolutePath().normalize().getFileName().toString()
                : name;
    }

    private ServerOptions options() {
        try {
            return new ServerOptions(
                    host,
                    port,
                    System.getenv(TOKEN),
                    allowedHosts,
                    maxBody,
                    maxBuffered,
                    maxConnections,
                    Duration.ofSeconds(requestTimeout),
                    Duration.ofSeconds(answerTimeout),
                    Duration.ofSeconds(shutdownTimeout));
        } catch (IllegalArgumentException e) {
            throw new ParameterException(spec.commandLine(), e.getMessage(), e);
        }
    }

    private void say(GenerationServer server) {
        PrintWriter out = spec.commandLine().getOut();
        String shown = host.contains(":") ? '[' + host + ']' : host;
        out.printf("Serving %s at http://%s:%d/%n", modelName(), shown, server.port());
        if (System.getenv(TOKEN) == null && !server.listensOnLoopback()) {
            out.printf(
                    "Warning: anyone who reaches this port can use the model; set %s to require a"
                            + " token.%n",
                    TOKEN);
        }
        out.flush();
    }
}

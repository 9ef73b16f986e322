/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.bench;

import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.djlx.fusedops.llama.LlamaGenerator;
import org.djlx.fusedops.llama.schema.ChatTemplate;
import org.djlx.fusedops.llama.schema.TextApi;
import org.djlx.nativeops.NativeVersions;
import org.djlx.samples.TextTable;
import org.djlx.samples.llama.ModelOptions;
import org.djlx.samples.serve.GenerationServer;
import org.djlx.samples.serve.ServerOptions;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/** {@code bench-decode}: how fast a model generates text. */
@Command(
        name = "bench-decode",
        description = {
            "Measures how fast a Llama generates text for clients of its HTTP server, which get"
                    + " their answers as streams. Server and clients are in one process, and share"
                    + " its cores."
        })
public final class DecodeBenchCommand implements Callable<Integer> {

    private static final Duration PATIENCE = Duration.ofMinutes(10);

    @Spec private CommandSpec spec;

    @Mixin private ModelOptions model;

    @Option(
            names = "--clients",
            split = ",",
            defaultValue = "1,64",
            description = "How many clients ask at the same time; ${DEFAULT-VALUE} if not given.")
    private int[] clients;

    @Option(
            names = "--tokens",
            paramLabel = "N",
            defaultValue = "64",
            description = "The tokens of an answer; ${DEFAULT-VALUE} if not given.")
    private int tokens;

    @Option(
            names = "--requests",
            paramLabel = "N",
            defaultValue = "8",
            description = "The requests of each client; ${DEFAULT-VALUE} if not given.")
    private int requests;

    @Option(names = "--json", paramLabel = "FILE", description = "Where to keep the figures.")
    private Path json;

    @Option(names = "--commit", paramLabel = "ID", description = "What is measured.")
    private String commit;

    private DecodeBenchCommand() {}

    @Override
    public Integer call() throws IOException, InterruptedException, ExecutionException {
        for (int count : clients) {
            if (count < 1 || tokens < 1 || requests < 1) {
                throw new ParameterException(
                        spec.commandLine(), "--clients, --tokens and --requests must be 1 or more");
            }
        }
        try (LlamaGenerator generator = model.load()) {
            if (generator.isFollower()) {
                generator.awaitEnd();
                return 0;
            }
            List<DecodeBench.Row> rows = serve(generator);
            write(rows);
            keep(rows, generator);
            return rows.stream().allMatch(row -> row.errors().isEmpty()) ? 0 : 1;
        }
    }

    private List<DecodeBench.Row> serve(LlamaGenerator generator)
            throws IOException, InterruptedException, ExecutionException {
        ServerOptions options =
                new ServerOptions(
                        "127.0.0.1", 0, null, 1 << 20, 1024, PATIENCE, PATIENCE, Duration.ZERO);
        TextApi api = new TextApi("bench", generator, ChatTemplate.of(model.directory()));
        try (GenerationServer server = new GenerationServer(api, generator, options)) {
            DecodeBench bench = new DecodeBench(server.port(), tokens);
            List<DecodeBench.Row> rows = new ArrayList<>();
            for (int count : clients) {
                bench.run(count, 1); // Not counted, while the JVM compiles.
                rows.add(bench.run(count, requests));
            }
            return rows;
        }
    }

    private void write(List<DecodeBench.Row> rows) {
        TextTable table =
                new TextTable(
                        "clients", "requests", "errors", "tokens/s", "first token ms", "answer ms");
        for (DecodeBench.Row row : rows) {
            table.add(
                    row.clients(),
                    row.requests(),
                    row.errors().size(),
                    String.format("%.1f", row.tokensPerSecond()),
                    String.format("%.1f", row.firstTokenMillis()),
                    String.format("%.1f", row.answerMillis()));
        }
        rows.stream()
                .flatMap(row -> row.errors().stream())
                .distinct()
                .forEach(spec.commandLine().getErr()::println);
        PrintWriter out = spec.commandLine().getOut();
        out.printf(
                "%s on %s, answers of %d tokens%n%s%n",
                model.directory(), model.placement(), tokens, table);
        out.flush();
    }

    private void keep(List<DecodeBench.Row> rows, LlamaGenerator generator) throws IOException {
        if (json == null) {
            return;
        }
        BenchReport report =
                new BenchReport(
                        "text generation through the HTTP server", commit, NativeVersions.query());
        report.put("config", generator.config());
        report.put("ranks", model.placement());
        report.put("tokens", tokens);
        report.put("served", rows);
        report.store(json);
    }
}

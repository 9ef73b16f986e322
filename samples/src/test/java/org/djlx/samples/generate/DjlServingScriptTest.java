// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.generate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.inference.Predictor;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.ndarray.BytesSupplier;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.djlx.samples.Main;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/**
 * {@code djl-serving.sh} in a checkout with stand-ins for the build's outputs: jars and the file of
 * the class path.
 */
@Timeout(120)
@Tag("slow")
class DjlServingScriptTest {

    private static final List<String> MODULES =
            List.of("native-ops", "djl-collectives", "fused-ops", "text-generation");
    private static final Pattern LIBRARIES = Pattern.compile("pytorch-native.*|pytorch-jni.*");

    @TempDir private Path folder;
    private Path checkout;
    private Path home;
    private String version;
    private String classPath = "";

    @BeforeEach
    void make() throws IOException {
        checkout = folder.resolve("checkout");
        Path samples = Files.createDirectories(checkout.resolve("samples/target")).getParent();
        Files.copy(Path.of("djl-serving.sh"), samples.resolve("djl-serving.sh"));
        Files.copy(Path.of("target/class-path"), samples.resolve("target/class-path"));
        Files.createDirectory(checkout.resolve("ci"));
        Files.copy(Path.of("../ci/setup.sh"), checkout.resolve("ci/setup.sh"));
        Files.copy(Path.of("../pom.xml"), checkout.resolve("pom.xml"));
        // Stand-ins for the build, which this test does not need.
        Path run = Files.writeString(samples.resolve("run.sh"), "#!/bin/sh\n");
        assertTrue(run.toFile().setExecutable(true));
        Matcher matcher =
                Pattern.compile("<version>(.*)</version>")
                        .matcher(Files.readString(Path.of("../pom.xml")));
        assertTrue(matcher.find());
        version = matcher.group(1);
        for (String module : MODULES) {
            Path target = Files.createDirectories(checkout.resolve(module + "/target"));
            for (String kind : List.of("", "-tests", "-sources", "-javadoc")) {
                String name = module + '-' + version + kind + ".jar";
                Files.writeString(target.resolve(name), module);
            }
        }
        home = Files.createDirectory(folder.resolve("home"));
    }

    private String run(int code, Object... args) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>();
        command.add("bash");
        command.add(checkout.resolve("samples/djl-serving.sh").toString());
        Stream.of(args).forEach(arg -> command.add(arg.toString()));
        ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true);
        builder.environment().put("CLASSPATH", classPath);
        Process process = builder.start();
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals(code, process.waitFor(), output);
        return output;
    }

    @Test
    void addsTheJarsAndAModelThatDjlLoads() throws Exception {
        Path tiny = folder.resolve("tiny");
        assertEquals(0, Main.commandLine().execute("serve-model", tiny.toString()));
        String output = run(0, home, tiny);
        assertTrue(output.contains(" djl-serving -s " + home + "/models\n"), output);
        assertTrue(output.contains("curl http://127.0.0.1:8080/predictions/tiny "), output);
        Matcher request = Pattern.compile("-d '(.*)'\n").matcher(output);
        assertTrue(request.find(), output);
        TreeSet<String> expected = new TreeSet<>();
        MODULES.forEach(module -> expected.add(module + '-' + version + ".jar"));
        for (String entry : Files.readString(Path.of("target/class-path")).strip().split(":")) {
            String name = Path.of(entry).getFileName().toString();
            if (LIBRARIES.matcher(name).matches()) {
                expected.add(name);
            }
        }
        assertEquals(6, expected.size(), expected::toString);
        assertEquals(List.copyOf(expected), deps());
        Criteria<Input, Output> criteria =
                Criteria.builder()
                        .setTypes(Input.class, Output.class)
                        .optModelPath(home.resolve("models/tiny"))
                        .build();
        try (ZooModel<Input, Output> model = criteria.loadModel();
                Predictor<Input, Output> predictor = model.newPredictor()) {
            Input input = new Input();
            input.add(BytesSupplier.wrap(request.group(1)));
            Output answered = predictor.predict(input);
            String answer = answered.getData().getAsString();
            assertEquals(200, answered.getCode(), answer);
            assertTrue(JsonParser.parseString(answer).getAsJsonObject().has("generated_text"));
        }
    }

    private List<String> deps() throws IOException {
        try (Stream<Path> deps = Files.list(home.resolve("deps"))) {
            return deps.map(file -> file.getFileName().toString()).sorted().toList();
        }
    }

    /** The folder may have been prepared for the CPU before. */
    @Test
    void leavesLibtorchForTheCpuOutWhereThereAreCudaPresets() throws Exception {
        run(0, home);
        List<String> names = List.of("cuda-13.1-linux-x86_64.jar", "javacpp-1.5.13.jar");
        List<String> entries = new ArrayList<>(List.of(folder.toString()));
        for (String name : names) {
            entries.add(Files.writeString(folder.resolve(name), name).toString());
        }
        classPath = String.join(":", entries);
        List<String> expected = new ArrayList<>(deps());
        assertTrue(expected.removeIf(name -> name.startsWith("pytorch-native-cpu-")));
        expected.addAll(names);
        String output = run(0, home);
        assertTrue(output.contains("not copied, because it is not a jar: " + folder), output);
        assertEquals(expected.stream().sorted().toList(), deps());
        classPath = folder.resolve("none.jar").toString();
        assertTrue(run(1, home).contains("none.jar, which does not exist"));
        classPath = ""; // The jars exist already.
        run(0, home);
        assertEquals(expected.stream().sorted().toList(), deps());
        classPath = home.resolve("deps") + "/*::" + folder + "/*";
        assertFalse(run(0, home).contains("not copied"));
        assertEquals(expected.stream().sorted().toList(), deps());
    }

    @Test
    void saysWhatItNeeds() throws Exception {
        assertTrue(run(2).contains("usage: samples/djl-serving.sh MODEL_SERVER_HOME"));
        assertTrue(run(2, folder.resolve("none")).contains("none is not a directory"));
        assertTrue(run(2, home, folder).contains("it has no config.json"));
        Path model = Files.createDirectory(folder.resolve("model"));
        Files.writeString(model.resolve("config.json"), "{}");
        String output = run(2, home, model);
        assertTrue(output.contains("no serving.properties, without which DJL Serving"), output);
        Path properties = model.resolve("serving.properties");
        Files.writeString(properties, "engine=PyTorch-P2P\n option.enable_lora = True\n");
        output = run(2, home, model);
        assertTrue(output.contains("option.enable_lora=true in " + properties), output);
        try (Stream<Path> files = Files.list(home)) {
            assertEquals(0, files.count());
        }
    }
}

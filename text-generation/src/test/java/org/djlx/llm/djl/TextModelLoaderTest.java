// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.djl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.inference.streaming.ChunkedBytesSupplier;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.ndarray.BytesSupplier;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.translate.TranslateException;
import ai.djl.util.JsonUtils;
import ai.djl.util.Progress;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.djlx.collectives.TestLog;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.engine.ByteTokens;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.engine.TextEngineTest;
import org.djlx.llm.files.FakeHub;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.server.TextApi;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.nativeops.TestJson;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** A Llama that DJL loads from a directory. */
@Timeout(120)
class TextModelLoaderTest {

    private static final String PROMPT = "How?";
    @TempDir private static Path directory;

    @BeforeAll
    static void write() throws IOException {
        ByteTokens.writeModel(directory, 3);
        Files.writeString(
                directory.resolve("serving.properties"),
                "engine=PyTorch-P2P\noption.tensor_parallel_degree=2\noption.max_model_len=128\n");
    }

    private static ZooModel<Input, Output> load(String... options) throws Exception {
        Criteria.Builder<Input, Output> builder =
                Criteria.builder().setTypes(Input.class, Output.class).optModelPath(directory);
        for (int i = 0; i < options.length; i += 2) {
            builder.optOption(options[i], options[i + 1]);
        }
        return builder.build().loadModel();
    }

    private static Input input(String json) {
        Input input = new Input();
        input.addProperty("Content-Type", "application/json");
        input.add(BytesSupplier.wrap(json));
        return input;
    }

    private static String invocation(int tokens, boolean streamed) {
        return String.format(
                "{\"inputs\": \"%s\", \"parameters\": {\"max_new_tokens\": %d}, \"stream\": %b}",
                PROMPT, tokens, streamed);
    }

    private static String expected(int tokens) throws Exception {
        try (TextGenerator generator = TextEngine.builder().setDirectory(directory).build()) {
            GenerationRequest request =
                    GenerationRequest.builder().setPrompt(PROMPT).optMaxTokens(tokens).build();
            return generator.submit(request).await(Duration.ofMinutes(1)).stream()
                    .map(GeneratedPiece::text)
                    .collect(Collectors.joining());
        }
    }

    @Test
    void refusesRequestsAfterClose() throws Exception {
        TextGenerator generator = TextEngine.builder().setDirectory(directory).build();
        generator.close();
        GenerationRequest request = GenerationRequest.builder().setPrompt(PROMPT).build();
        Exception e = assertThrows(IllegalStateException.class, () -> generator.submit(request));
        assertEquals(generator.unavailabilityCause().orElseThrow(), e.getMessage());
    }

    private static JsonObject json(String text) {
        return JsonParser.parseString(text).getAsJsonObject();
    }

    @Test
    void answersThroughPlainDjl() throws Exception {
        String expected = expected(9);
        try (ZooModel<Input, Output> model = load();
                Predictor<Input, Output> predictor = model.newPredictor()) {
            assertEquals("PyTorch-P2P", model.getProperty("engine"));
            Output output = predictor.predict(input(invocation(9, false)));
            assertEquals(200, output.getCode());
            assertEquals("application/json", output.getProperty("Content-Type", null));
            JsonObject answer = json(output.getData().getAsString());
            assertEquals(expected, answer.get("generated_text").getAsString());
            Output chat =
                    predictor.predict(
                            input(
                                    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}],"
                                            + " \"max_tokens\": 3, \"ignore_eos\": true}"));
            JsonObject usage = json(chat.getData().getAsString()).getAsJsonObject("usage");
            assertEquals(3, usage.get("completion_tokens").getAsInt());
        }
    }

    @Test
    void callsToolsInTheFormatThatAnOptionNames() throws Exception {
        String request =
                "{'messages':[{'role':'user','content':'Hi'}],'tool_choice':'required','tools':"
                        + "[{'type':'function','function':{'name':'now'}}],'parallel_tool_calls':"
                        + "false}";
        try (ZooModel<Input, Output> model = load("tool_call_parser", "mistral");
                Predictor<Input, Output> predictor = model.newPredictor()) {
            String answer =
                    predictor.predict(input(request.replace('\'', '"'))).getData().getAsString();
            String id = TestJson.at(answer, "choices.0.message.tool_calls.0.id").getAsString();
            assertTrue(id.matches("[A-Za-z0-9]{9}"), answer);
        }
    }

    @Test
    void streamsALineForEachToken() throws Exception {
        String expected = expected(9);
        try (ZooModel<Input, Output> model = load();
                Predictor<Input, Output> predictor = model.newPredictor()) {
            Output output = predictor.predict(input(invocation(9, true)));
            ChunkedBytesSupplier chunks = (ChunkedBytesSupplier) output.getData();
            StringBuilder lines = new StringBuilder();
            int count = 0;
            while (chunks.hasNext()) {
                lines.append(chunks.next(1, TimeUnit.MINUTES).getAsString());
                count++;
            }
            assertTrue(count >= 9, count + " chunks");
            List<JsonObject> all = lines.toString().lines().map(TextModelLoaderTest::json).toList();
            assertEquals(9, all.size());
            String text =
                    all.stream()
                            .map(line -> line.getAsJsonObject("token").get("text").getAsString())
                            .collect(Collectors.joining());
            assertEquals(expected, text);
            assertEquals(expected, all.get(8).get("generated_text").getAsString());
        }
    }

    @Test
    void refusesOneRequestAndServesTheNext() throws Exception {
        try (ZooModel<Input, Output> model = load();
                Predictor<Input, Output> predictor = model.newPredictor()) {
            refuse(predictor, "not json");
            refuse(predictor, "");
            refuse(predictor, "{\"inputs\": \"\"}");
            refuse(predictor, "{\"inputs\": \"a\", \"parameters\": {\"max_new_tokens\": 128}}");
            refuse(predictor, "{\"inputs\": \"a\", \"parameters\": {\"max_new_tokns\": 1}}");
            assertEquals(400, predictor.predict(new Input()).getCode());
            // DJL Serving writes the message into HTTP's status line.
            for (String name :
                    List.of("a\\nb", "\\r\\nX-Header: 1", "\\u0000\\u2028", "x".repeat(9000))) {
                for (String json :
                        List.of(
                                "{\"inputs\": \"a\", \"parameters\": {\"%s\": 1}}",
                                "{\"prompt\": \"a\", \"guided_regex\": \"(%s\"}",
                                "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}],"
                                        + " \"model\": \"%s\"}")) {
                    Output output = predictor.predict(input(json.formatted(name)));
                    assertEquals(json.contains("model") ? 404 : 400, output.getCode());
                    String message = output.getMessage();
                    assertTrue(message.length() <= 1000, message);
                    assertTrue(message.codePoints().allMatch(c -> c >= ' '), message);
                    assertTrue(json(text(output)).has("error"));
                }
            }
            for (String json : List.of("{}", "{\"prompt\": \"a\", \"max_tokens\": 128}")) {
                Output output = predictor.predict(input(json));
                JsonObject error = json(output.getData().getAsString()).getAsJsonObject("error");
                assertEquals(output.getMessage(), error.get("message").getAsString());
            }
            Output output = predictor.predict(input(invocation(2, false)));
            assertEquals(200, output.getCode());
            assertTrue(json(output.getData().getAsString()).has("generated_text"));
        }
    }

    private static void refuse(Predictor<Input, Output> predictor, String json)
            throws TranslateException {
        Output output = predictor.predict(input(json));
        assertEquals(400, output.getCode(), json);
        JsonObject error = json(output.getData().getAsString());
        assertEquals(output.getMessage(), error.get("error").getAsString());
        assertEquals(400, error.get("code").getAsInt());
    }

    @Test
    void serves64CallersWithOnePredictor() throws Exception {
        String expected = expected(5);
        ExecutorService callers = Executors.newFixedThreadPool(64);
        CountDownLatch ready = new CountDownLatch(64);
        try (ZooModel<Input, Output> model = load();
                Predictor<Input, Output> predictor = model.newPredictor()) {
            List<Future<String>> answers = new ArrayList<>();
            for (int i = 0; i < 64; i++) {
                answers.add(
                        callers.submit(
                                () -> {
                                    ready.countDown();
                                    ready.await();
                                    Output output = predictor.predict(input(invocation(5, false)));
                                    return output.getData().getAsString();
                                }));
            }
            for (Future<String> answer : answers) {
                assertEquals(expected, json(answer.get()).get("generated_text").getAsString());
            }
        } finally {
            callers.shutdownNow();
        }
    }

    @Test
    void answersABatchOfPromptsOfDifferentLengths() throws Exception {
        List<String> prompts = List.of("a", "b".repeat(40), "c d e");
        try (ZooModel<Input, Output> model = load();
                Predictor<Input, Output> predictor = model.newPredictor()) {
            List<Input> inputs = new ArrayList<>();
            List<String> expected = new ArrayList<>();
            for (String prompt : prompts) {
                String json = invocation(6, false).replace(PROMPT, prompt);
                inputs.add(input(json));
                expected.add(predictor.predict(input(json)).getData().getAsString());
            }
            List<String> answers = new ArrayList<>();
            for (Output output : predictor.batchPredict(inputs)) {
                answers.add(output.getData().getAsString());
            }
            assertEquals(expected, answers);
            String one = invocation(6, false);
            String all = one.replace('"' + PROMPT + '"', JsonUtils.GSON.toJson(prompts));
            assertEquals(
                    '[' + String.join(",", expected) + ']',
                    predictor.predict(input(all)).getData().getAsString());
        }
    }

    @Test
    void aCancelledInputEndsItsGeneration() throws Exception {
        TextEngine generator = TextEngine.builder().setDirectory(directory).build();
        TextApi api = new TextApi("llama", generator, ChatTemplate.PLAIN);
        try (TextModelService service = new TextModelService(generator, api)) {
            CountDownLatch held = TextEngineTest.hold(generator);
            Input input = input(invocation(100, true));
            Output output = service.predict(input);
            input.setCancelled(true);
            held.countDown();
            String lines = output.getData().getAsString();
            assertEquals(1, lines.lines().count(), lines);
            TextEngineTest.assertIdle(generator);
            assertEquals(1, generator.statistics().cancelled());
        }
    }

    @Test
    void pendingRequestsAreRefusedWhenTheModelCloses() throws Exception {
        TextEngine generator = TextEngine.builder().setDirectory(directory).build();
        TextApi api = new TextApi("llama", generator, ChatTemplate.PLAIN);
        Output whole;
        try (TextModelService service = new TextModelService(generator, api)) {
            CountDownLatch held = TextEngineTest.hold(generator);
            whole = service.predict(input(invocation(100, false)));
            Thread closing = new Thread(service::close);
            closing.start();
            while (generator.unavailabilityCause().isEmpty()) {
                Thread.sleep(5);
            }
            held.countDown();
            String answer = whole.getData().getAsString();
            closing.join();
            assertEquals("{\"error\":\"the generation was cancelled\",\"code\":503}", answer);
        }
        assertEquals(503, whole.getCode());
    }

    @Test
    void aFailedRankMakesAnswersRefusals() throws Exception {
        TextEngine generator = TextEngine.builder().setDirectory(directory).optRanks(2).build();
        TextApi api = new TextApi("llama", generator, ChatTemplate.PLAIN);
        try (TextModelService service = new TextModelService(generator, api)) {
            CountDownLatch held = TextEngineTest.hold(generator);
            Output whole = service.predict(input(invocation(100, false)));
            TextEngineTest.awaitStep(generator, 0);
            TextEngineTest.breakRank(generator);
            held.countDown();
            JsonObject answer = json(whole.getData().getAsString());
            assertTrue(answer.toString().contains("rank 1 fell over"), answer::toString);
            assertEquals(500, whole.getCode());
            assertEquals("application/json", whole.getProperty("Content-Type", null));
        }
    }

    /** Of other exceptions a worker of DJL Serving ends. */
    @Test
    void defectsAreAnsweredWithStatus500() throws Exception {
        try (TextEngine generator = TextEngine.builder().setDirectory(directory).build()) {
            for (Throwable defect : List.of(new ArithmeticException(), new StackOverflowError())) {
                TextGenerator broken =
                        (TextGenerator)
                                Proxy.newProxyInstance(
                                        TextGenerator.class.getClassLoader(),
                                        new Class<?>[] {TextGenerator.class},
                                        (proxy, called, values) -> {
                                            if (called.getName().startsWith("submit")) {
                                                throw defect;
                                            }
                                            return called.invoke(generator, values);
                                        });
                TextApi api = new TextApi("llama", broken, ChatTemplate.PLAIN);
                Output output =
                        new TextModelService(broken, api).predict(input(invocation(2, false)));
                assertEquals(500, output.getCode());
                assertTrue(text(output).contains(defect.toString()), text(output));
            }
        }
    }

    /** Returns the generator of a model that DJL has loaded. */
    private static TextEngine generatorOf(ZooModel<Input, Output> model) throws Exception {
        Model wrapped = model.getWrappedModel();
        Field divided = wrapped.getClass().getDeclaredField("parallel");
        divided.setAccessible(true);
        Field generator = TextModelService.class.getDeclaredField("generator");
        generator.setAccessible(true);
        return (TextEngine) generator.get(divided.get(wrapped));
    }

    /** DJL Serving and its {@code /ping} recognise a failed model by the property "failed". */
    @Test
    void reportsTheHealthOfItsRanks(@TempDir Path own) throws Exception {
        copyModel(own);
        Criteria<Input, Output> criteria =
                Criteria.builder().setTypes(Input.class, Output.class).optModelPath(own).build();
        try (ZooModel<Input, Output> model = criteria.loadModel();
                Predictor<Input, Output> predictor = model.newPredictor()) {
            TextEngine generator = generatorOf(model);
            assertNull(model.getProperty("failed"));
            assertThrows(CompletionException.class, TextEngineTest.breakRank(generator)::join);
            Output served = predictor.predict(input(invocation(2, false)));
            assertTrue(json(served.getData().getAsString()).has("generated_text"));
            assertEquals(1, generator.statistics().reloads());
            assertNull(model.getProperty("failed"), "it was loaded again, and is well");
            try (Stream<Path> files = Files.list(own)) {
                for (Path file : files.filter(f -> f.toString().contains("model")).toList()) {
                    Files.delete(file);
                }
            }
            assertThrows(CompletionException.class, TextEngineTest.breakRank(generator)::join);
            Output last = predictor.predict(input(invocation(2, false)));
            String error = last.getData().getAsString(); // Its code is there with it.
            assertEquals(500, last.getCode(), error);
            assertTrue(error.contains("has neither model.safetensors.index.json nor"), error);
            assertEquals(
                    String.valueOf(Integer.MAX_VALUE), model.getProperty("failed"), "it is lost");
            Output refused = predictor.predict(input(invocation(2, false)));
            assertEquals(503, refused.getCode());
            assertTrue(
                    refused.getMessage().contains("could not be reloaded"), refused.getMessage());
        }
    }

    /**
     * DJL does not pass its Progress to models: a user's Progress sees begin and end, the log more.
     */
    @Test
    void saysHowLoadingGoes() throws Exception {
        List<String> calls = new ArrayList<>();
        Progress progress =
                (Progress)
                        Proxy.newProxyInstance(
                                Progress.class.getClassLoader(),
                                new Class<?>[] {Progress.class},
                                (proxy, called, values) -> {
                                    calls.add(called.getName());
                                    return null;
                                });
        try (TestLog log = new TestLog(TextModelLoader.class)) {
            Criteria.builder()
                    .setTypes(Input.class, Output.class)
                    .optModelPath(directory)
                    .optProgress(progress)
                    .build()
                    .loadModel()
                    .close();
            String loading = "Loading " + directory.getFileName() + ": ";
            assertEquals(1, log.count(" MB of weights on each of "));
            for (int percent = 10; percent < 100; percent += 10) {
                // Tensors are so large that some tenths are passed together.
                assertTrue(log.count(loading + percent + " %") <= 1, percent + " %");
            }
            long tenths = log.count("0 %");
            assertTrue(tenths >= 5 && tenths <= 9, tenths + " lines");
            assertEquals(1, log.count(loading + "done in "));
        }
        assertEquals("reset", calls.get(0));
        assertEquals("end", calls.get(calls.size() - 1));
    }

    /** DJL Serving's temporary workers have a context class loader that does not see deps/. */
    @Test
    void doesNotDependOnTheContextClassLoader(@TempDir Path own) throws Exception {
        copyModel(own);
        Files.writeString(
                own.resolve("chat_template.jinja"),
                "{% for m in messages %}{{ m['role'] | upper }}: {{ m.content | trim }}\n"
                        + "{% endfor %}{% if add_generation_prompt %}A: {% endif %}");
        Path output = own.resolve("output");
        Process process =
                new ProcessBuilder(
                                Path.of(System.getProperty("java.home"), "bin/java").toString(),
                                "-cp",
                                Path.of("target/test-classes").toAbsolutePath().toString(),
                                ContextLoaderMain.class.getName(),
                                System.getProperty("java.class.path"),
                                own.toString(),
                                "../fused-ops/src/test/resources/org/djlx/fusedops/torchscript/2")
                        .redirectErrorStream(true)
                        .redirectOutput(output.toFile())
                        .start();
        assertEquals(0, process.waitFor(), () -> read(output));
    }

    private static String read(Path file) {
        try {
            return Files.readString(file);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    @Test
    void missesATokenizerBeforeWeights(@TempDir Path other) throws Exception {
        Files.copy(directory.resolve("config.json"), other.resolve("config.json"));
        Files.writeString(other.resolve("model.safetensors"), "not looked at");
        Exception e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> new TextModelLoader().load("m", other, Device.cpu(), Map.of()));
        assertTrue(e.getMessage().contains("tokenizer.json"), e.getMessage());
    }

    @Test
    void saysWhatIsWrongWithOptionsAndFiles() throws Exception {
        refuse("tensor_parallel_degree", "tensor_parallel_degree", "two");
        refuse("tensor_parallel_degree", "tensor_parallel_degree", "0");
        refuse("3 ranks", "tensor_parallel_degree", "3");
        refuse("max, which is for GPUs", "tensor_parallel_degree", "max");
        refuse("max_model_len", "max_model_len", "99999999999");
        refuse("cache", "kv_cache_bytes", "1");
        refuse("option no_such_option=1 is not supported: remove it", "no_such_option", "1");
        refuse("option quantize must be none, fp8, int8 or int4, not q4", "quantize", "q4");
        refuse("fp8 weights are for GPUs", "quantize", "fp8");
        refuse("fp8 keys and values are for GPUs", "kv_cache_dtype", "fp8");
        refuse(
                "option pipeline_parallel_degree=2 is not supported: it must be 1",
                "pipeline_parallel_degree",
                "2");
        refuse("option entryPoint=model.py is not supported", "entryPoint", "model.py");
        refuse("option enable_lora=True is not supported", "enable_lora", "True");
        refuse("option dtype must be auto, fp32, fp16 or bf16, not int8", "dtype", "int8");
        refuse(
                "option model_id is meta-llama, but there is no directory",
                "model_id",
                "meta-llama");
    }

    /** A {@code serving.properties} for LMI loads, if what it asks for is what happens anyway. */
    @Test
    void acceptsOptionsOfLmiThatChangeNothing() throws Exception {
        String options =
                "rolling_batch=vllm async_mode=true mpi_mode=False trust_remote_code=true"
                    + " entryPoint=djl_python.lmi_vllm.vllm_async_service parallel_loading=false"
                    + " output_formatter=json pipeline_parallel_degree=1 enable_lora=False"
                    + " load_format=safetensors enforce_eager=false enable_chunked_prefill=true"
                    + " cpu_offload_gb_per_gpu=0 tokenizer_mode=auto disable_sliding_window=false"
                    + " enable_auto_tool_choice=true task=auto max_num_batched_tokens=64"
                    + " model_loading_timeout=1800 tgi_compat=false enable_streaming=false";
        load(options.split("[ =]")).close();
        // What DJL Serving sets for TensorRT-LLM.
        options =
                "rolling_batch=trtllm max_num_tokens=16384 max_rolling_batch_size=256 mpi_mode=true"
                        + " pipeline_parallel_degree=1";
        load(options.split("[ =]")).close();
    }

    /** The folder then has nothing but {@code serving.properties}. */
    @Test
    void readsTheModelFromTheDirectoryOfModelId(@TempDir Path own) throws Exception {
        Files.writeString(
                own.resolve("serving.properties"),
                "engine=PyTorch-P2P\noption.max_model_len=128\noption.model_id=" + directory);
        Criteria<Input, Output> criteria =
                Criteria.builder()
                        .setTypes(Input.class, Output.class)
                        .optModelPath(own)
                        .optModelName("named")
                        .build();
        try (ZooModel<Input, Output> model = criteria.loadModel();
                Predictor<Input, Output> predictor = model.newPredictor()) {
            JsonObject answer = json(text(predictor.predict(input(invocation(5, false)))));
            assertEquals(expected(5), answer.get("generated_text").getAsString());
            // DJL Serving registers a model under a name of its own after it has loaded it.
            String request = "{\"model\": \"%s\", \"max_tokens\": 1, \"prompt\": \"How?\"}";
            Input unknown = input(request.formatted("registered"));
            assertEquals(404, predictor.predict(unknown).getCode());
            model.setProperty("metric_dimension", "registered");
            for (String name : List.of("registered", "named")) {
                answer = json(text(predictor.predict(input(request.formatted(name)))));
                assertEquals(name, answer.get("model").getAsString());
            }
            answer = json(text(predictor.predict(input("{\"max_tokens\": 1, \"prompt\": \"a\"}"))));
            assertEquals("registered", answer.get("model").getAsString());
        }
    }

    /** A folder of DJL Serving with {@code serving.properties} only, and {@code TextGenerator}. */
    @Test
    void downloadsTheModelThatModelIdNames(@TempDir Path own) throws Exception {
        Map<String, String> variables = new TreeMap<>();
        try (FakeHub hub = new FakeHub(directory)) {
            variables.put("HF_HOME", own.resolve("cache").toString());
            variables.put("HF_ENDPOINT", hub.endpoint());
            variables.forEach(System::setProperty);
            String properties = "engine=PyTorch-P2P\noption.model_id=%s\noption.revision=%s\n";
            Path file = own.resolve("serving.properties");
            Files.writeString(file, properties.formatted(FakeHub.NAME, "refs/pr/1"));
            Criteria<Input, Output> criteria =
                    Criteria.builder()
                            .setTypes(Input.class, Output.class)
                            .optModelPath(own)
                            .build();
            try (ZooModel<Input, Output> model = criteria.loadModel();
                    Predictor<Input, Output> predictor = model.newPredictor()) {
                JsonObject answer = json(text(predictor.predict(input(invocation(5, false)))));
                assertEquals(expected(5), answer.get("generated_text").getAsString());
                assertEquals(own.toAbsolutePath(), model.getModelPath());
            }
            try (TextGenerator generator = TextGenerator.of(FakeHub.NAME)) {
                GenerationRequest request =
                        GenerationRequest.builder().setPrompt(PROMPT).optMaxTokens(5).build();
                String text =
                        generator.submit(request).await(Duration.ofMinutes(1)).stream()
                                .map(GeneratedPiece::text)
                                .collect(Collectors.joining());
                assertEquals(expected(5), text);
            }
            Files.writeString(file, properties.formatted(FakeHub.NAME, "v9"));
            Exception e = assertThrows(IOException.class, criteria::loadModel);
            assertTrue(e.getMessage().contains("has no such branch, tag or commit"), e::toString);
            Files.writeString(file, properties.formatted(FakeHub.NAME, "../v9"));
            e = assertThrows(IllegalArgumentException.class, criteria::loadModel);
            assertTrue(e.getMessage().contains("the revision '../v9'"), e::toString);
            Files.writeString(file, properties.formatted(directory, "main"));
            e = assertThrows(IllegalArgumentException.class, criteria::loadModel);
            assertTrue(e.getMessage().contains("option revision=main is not supp"), e::toString);
        } finally {
            variables.keySet().forEach(System::clearProperty);
        }
    }

    /** In bfloat16 the answer is that of the same model whose configuration says so. */
    @Test
    void computesInTheTypeOfTheOption(@TempDir Path own) throws Exception {
        copyModel(own);
        Path config = own.resolve("config.json");
        JsonObject json = json(Files.readString(config));
        assertEquals(ScalarType.FLOAT32, ModelConfig.read(own).type());
        json.addProperty("torch_dtype", "bfloat16");
        Files.writeString(config, json.toString());
        String request =
                "{\"messages\": [{\"role\": \"user\", \"content\": \"How?\"}], \"max_tokens\": 9,"
                        + " \"temperature\": 0, \"logprobs\": true}";
        List<JsonElement> choices = new ArrayList<>();
        for (String type : List.of("auto", "bf16", "fp32")) {
            Criteria<Input, Output> criteria =
                    Criteria.builder()
                            .setTypes(Input.class, Output.class)
                            .optModelPath(type.equals("auto") ? own : directory)
                            .optOption("dtype", type)
                            .build();
            try (ZooModel<Input, Output> model = criteria.loadModel();
                    Predictor<Input, Output> predictor = model.newPredictor()) {
                choices.add(json(text(predictor.predict(input(request)))).get("choices"));
            }
        }
        assertEquals(choices.get(0), choices.get(1));
        assertNotEquals(choices.get(0), choices.get(2));
    }

    /** The options of the page exist. */
    @Test
    void knowsTheOptionsThatAreDocumented(@TempDir Path own) throws Exception {
        String serving = Files.readString(Path.of("../docs/serving.md"));
        String rows = serving.substring(serving.indexOf("Options of LMI are honoured"));
        // Not model_id, another name of an option, and what has no effect.
        List<String> options =
                Pattern.compile(
                                "(?m)^\\| (`\\w+`(?:, `\\w+`)*)"
                                        + " \\| (?!accepted|refused|a directory|as `)")
                        .matcher(rows.substring(0, rows.indexOf("\n## ")))
                        .results()
                        .flatMap(row -> Stream.of(row.group(1).replace("`", "").split(", ")))
                        .toList();
        assertEquals(13, options.size(), options::toString);
        for (String option : options) {
            if (option.equals("tool_call_parser")) {
                refuse("unknown format of tool calls 'all'", option, "all");
                continue;
            }
            if (option.equals("reasoning_parser")) {
                refuse("unknown format of reasoning 'all'", option, "all");
                continue;
            }
            String kind =
                    switch (option) {
                        case "gpu_memory_utilization" -> "a number";
                        case "enable_prefix_caching" -> "true or false";
                        case "dtype" -> "auto, fp32, fp16 or bf16";
                        case "quantize" -> "none, fp8, int8 or int4";
                        case "kv_cache_bytes" -> "a whole number";
                        case "kv_cache_dtype" -> "auto or fp8";
                        default -> "a whole number, 1 or more";
                    };
            refuse("option " + option + " must be " + kind + ", not all", option, "all");
        }
        refuse("gpuMemoryUtilization", "gpu_memory_utilization", "1.5");
        Matcher page = Pattern.compile("```\n(engine=.*?)```", Pattern.DOTALL).matcher(serving);
        assertTrue(page.find());
        copyModel(own);
        Files.writeString(own.resolve("serving.properties"), page.group(1));
        Criteria.builder()
                .setTypes(Input.class, Output.class)
                .optModelPath(own)
                .build()
                .loadModel()
                .close();
    }

    private static String text(Output answer) {
        return answer.getData().getAsString();
    }

    private static void copyModel(Path to) throws IOException {
        try (Stream<Path> files = Files.list(directory)) {
            for (Path file : files.toList()) {
                Files.copy(file, to.resolve(file.getFileName()));
            }
        }
    }

    private static void refuse(String problem, String... options) {
        Exception failure = assertThrows(Exception.class, () -> load(options).close());
        assertTrue(failure.toString().contains(problem), failure.toString());
    }

    @Test
    void takesTheGpusThatFollow() {
        List<Device> one = List.of(Device.gpu(2));
        List<Device> two = List.of(Device.gpu(0), Device.gpu(1));
        assertEquals(one, TextModelLoader.gpus(one, null));
        assertEquals(List.of(Device.gpu(2), Device.gpu(3)), TextModelLoader.gpus(one, 2));
        assertEquals(two, TextModelLoader.gpus(two, null));
        assertEquals(two, TextModelLoader.gpus(two, 2));
        assertThrows(IllegalArgumentException.class, () -> TextModelLoader.gpus(two, 1));
        assertEquals(6, TextModelLoader.maxDegree(one, 8));
        assertEquals(2, TextModelLoader.maxDegree(two, 8));
        assertThrows(IllegalArgumentException.class, () -> TextModelLoader.maxDegree(one, 2));
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.djl;

import ai.djl.Device;
import ai.djl.ndarray.types.DataType;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.IntConsumer;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.ParallelModel;
import org.djlx.collectives.engine.ParallelModelLoader;
import org.djlx.collectives.launch.LaunchEnvironment;
import org.djlx.collectives.launch.TorchThreads;
import org.djlx.llm.engine.EmbeddingEngine;
import org.djlx.llm.engine.LoadingProgress;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.files.GgufDirectory;
import org.djlx.llm.files.ModelHub;
import org.djlx.llm.model.EmbeddingConfig;
import org.djlx.llm.model.KvCacheDtype;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.server.TextApi;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.llm.text.ReasoningFormat;
import org.djlx.llm.text.ToolFormat;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.host.Required;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Loads a language model or an {@linkplain EmbeddingConfig#isEmbeddingModel embedding model}, whose
 * predictors also take texts and return vectors, for DJL and DJL Serving, from a model directory in
 * Hugging Face's layout with a {@code serving.properties}:
 *
 * <pre>
 * engine=PyTorch-P2P
 * option.tensor_parallel_degree=2
 * load_on_devices=gpu0+gpu1
 * </pre>
 *
 * <pre>{@code
 * Criteria<Input, Output> criteria =
 *         Criteria.builder().setTypes(Input.class, Output.class).optModelPath(directory).build();
 * try (ZooModel<Input, Output> model = criteria.loadModel();
 *         Predictor<Input, Output> predictor = model.newPredictor()) {
 *     Input input = new Input();
 *     input.add(BytesSupplier.wrap("{\"inputs\": \"Once\", \"parameters\": {\"max_new_tokens\": 20}}"));
 *     System.out.println(predictor.predict(input).getData().getAsString());
 * }
 * }</pre>
 *
 * <p><b>Requests and answers</b>: see {@link TextApi}. {@code predict} returns immediately; the
 * answer's data is a {@link ai.djl.inference.streaming.ChunkedBytesSupplier}: one chunk for each
 * piece if the request is streamed, otherwise one chunk. So one worker of DJL Serving serves many
 * requests at a time.
 *
 * <p><b>Ranks</b> are threads of this JVM by default. They are processes if {@code RANK} and {@code
 * WORLD_SIZE} are set, as {@code samples/run.sh launch} and torchrun do, and {@code WORLD_SIZE} is
 * the tensor-parallel degree. Then each process loads the model, on the GPU that {@code LOCAL_RANK}
 * names. Rank 0 serves requests. The other ranks refuse requests; closing their model waits until
 * rank 0 has closed its model.
 *
 * <p><b>Progress</b> of loading goes to the log. The {@link ai.djl.util.Progress} of {@code
 * Criteria} sees only begin and end, because DJL does not pass it to model loaders.
 *
 * <p><b>Options</b>: docs/serving.md, DJL Serving, has a table. All are optional; a value that is
 * not supported is an error, and so is every other option.
 */
public final class TextModelLoader implements ParallelModelLoader {

    private static final Logger LOG = LoggerFactory.getLogger(TextModelLoader.class);

    // Hugging Face's file names.
    private static final Pattern WEIGHTS =
            Pattern.compile(
                    "model(-\\d+-of-\\d+)?\\.safetensors|model\\.safetensors\\.index\\.json"
                            + "|.*\\.gguf");

    private static final String FLAG = "true|false";

    /** Options of LMI without effect here, and the values that have none there either. */
    private static final Map<String, String> NEUTRAL =
            Map.ofEntries(
                    Map.entry("modelName", ".*"), // DJL's
                    Map.entry("rolling_batch", "auto|disable|vllm|trtllm|lmi-dist"),
                    Map.entry("async_mode", FLAG),
                    Map.entry("mpi_mode", FLAG),
                    Map.entry("parallel_loading", FLAG),
                    Map.entry("trust_remote_code", FLAG),
                    Map.entry("entryPoint", "djl_python\\..*"),
                    Map.entry("output_formatter", "json"),
                    Map.entry("pipeline_parallel_degree", "1"),
                    Map.entry("enable_lora", "false"),
                    Map.entry("enable_streaming", "false"),
                    Map.entry("tgi_compat", "false"),
                    Map.entry("model_loading_timeout", "1800"),
                    Map.entry("load_format", "auto|safetensors"),
                    Map.entry("enforce_eager", "false"),
                    Map.entry("enable_chunked_prefill", "true"),
                    Map.entry("cpu_offload_gb_per_gpu", "0"),
                    Map.entry("tokenizer_mode", "auto"),
                    Map.entry("disable_sliding_window", "false"),
                    Map.entry("enable_auto_tool_choice", "true"),
                    Map.entry("task", "auto|generate"));

    private static final Map<String, DataType> TYPES =
            Map.of(
                    "fp32", DataType.FLOAT32,
                    "float32", DataType.FLOAT32,
                    "fp16", DataType.FLOAT16,
                    "float16", DataType.FLOAT16,
                    "bf16", DataType.BFLOAT16,
                    "bfloat16", DataType.BFLOAT16);

    /** Creates the loader; for {@link java.util.ServiceLoader}. */
    public TextModelLoader() {}

    @Override
    public boolean canLoad(Path directory) {
        List<String> names;
        try (Stream<Path> files = Files.list(directory)) {
            names = files.map(file -> file.getFileName().toString()).toList();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        // Also true without config.json: load() then names the missing file, while DJL's PyTorch
        // engine would ask for a TorchScript file.
        return names.stream().anyMatch(name -> WEIGHTS.matcher(name).matches())
                && (names.contains("config.json")
                        || names.stream().noneMatch(name -> name.endsWith(".pt")));
    }

    /** Downloads a model of a hub, ORG/NAME. */
    @Override
    public Path directory(String modelId, Map<String, ?> options) throws IOException {
        if (!ModelHub.isName(modelId)) {
            return null;
        }
        ModelHub.Builder hub = ModelHub.builder().optProgress(new LoadingProgress(LOG::info));
        Object revision = options.remove("revision");
        if (revision != null) {
            hub.optRevision(revision.toString().trim());
        }
        return hub.build().download(modelId);
    }

    @Override
    public ParallelModel load(String name, Path path, Device device, Map<String, ?> options)
            throws IOException {
        Path directory = GgufDirectory.of(path);
        // Checked before weights are read.
        if (!Files.isRegularFile(directory.resolve("tokenizer.json"))) {
            throw new IllegalArgumentException(
                    directory + " has no tokenizer.json; download it from where the weights are");
        }
        Map<String, String> left = new TreeMap<>();
        options.forEach((option, value) -> left.put(option, String.valueOf(value).trim()));
        Integer degree = degree(left, device.getDevices());
        if (EmbeddingConfig.isEmbeddingModel(directory)) {
            return loadEmbeddings(name, directory, device.getDevices(), degree, left);
        }
        TextEngine.Builder builder =
                TextEngine.builder()
                        .setDirectory(directory)
                        .optProgress(new LoadingProgress(LOG::info));
        number(left, "max_model_len", builder::optMaxLength);
        number(left, "max_rolling_batch_size", builder::optMaxRunning);
        number(left, "max_num_batched_tokens", builder::optPrefillTokens);
        number(left, "max_num_tokens", builder::optPrefillTokens);
        number(left, "max_rolling_batch_prefill_tokens", builder::optPrefillTokens);
        number(left, "max_queue_size", builder::optMaxQueued);
        set(left, "kv_cache_bytes", "a whole number", Long::valueOf, builder::optCacheBytes);
        set(
                left,
                "gpu_memory_utilization",
                "a number",
                Double::valueOf,
                builder::optGpuMemoryUtilization);
        set(
                left,
                "enable_prefix_caching",
                "true or false",
                value -> Boolean.valueOf(oneOf(value, FLAG)),
                builder::optPrefixCaching);
        set(
                left,
                "quantize",
                "none, fp8, int8 or int4",
                value -> Quantization.valueOf(value.toUpperCase(Locale.ROOT)),
                builder::optQuantization);
        set(
                left,
                "kv_cache_dtype",
                "auto or fp8",
                value -> KvCacheDtype.valueOf(value.toUpperCase(Locale.ROOT)),
                builder::optKvCacheDtype);
        type(left, builder::optDataType);
        String parser = left.remove("tool_call_parser");
        ToolFormat tools = parser == null ? null : ToolFormat.named(parser);
        String thinking = left.remove("reasoning_parser");
        ReasoningFormat reasoning = thinking == null ? null : ReasoningFormat.named(thinking);
        refuseOthers(left);
        boolean gpu = device.getDevices().get(0).isGpu();
        boolean processes = areProcesses(degree);
        if (!gpu) {
            TorchThreads.choose(processes || degree == null ? 1 : degree);
        }
        if (gpu && !processes) {
            builder.optDevices(gpus(device.getDevices(), degree));
        } else if (degree != null && !processes) {
            builder.optRanks(degree);
        }
        ChatTemplate template = ChatTemplate.of(directory);
        if (processes) {
            builder.optProcessGroup(ProcessGroups.init(gpu ? "cuda_p2p" : "shm"));
        }
        TextEngine generator = builder.build();
        try {
            return new TextModelService(
                    generator, new TextApi(name, generator, template, tools, reasoning));
        } catch (Throwable e) {
            generator.close();
            throw e;
        }
    }

    private static ParallelModel loadEmbeddings(
            String name,
            Path directory,
            List<Device> devices,
            Integer degree,
            Map<String, String> left)
            throws IOException {
        EmbeddingEngine.Builder builder = EmbeddingEngine.builder().setDirectory(directory);
        number(left, "max_num_batched_tokens", builder::optBatchTokens);
        number(left, "max_queue_size", builder::optMaxQueued);
        type(left, builder::optDataType);
        set(
                left,
                "task",
                "auto, embed or text_embedding",
                value -> oneOf(value, "auto|embed|text_embedding"),
                task -> {});
        refuseOthers(left);
        if (devices.get(0).isGpu()) {
            builder.optDevices(gpus(devices, degree));
        } else {
            TorchThreads.choose(degree == null ? 1 : degree);
            builder.optRanks(degree == null ? 1 : degree);
        }
        return new EmbeddingModelService(name, builder.build());
    }

    private static void type(Map<String, String> left, Consumer<DataType> setter) {
        set(
                left,
                "dtype",
                "auto, fp32, fp16 or bf16",
                value -> TYPES.get(oneOf(value, "auto|" + String.join("|", TYPES.keySet()))),
                setter);
    }

    private static void refuseOthers(Map<String, String> left) {
        left.forEach(
                (option, value) -> {
                    String values = NEUTRAL.get(option);
                    Required.check(
                            values != null && value.matches("(?i)" + values),
                            "option %s=%s is not supported: %s",
                            option,
                            value,
                            values == null ? "remove it" : "it must be " + values);
                });
    }

    private static boolean areProcesses(Integer degree) {
        LaunchEnvironment launcher = LaunchEnvironment.current();
        return launcher.isDistributed()
                && (degree == null || launcher.get("WORLD_SIZE").equals(degree.toString()));
    }

    private static <T> void set(
            Map<String, String> left,
            String name,
            String must,
            Function<String, T> parser,
            Consumer<T> setter) {
        String value = left.remove(name);
        if (value == null) {
            return;
        }
        T parsed;
        try {
            parsed = parser.apply(value);
        } catch (IllegalArgumentException e) { // Its message does not name the option.
            throw new IllegalArgumentException(
                    String.format("option %s must be %s, not %s", name, must, value));
        }
        setter.accept(parsed);
    }

    private static void number(Map<String, String> left, String name, IntConsumer setter) {
        set(left, name, "a whole number, 1 or more", TextModelLoader::positive, setter::accept);
    }

    private static int positive(String value) {
        int number = Integer.parseInt(value);
        if (number < 1) {
            throw new IllegalArgumentException(value);
        }
        return number;
    }

    private static String oneOf(String value, String pattern) {
        String lower = value.toLowerCase(Locale.ROOT);
        if (!lower.matches(pattern)) {
            throw new IllegalArgumentException(value);
        }
        return lower;
    }

    /** Takes the tensor-parallel degree; null if none is given. */
    private static Integer degree(Map<String, String> left, List<Device> given) {
        String name = "tensor_parallel_degree";
        if (!"max".equals(left.get(name))) {
            Integer[] degree = {null};
            number(left, name, value -> degree[0] = value);
            return degree[0];
        }
        left.remove(name);
        if (!given.get(0).isGpu()) {
            throw new IllegalArgumentException(
                    "option " + name + " is max, which is for GPUs only; on CPUs set a number");
        }
        return areProcesses(null) ? null : maxDegree(given, CudaDevice.count());
    }

    /**
     * Returns the tensor-parallel degree for {@code max}: the model is loaded on the given ones of
     * the machine's GPUs.
     */
    static int maxDegree(List<Device> given, int gpus) {
        int first = given.get(0).getDeviceId();
        Required.check(
                first < gpus,
                "the model is loaded on %s, but the machine has %d GPUs",
                given.get(0),
                gpus);
        return given.size() > 1 ? given.size() : gpus - first;
    }

    static List<Device> gpus(List<Device> given, Integer degree) {
        if (degree == null || degree == given.size()) {
            return given;
        }
        Required.check(
                given.size() <= 1,
                "tensor_parallel_degree is %d, but the model is loaded on %s; set the"
                        + " number of these, or leave it out",
                degree,
                given);
        List<Device> all = new ArrayList<>();
        for (int i = 0; i < degree; i++) {
            all.add(Device.gpu(given.get(0).getDeviceId() + i));
        }
        return all;
    }
}

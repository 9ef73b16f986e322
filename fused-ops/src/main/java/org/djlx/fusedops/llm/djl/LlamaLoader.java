// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.djl;

import ai.djl.Device;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.TorchThreads;
import org.djlx.collectives.engine.ParallelModel;
import org.djlx.collectives.engine.ParallelModelLoader;
import org.djlx.fusedops.llm.api.TextApi;
import org.djlx.fusedops.llm.engine.LlamaGenerator;
import org.djlx.fusedops.llm.text.ChatTemplate;
import org.djlx.fusedops.llm.text.ToolFormat;
import org.djlx.nativeops.cuda.CudaDevice;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Loads a language model for DJL and DJL Serving, from a model directory in Hugging Face's layout
 * with a {@code serving.properties}:
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
 * <p><b>Options</b>, all optional:
 *
 * <ul>
 *   <li>{@code tensor_parallel_degree}: the number of ranks. {@code max} means all GPUs that the
 *       model is loaded on; if it is loaded on one GPU, that GPU and all GPUs after it. The default
 *       is one rank per process if there are several processes; otherwise one per GPU that the
 *       model is loaded on, or one on the CPU. With one GPU and a larger degree, the ranks take
 *       that GPU and the GPUs after it. DJL Serving loads a model once for each GPU that {@code
 *       load_on_devices} allows.
 *   <li>{@code max_model_len}: see {@link LlamaGenerator.Builder#optMaxLength}.
 *   <li>{@code max_rolling_batch_size}: see {@link LlamaGenerator.Builder#optMaxRunning}.
 *   <li>{@code max_rolling_batch_prefill_tokens}: see {@link
 *       LlamaGenerator.Builder#optPrefillTokens}.
 *   <li>{@code max_queue_size}: see {@link LlamaGenerator.Builder#optMaxQueued}.
 *   <li>{@code kv_cache_bytes}: see {@link LlamaGenerator.Builder#optCacheBytes}.
 *   <li>{@code gpu_memory_utilization}: see {@link LlamaGenerator.Builder#optGpuMemoryUtilization}.
 *   <li>{@code enable_prefix_caching}: see {@link LlamaGenerator.Builder#optPrefixCaching}.
 *   <li>{@code tool_call_parser}: see {@link ToolFormat#named}; by default the chat template tells.
 * </ul>
 */
public final class LlamaLoader implements ParallelModelLoader {

    private static final Logger LOG = LoggerFactory.getLogger(LlamaLoader.class);

    // Hugging Face's file names.
    private static final Pattern WEIGHTS =
            Pattern.compile(
                    "model(-\\d+-of-\\d+)?\\.safetensors|model\\.safetensors\\.index\\.json");

    private static final Set<String> KNOWN =
            Set.of(
                    "tensor_parallel_degree",
                    "max_model_len",
                    "max_rolling_batch_size",
                    "max_rolling_batch_prefill_tokens",
                    "max_queue_size",
                    "kv_cache_bytes",
                    "gpu_memory_utilization",
                    "enable_prefix_caching",
                    "tool_call_parser",
                    "modelName");

    // Options that DJL Serving adds by itself if there is a config.json. They have no effect here.
    private static final Map<String, String> SET_BY_DJL_SERVING =
            Map.of("rolling_batch", "disable", "pipeline_parallel_degree", "1");

    /** Creates the loader; for {@link java.util.ServiceLoader}. */
    public LlamaLoader() {}

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

    @Override
    public ParallelModel load(String name, Path directory, Device device, Map<String, ?> options)
            throws IOException {
        Set<String> unknown = new TreeSet<>();
        options.forEach(
                (option, value) -> {
                    if (!KNOWN.contains(option) && !value.equals(SET_BY_DJL_SERVING.get(option))) {
                        unknown.add(option);
                    }
                });
        if (!unknown.isEmpty()) {
            LOG.warn("{}: unknown options {} are ignored", name, unknown);
        }
        if (!Files.exists(
                directory.resolve("tokenizer.json"))) { // Checked before weights are read.
            throw new IllegalArgumentException(
                    directory + " has no tokenizer.json; download it from where the weights are");
        }
        LlamaGenerator.Builder builder =
                LlamaGenerator.builder()
                        .setDirectory(directory)
                        .optProgress(new LoadingProgress(LOG::info));
        Integer degree = degree(options, device.getDevices());
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
        Integer length = number(options, "max_model_len");
        if (length != null) {
            builder.optMaxLength(length);
        }
        Integer running = number(options, "max_rolling_batch_size");
        if (running != null) {
            builder.optMaxRunning(running);
        }
        Integer prefill = number(options, "max_rolling_batch_prefill_tokens");
        if (prefill != null) {
            builder.optPrefillTokens(prefill);
        }
        Integer queued = number(options, "max_queue_size");
        if (queued != null) {
            builder.optMaxQueued(queued);
        }
        Long cache = longNumber(options, "kv_cache_bytes");
        if (cache != null) {
            builder.optCacheBytes(cache);
        }
        Object utilization = options.get("gpu_memory_utilization");
        if (utilization != null) {
            builder.optGpuMemoryUtilization(decimal("gpu_memory_utilization", utilization));
        }
        Object prefixCaching = options.get("enable_prefix_caching");
        if (prefixCaching != null) {
            builder.optPrefixCaching(flag("enable_prefix_caching", prefixCaching));
        }
        ChatTemplate template = ChatTemplate.of(directory);
        Object parser = options.get("tool_call_parser");
        ToolFormat tools = parser == null ? null : ToolFormat.named(parser.toString().trim());
        if (processes) {
            builder.optProcessGroup(ProcessGroups.init(gpu ? "cuda_p2p" : "shm"));
        }
        LlamaGenerator generator = builder.build();
        boolean done = false;
        try {
            TextApi api = new TextApi(name, generator, template, tools);
            done = true;
            return new LlamaService(generator, api);
        } finally {
            if (!done) {
                generator.close();
            }
        }
    }

    /** Returns whether the ranks are processes. */
    private static boolean areProcesses(Integer degree) {
        String worldSize = System.getenv("WORLD_SIZE");
        if (System.getenv("RANK") == null || worldSize == null || worldSize.trim().equals("1")) {
            return false;
        }
        return degree == null || worldSize.trim().equals(degree.toString());
    }

    private static Long longNumber(Map<String, ?> options, String name) {
        Object value = options.get(name);
        try {
            return value == null ? null : Long.valueOf(value.toString().trim());
        } catch (NumberFormatException e) {
            throw new IllegalArgumentException(
                    "option " + name + " must be a whole number, not " + value, e);
        }
    }

    private static double decimal(String name, Object value) {
        try {
            return Double.parseDouble(value.toString().trim());
        } catch (NumberFormatException e) {
            throw new IllegalArgumentException(
                    "option " + name + " must be a number, not " + value, e);
        }
    }

    private static boolean flag(String name, Object value) {
        String text = value.toString().trim().toLowerCase(Locale.ROOT);
        if (!text.equals("true") && !text.equals("false")) {
            throw new IllegalArgumentException(
                    "option " + name + " must be true or false, not " + value);
        }
        return text.equals("true");
    }

    private static Integer number(Map<String, ?> options, String name) {
        Long value = longNumber(options, name);
        if (value != null && (value < 1 || value > Integer.MAX_VALUE)) {
            throw new IllegalArgumentException(
                    "option "
                            + name
                            + " must be from 1 to "
                            + Integer.MAX_VALUE
                            + ", not "
                            + value);
        }
        return value == null ? null : value.intValue();
    }

    /** Returns the tensor-parallel degree, or null if none is given. */
    private static Integer degree(Map<String, ?> options, List<Device> given) {
        String name = "tensor_parallel_degree";
        Object value = options.get(name);
        if (value == null || !value.toString().trim().equals("max")) {
            return number(options, name);
        }
        if (!given.get(0).isGpu()) {
            throw new IllegalArgumentException(
                    "option " + name + " is max, which is for GPUs only; on CPUs set a number");
        }
        return areProcesses(null) ? null : maxDegree(given, CudaDevice.count());
    }

    /**
     * Returns the tensor-parallel degree for {@code max}.
     *
     * @param given the GPUs that the model is loaded on
     * @param gpus the number of GPUs of the machine
     */
    static int maxDegree(List<Device> given, int gpus) {
        int first = given.get(0).getDeviceId();
        if (first >= gpus) {
            throw new IllegalArgumentException(
                    String.format(
                            "the model is loaded on %s, but the machine has %d GPUs",
                            given.get(0), gpus));
        }
        return given.size() > 1 ? given.size() : gpus - first;
    }

    /** Returns the GPUs of a tensor-parallel degree, which may be null. */
    static List<Device> gpus(List<Device> given, Integer degree) {
        if (degree == null || degree == given.size()) {
            return given;
        }
        if (given.size() > 1) {
            throw new IllegalArgumentException(
                    String.format(
                            "tensor_parallel_degree is %d, but the model is loaded on %s; set the"
                                    + " number of these, or leave it out",
                            degree, given));
        }
        List<Device> all = new ArrayList<>();
        for (int i = 0; i < degree; i++) {
            all.add(Device.gpu(given.get(0).getDeviceId() + i));
        }
        return all;
    }
}

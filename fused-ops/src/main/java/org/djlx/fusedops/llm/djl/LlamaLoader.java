/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.djl;

import ai.djl.Device;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
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
import org.djlx.nativeops.cuda.CudaDevice;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Loads a Llama for DJL, and so for DJL Serving, from a directory in Hugging Face's layout with a
 * {@code serving.properties}:
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
 * <p>Requests and answers are those of {@link TextApi}. An answer is returned at once, and its data
 * comes as a {@link ai.djl.inference.streaming.ChunkedBytesSupplier}: one chunk for each piece if
 * it is streamed, otherwise one; so one worker of DJL Serving serves many requests at a time.
 *
 * <p>Ranks are threads of this JVM; or processes, if {@code RANK} and {@code WORLD_SIZE} are set,
 * as {@code samples/run.sh launch} and torchrun do, and there are as many as the model is to have
 * ranks. Each of them loads the model, on GPUs on the one that {@code LOCAL_RANK} names. Rank 0
 * serves requests; the others follow it, refuse requests, and wait when they close the model until
 * rank 0 closes its own.
 *
 * <p>The log says how loading goes, as DJL does not hand a {@link ai.djl.util.Progress} to what
 * loads a model: that of {@code Criteria} learns of its beginning and its end.
 *
 * <p>Options, all of them optional:
 *
 * <ul>
 *   <li>{@code tensor_parallel_degree}: the number of ranks. Unless given, one for each process, if
 *       there are several, or for each GPU that the model is loaded on, or one on the CPU. With one
 *       GPU and a larger degree, those that follow it are taken, with {@code max} all of them. DJL
 *       Serving loads a model once on each GPU that {@code load_on_devices} does not rule out.
 *   <li>{@code max_model_len}: as {@link LlamaGenerator.Builder#optMaxLength}.
 *   <li>{@code max_rolling_batch_size}: as {@link LlamaGenerator.Builder#optMaxRunning}.
 *   <li>{@code max_rolling_batch_prefill_tokens}: as {@link
 *       LlamaGenerator.Builder#optPrefillTokens}.
 *   <li>{@code max_queue_size}: as {@link LlamaGenerator.Builder#optMaxQueued}.
 *   <li>{@code kv_cache_bytes}: as {@link LlamaGenerator.Builder#optCacheBytes}.
 * </ul>
 */
public final class LlamaLoader implements ParallelModelLoader {

    private static final Logger LOG = LoggerFactory.getLogger(LlamaLoader.class);
    // Hugging Face's names.
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
                    "modelName");

    // For each directory that has Hugging Face's config.json.
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
        // What else is missing is named when the model is loaded, and not by DJL's PyTorch engine,
        // which would miss a file in TorchScript.
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
            LOG.warn("{}: the options {} are not known, and do nothing", name, unknown);
        }
        if (!Files.exists(directory.resolve("tokenizer.json"))) { // Before weights are read.
            throw new IllegalArgumentException(
                    directory
                            + " has no tokenizer.json, which makes tokens of texts; fetch it from"
                            + " where the weights are");
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
        ChatTemplate template = ChatTemplate.of(directory);
        if (processes) {
            builder.optProcessGroup(ProcessGroups.init(gpu ? "cuda_p2p" : "shm"));
        }
        LlamaGenerator generator = builder.build();
        boolean done = false;
        try {
            TextApi api = new TextApi(name, generator, template);
            done = true;
            return new LlamaService(generator, api);
        } finally {
            if (!done) {
                generator.close();
            }
        }
    }

    /** Tells whether the model's ranks are processes, of which this is one. */
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
                    "the option " + name + " is no whole number: " + value, e);
        }
    }

    private static Integer number(Map<String, ?> options, String name) {
        Long value = longNumber(options, name);
        if (value != null && (value < 1 || value > Integer.MAX_VALUE)) {
            throw new IllegalArgumentException("the option " + name + " is impossible: " + value);
        }
        return value == null ? null : value.intValue();
    }

    /** Returns how many ranks are asked for, or null. */
    private static Integer degree(Map<String, ?> options, List<Device> given) {
        String name = "tensor_parallel_degree";
        Object value = options.get(name);
        if (value == null || !value.toString().trim().equals("max")) {
            return number(options, name);
        }
        if (!given.get(0).isGpu()) {
            throw new IllegalArgumentException(
                    "the option " + name + " is max, which is for GPUs; on CPUs name the ranks");
        }
        return areProcesses(null) ? null : most(given, CudaDevice.count());
    }

    /** Returns how many GPUs a model may be loaded on, out of so many that there are. */
    static int most(List<Device> given, int gpus) {
        int first = given.get(0).getDeviceId();
        if (first >= gpus) {
            throw new IllegalArgumentException(
                    String.format(
                            "tensor_parallel_degree is max from %s on, but there are %d GPUs",
                            given.get(0), gpus));
        }
        return given.size() > 1 ? given.size() : gpus - first;
    }

    static List<Device> gpus(List<Device> given, Integer degree) {
        if (degree == null || degree == given.size()) {
            return given;
        }
        if (given.size() > 1) {
            throw new IllegalArgumentException(
                    String.format(
                            "tensor_parallel_degree is %d, but the model is loaded on %s",
                            degree, given));
        }
        List<Device> all = new ArrayList<>();
        for (int i = 0; i < degree; i++) {
            all.add(Device.gpu(given.get(0).getDeviceId() + i));
        }
        return all;
    }
}

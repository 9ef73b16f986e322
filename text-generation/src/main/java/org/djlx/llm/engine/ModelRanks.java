// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import ai.djl.util.Progress;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.pool.RankPool;
import org.djlx.collectives.pool.RankWorker;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.llm.files.GgufDirectory;
import org.djlx.llm.model.BlockFiles;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.model.WeightMap;
import org.djlx.llm.ops.KvCache;
import org.djlx.llm.ops.ModelKernels;
import org.djlx.llm.ops.ModelWeights;
import org.djlx.llm.ops.TransformerModel;
import org.djlx.llm.ops.WeightFormat;
import org.djlx.llm.sampling.Sampler;
import org.djlx.nativeops.host.Required;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The ranks of a generator, with a loaded model.
 *
 * @param samplesOnDevice whether ranks sample on the GPU: step n+1 can then launch before the host
 *     knows the tokens of step n. If ranks are processes, valid on rank 0 only
 */
record ModelRanks(
        RankPool<StepRequest, List<Sampler.SampledToken>> pool,
        int cacheBlocks,
        boolean samplesOnDevice) {

    private static final Logger LOG = LoggerFactory.getLogger(ModelRanks.class);

    /**
     * Starts the ranks and loads the model. Checks the files before anything is allocated. The
     * caller closes the pool.
     */
    static ModelRanks load(
            String name, Path directory, ModelConfig config, GeneratorSettings settings)
            throws IOException {
        int ranks = settings.ranks();
        try (TensorFiles files = GgufDirectory.openWeights(directory)) {
            try {
                WeightMap.check(config, files);
            } catch (IllegalArgumentException e) {
                throw new IllegalArgumentException(directory + ": " + e.getMessage(), e);
            }
            long weightBytes = WeightMap.byteSize(config, ranks);
            WeightFormat format =
                    WeightFormat.of(
                            config, settings.device(), ranks, settings.quantization(), files);
            String memory =
                    String.format(
                            "%.1f MB of weights on each of %s%s",
                            weightBytes / 1e6,
                            ranks == 1 ? "1 rank" : ranks + " ranks",
                            settings.quantization() != Quantization.NONE
                                    ? ", before they become " + settings.quantization()
                                    : !(files instanceof BlockFiles)
                                            ? ""
                                            : settings.device().isGpu() && format.group() == 0
                                                    ? ", dequantised from blocks"
                                                    : ", less where they stay in blocks");
            if (!settings.isFollower()) {
                LOG.info("{}: {}", directory, memory);
            }
            Progress progress = settings.isFollower() ? null : settings.progress();
            if (progress != null) {
                progress.reset("Loading " + directory.getFileName(), weightBytes, memory);
            }
            boolean inPlace = isInPlace(config, settings, files);
            if (inPlace && settings.quantization() == Quantization.NONE) {
                files.populate();
            }
            AtomicBoolean samplesOnDevice = new AtomicBoolean();
            AtomicInteger cacheBlocks = new AtomicInteger();
            ProcessGroups.RankBody<RankWorker<StepRequest, List<Sampler.SampledToken>>> maker =
                    group -> {
                        TransformerModel model =
                                model(config, settings, group, format, files, inPlace);
                        cacheBlocks.set(model.cacheSlots() / KvCache.BLOCK_TOKENS);
                        if (group.rank() == 0) {
                            samplesOnDevice.set(model.hasDecoder());
                        }
                        return new ModelRank(group, model);
                    };
            RankPool<StepRequest, List<Sampler.SampledToken>> pool;
            Optional<ModelKernels.Compilations> compiling =
                    ModelKernels.compile(
                            config, settings.device(), ranks, format, settings.batchInvariant());
            try {
                pool =
                        settings.group() == null
                                ? RankPool.start(name, settings.groups(), maker)
                                : RankPool.join(name, settings.group(), StepRequest.CODEC, maker);
            } finally {
                compiling.ifPresent(ModelKernels.Compilations::close);
            }
            try {
                if (progress != null) {
                    progress.end();
                }
                return new ModelRanks(pool, cacheBlocks.get(), samplesOnDevice.get());
            } catch (Throwable e) {
                pool.close();
                throw e;
            }
        }
    }

    /**
     * Returns whether weights are used where the files are mapped. A rank that is a process needs a
     * part of the files only. Of quantized models only the embedding stays in the files.
     */
    private static boolean isInPlace(
            ModelConfig config, GeneratorSettings settings, TensorFiles files) {
        if (settings.group() != null || settings.device().isGpu()) {
            return false;
        }
        return settings.quantization() != Quantization.NONE
                || WeightMap.shapes(config).entrySet().stream()
                        .filter(each -> each.getValue().dimension() > 1) // Vectors are copied.
                        .allMatch(each -> files.spec(each.getKey()).type() == config.type());
    }

    private static TransformerModel model(
            ModelConfig config,
            GeneratorSettings settings,
            ProcessGroup group,
            WeightFormat format,
            TensorFiles files,
            boolean inPlace)
            throws IOException {
        int ranks = group.worldSize();
        if (config.hasExperts()) {
            DeviceKinds.requireSame(group);
        }
        Progress progress = group.rank() == 0 ? settings.progress() : null;
        long start = System.nanoTime();
        ModelWeights weights =
                ModelWeights.read(
                        config,
                        group.rank(),
                        ranks,
                        group.device(),
                        format,
                        files,
                        inPlace,
                        bytes -> {
                            if (progress != null) {
                                progress.increment(bytes);
                            }
                        });
        LOG.info(
                "rank {}: read its weights in {} s",
                group.rank(),
                String.format("%.2f", (System.nanoTime() - start) / 1e9));
        KvCache cache = null;
        try {
            boolean maps = inPlace && settings.quantization() == Quantization.NONE;
            long mappedBytes = maps ? WeightMap.byteSize(config, 1) : 0;
            int slots =
                    CacheSize.blocks(config, settings, group, mappedBytes) * KvCache.BLOCK_TOKENS;
            if (group.rank() == 0) {
                LOG.info(
                        "KV cache: {} tokens, {} MB on each rank",
                        slots,
                        String.format("%.1f", KvCache.byteSize(config, ranks, slots) / 1e6));
            }
            cache = new KvCache(config, ranks, slots, group.device());
            return TransformerModel.create(
                    config, group, weights, cache, settings.maxLength(), settings.batchInvariant());
        } catch (RuntimeException | Error e) { // For example if memory runs out.
            if (cache != null) {
                cache.close();
            }
            weights.close();
            throw e;
        }
    }

    /**
     * Checks that all processes have the same model and the same options that all ranks need, as
     * rank 0 schedules the blocks of all ranks. Users start each process separately. Throws on all
     * ranks if they differ.
     */
    static void checkAgreement(ModelConfig config, GeneratorSettings settings) {
        String own =
                String.format(
                        "%s with maxLength %d, maxRunning %d, cacheBytes %d,"
                                + " gpuMemoryUtilization %s, batchInvariant %s and quantization %s",
                        config,
                        settings.maxLength(),
                        settings.maxRunning(),
                        settings.cacheBytes(),
                        settings.memoryUtilization(),
                        settings.batchInvariant(),
                        settings.quantization());
        checkSame(
                CacheSize.allGather(settings.group(), own),
                "ranks differ in their model or options, which must be the same on all ranks");
    }

    /** Throws if a rank has another value than rank 0; the message begins with the problem. */
    static void checkSame(List<String> values, String problem) {
        for (int rank = 1; rank < values.size(); rank++) {
            Required.check(
                    values.get(rank).equals(values.get(0)),
                    "%s: rank 0 has %s, rank %d has %s",
                    problem,
                    values.get(0),
                    rank,
                    values.get(rank));
        }
    }
}

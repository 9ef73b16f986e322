// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.llm.model.DerivedFiles;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.model.WeightMap;
import org.djlx.llm.sampling.SamplingParameters;

/**
 * A language model as an encoder: the vectors after its last norm, without output matrix and KV
 * cache. Its tokens attend to those before them.
 */
final class DecoderEncoder extends SequenceEncoder {

    private final RankModel model;
    private final TorchAttention attention;
    private final NDManager manager;

    /** Files whose names lack the prefix that language models have. */
    private static final class PrefixedFiles extends DerivedFiles {

        private static final String PREFIX = "model.";

        PrefixedFiles(TensorFiles files) {
            super(files);
            for (TensorSpec each : files.specs()) {
                String name = PREFIX + each.name();
                specs.put(name, new TensorSpec(name, each.dtype(), each.shape()));
            }
        }

        @Override
        protected String stored(String name) {
            return name.startsWith(PREFIX) ? name.substring(PREFIX.length()) : name;
        }
    }

    private DecoderEncoder(RankModel model, NDManager manager, int maxLength) {
        super(
                model.config().hiddenSize(),
                model.config().vocabularySize(),
                maxLength,
                manager.getDevice());
        this.model = model;
        this.manager = manager;
        attention = new TorchAttention(model);
    }

    static DecoderEncoder read(Path directory, TensorFiles all, Device device, DataType type)
            throws IOException {
        ModelConfig config = ModelConfig.readWithoutOutput(directory, type);
        int maxLength = maxLength(directory, config);
        TensorFiles files = all.contains(WeightMap.EMBEDDING) ? all : new PrefixedFiles(all);
        try {
            WeightMap.check(config, files);
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(directory + ": " + e.getMessage(), e);
        }
        ProcessGroup group = group(device);
        NDManager manager = NDManager.newBaseManager(device);
        ModelWeights weights = null;
        try {
            weights =
                    ModelWeights.read(
                            config,
                            0,
                            1,
                            device,
                            new WeightFormat(Quantization.NONE),
                            files,
                            false,
                            bytes -> {});
            RotaryTables tables = new RotaryTables(config, manager, maxLength);
            KvCache none = new KvCache(config, 1, 0, device);
            RankModel model = new RankModel(config, group, weights, none, tables, new Adapters());
            return new DecoderEncoder(model, manager, maxLength);
        } catch (Throwable e) {
            if (weights != null) {
                weights.close();
            }
            manager.close();
            group.destroy();
            throw e;
        }
    }

    /** Returns the longest sequence whose tokens attend to all tokens before them. */
    private static int maxLength(Path directory, ModelConfig config) {
        int length = config.maxLength();
        for (LayerConfig layer : config.layerConfigs()) {
            int window = layer.attention().window();
            length = window == 0 ? length : Math.min(length, window);
        }
        for (LayerConfig layer : config.layerConfigs()) {
            if (!layer.attention().isPlain(config.headSize(), length)) {
                throw new IllegalArgumentException(
                        directory
                                + ": embeddings of a model that limits or rescales its scores ("
                                + config.modelType()
                                + ") are not supported");
            }
        }
        return length;
    }

    private static ProcessGroup group(Device device) {
        if (!device.isGpu()) {
            return ProcessGroups.local("shm", 1, new BackendOptions(BackendOptions.DEFAULT_TIMEOUT))
                    .get(0);
        }
        NcclOptions options = NcclOptions.builder().optDevices(new Device[] {device}).build();
        return ProcessGroups.local("nccl", 1, options).get(0);
    }

    @Override
    NDArray encode(NDManager manager, List<int[]> sequences, List<Group> groups) {
        TokenBatch batch = new TokenBatch(sequences.stream().map(DecoderEncoder::chunk).toList());
        TorchOps ops = new TorchOps(model, manager, attention, batch);
        ForwardPass.layers(model, ops, 0, model.config().layers());
        return ForwardPass.norms(model, ops);
    }

    private static TokenBatch.Chunk chunk(int[] tokens) {
        int[] slots = new int[tokens.length]; // not used
        return new TokenBatch.Chunk(0, tokens, 0, slots, false, SamplingParameters.GREEDY, 0);
    }

    @Override
    public void close() {
        manager.close();
        model.cache().close();
        model.weights().close();
        model.group().destroy();
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.engine;

import ai.djl.Device;
import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.engine.EngineException;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;
import ai.djl.training.initializer.Initializer;
import ai.djl.translate.Translator;
import ai.djl.util.Pair;
import ai.djl.util.PairList;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.URL;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.djlx.collectives.Agreement;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.nativeops.ContextLoader;
import org.djlx.nativeops.torch.Torch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A model of the engine PyTorch-P2P. It delegates to a model of the PyTorch engine, except for its
 * trainer, for saving (rank 0 writes), and for models that a {@link ParallelModelLoader} divides
 * among ranks.
 */
final class P2pModel implements Model {

    // DJL Serving reads this property to find out whether a model has failed.
    private static final String FAILED = "failed";
    private static final String LOAD_ON_DEVICES = "load_on_devices";
    private static final String MODEL_ID = "model_id"; // the option that names another directory

    private static final Pattern ONE_MODEL = Pattern.compile("cpu|gpu\\d+(\\+gpu\\d+)*");

    private static final Logger LOG = LoggerFactory.getLogger(P2pModel.class);

    private final Model model;
    private final Device device; // may stand for several devices; null if the user named none
    private volatile int process; // this process's data-parallel rank
    private volatile ParallelModel parallel; // null if the model is not divided among ranks
    // Of the parallel model, as passed to load(). DJL Serving deletes it with the model if it lies
    // in DJL's cache: never the directory of the user that the option model_id names.
    private volatile Path directory;

    P2pModel(Model model, Device device) {
        this.model = model;
        this.device = device;
    }

    @Override
    public Trainer newTrainer(TrainingConfig config) {
        Block block = getBlock();
        if (block == null) {
            throw new IllegalStateException(
                    "newTrainer: the model '" + getName() + "' has no block; call setBlock first");
        }
        for (Pair<Initializer, Predicate<Parameter>> pair : config.getInitializers()) {
            if (pair.getKey() != null && pair.getValue() != null) {
                block.setInitializer(pair.getKey(), pair.getValue());
            }
        }
        TrainerFactory factory =
                ContextLoader.providers(TrainerFactory.class).stream()
                        .findFirst()
                        .orElseThrow(
                                () ->
                                        new IllegalStateException(
                                                ("newTrainer: the engine %s trains with the module"
                                                     + " training, which is not on the class path;"
                                                     + " add the dependency org.djlx:training")
                                                        .formatted(P2pEngine.NAME)));
        TrainerFactory.Made made = factory.newTrainer(this, config);
        process = made.process();
        return made.trainer();
    }

    @Override
    public void save(Path modelPath, String newModelName) throws IOException {
        if (process > 0) {
            LOG.info("Rank {} does not save {}: rank 0 saves it.", process, newModelName);
            return;
        }
        for (Pair<String, Parameter> named : getBlock().getParameters()) {
            Parameter parameter = named.getValue();
            if (parameter.isInitialized() && parameter.getArray().isReleased()) {
                throw new IllegalStateException(
                        ("save: the parameter '%s' is divided among the ranks or closed; save"
                             + " between trainer.summonFullParameters() and its close(), or after"
                             + " the trainer is closed")
                                .formatted(named.getKey()));
            }
        }
        requireNamedTypes(getBlock());
        ProcessGroup parts = DividedBlock.groupOf(getBlock());
        boolean first = parts == null || parts.rank() == 0;
        // Creating the directory fails most often, so it comes first: all ranks then fail before a
        // rank waits for a part.
        Agreement.run(
                parts,
                "save",
                () -> {
                    if (first) {
                        Files.createDirectories(modelPath);
                    }
                    return null;
                });
        if (!first) {
            // If the first rank fails during this call, the call fails too. Both throw IOException,
            // which callers handle alike on all ranks.
            try {
                getBlock().saveParameters(new DataOutputStream(OutputStream.nullOutputStream()));
            } catch (CollectiveException e) {
                throw new IOException("save: another rank of the divided block failed", e);
            }
        }
        Agreement.run(
                parts,
                "save",
                () -> {
                    if (first) {
                        write(modelPath, newModelName);
                    }
                    return null;
                });
    }

    /** Refuses types whose files end the JVM that reads them; divided blocks write their own. */
    private static void requireNamedTypes(Block block) {
        for (Parameter parameter : block.getDirectParameters().values()) {
            if (!(block instanceof DividedBlock)
                    && parameter.isInitialized()
                    && parameter.getArray().getDataType() == DataType.UNKNOWN) {
                throw new IllegalArgumentException(
                        ("save: the parameter '%s' of %s is %s, which DJL's files do not have; save"
                             + " it by CheckpointManager or SafetensorsWriter, or give the block a"
                             + " float32 array")
                                .formatted(
                                        parameter.getName(),
                                        block.getClass().getSimpleName(),
                                        Torch.scalarType(parameter.getArray())));
            }
        }
        block.getChildren().values().forEach(P2pModel::requireNamedTypes);
    }

    /**
     * Saves the model. On failure deletes the incomplete files: DJL would load them as the newest.
     */
    private void write(Path modelPath, String newModelName) throws IOException {
        Set<Path> before = files(modelPath);
        try {
            model.save(modelPath, newModelName);
        } catch (Throwable e) {
            Set<Path> made = files(modelPath);
            made.removeAll(before);
            for (Path file : made) {
                if (file.getFileName().toString().startsWith(newModelName + '-')) {
                    Files.deleteIfExists(file);
                }
            }
            throw e;
        }
    }

    private static Set<Path> files(Path directory) throws IOException {
        try (Stream<Path> files = Files.list(directory)) {
            return files.collect(Collectors.toCollection(HashSet::new));
        }
    }

    @Override
    public void load(Path modelPath, String prefix, Map<String, ?> options)
            throws IOException, MalformedModelException {
        if (parallel != null) {
            throw new IllegalStateException(
                    "load: the model '" + getName() + "' is already loaded from " + directory);
        }
        if (getBlock() == null && Files.isDirectory(modelPath)) {
            Map<String, Object> given = new HashMap<>(options == null ? Map.of() : options);
            parallel = loadParallel(modelPath, given.remove(MODEL_ID), given);
            if (parallel != null) {
                directory = modelPath.toAbsolutePath();
                return;
            }
        }
        model.load(modelPath, prefix, options);
    }

    /**
     * Loads a model that is divided among ranks; null if no loader accepts it. An error says
     * everything in its message and has no cause: DJL Serving's clients get the last cause only.
     */
    private ParallelModel loadParallel(Path modelPath, Object modelId, Map<String, ?> options)
            throws IOException {
        try {
            Path files = files(modelPath, modelId, options);
            for (ParallelModelLoader loader : ContextLoader.providers(ParallelModelLoader.class)) {
                if (loader.canLoad(files)) {
                    Device where = device(modelPath);
                    return ContextLoader.of(
                            loader.getClass(), () -> loader.load(getName(), files, where, options));
                }
            }
            return null;
        } catch (IllegalArgumentException e) {
            throw whole(e, IllegalArgumentException::new);
        } catch (IOException e) {
            throw whole(e, IOException::new);
        } catch (CollectiveException e) {
            throw whole(e, CollectiveException::new);
        } catch (RuntimeException e) {
            throw whole(e, EngineException::new);
        }
    }

    /**
     * Returns an exception without a cause, whose message has those of all causes. The given
     * exception is suppressed in it.
     */
    private static <E extends Exception> E whole(E failure, Function<String, E> maker) {
        if (failure.getCause() == null && failure.getMessage() != null) {
            return failure;
        }
        String all = text(failure);
        for (Throwable t = failure.getCause(); t != null; t = t.getCause()) {
            if (t.getMessage() == null || !all.contains(t.getMessage())) {
                all += ": " + text(t);
            }
        }
        E whole = maker.apply(all);
        whole.addSuppressed(failure);
        return whole;
    }

    /** Returns the message, with the type where it would not be understood without. */
    private static String text(Throwable failure) {
        boolean clear = failure.getMessage() != null && !(failure instanceof FileSystemException);
        return clear ? failure.getMessage() : failure.toString();
    }

    /** Returns the directory of the model's files; the option that names it may be null. */
    private static Path files(Path modelPath, Object modelId, Map<String, ?> options)
            throws IOException {
        String id = modelId == null ? "" : modelId.toString().trim();
        Path files = modelPath.resolve(id);
        if (Files.isDirectory(files)) {
            return files;
        }
        for (ParallelModelLoader loader : ContextLoader.providers(ParallelModelLoader.class)) {
            Path named = loader.directory(id, options);
            if (named != null) {
                return named;
            }
        }
        throw new IllegalArgumentException(
                String.format(
                        "option %s is %s, but there is no directory %s; download the model, and"
                                + " name its directory",
                        MODEL_ID, modelId, files));
    }

    /**
     * Returns the devices of a model that is divided among ranks. DJL Serving passes them; without
     * it, {@code load_on_devices} in {@code serving.properties} names them.
     */
    private Device device(Path modelPath) throws IOException {
        if (device != null) {
            return device;
        }
        Path file = modelPath.resolve("serving.properties");
        Properties properties = new Properties();
        if (Files.exists(file)) {
            try (InputStream in = Files.newInputStream(file)) {
                properties.load(in);
            }
        }
        // Lists and patterns of devices mean several models to DJL Serving, so they are ignored.
        String devices = properties.getProperty(LOAD_ON_DEVICES, "").trim();
        return ONE_MODEL.matcher(devices).matches()
                ? Device.fromName(devices)
                : Engine.getEngine(P2pEngine.NAME).defaultDevice();
    }

    @Override
    public void load(InputStream modelStream, Map<String, ?> options)
            throws IOException, MalformedModelException {
        model.load(modelStream, options);
    }

    @Override
    public Path getModelPath() {
        return parallel == null ? model.getModelPath() : directory;
    }

    @Override
    public Block getBlock() {
        return model.getBlock();
    }

    @Override
    public void setBlock(Block block) {
        model.setBlock(block);
    }

    @Override
    public String getName() {
        return model.getName();
    }

    @Override
    public Map<String, String> getProperties() {
        return model.getProperties();
    }

    @Override
    public String getProperty(String key) {
        ParallelModel divided = parallel;
        if (FAILED.equals(key) && divided != null && divided.unavailabilityCause().isPresent()) {
            return String.valueOf(Integer.MAX_VALUE);
        }
        return model.getProperty(key);
    }

    @Override
    public void setProperty(String key, String value) {
        model.setProperty(key, value);
        if (parallel != null) {
            parallel.setProperty(key, value);
        }
    }

    @Override
    public NDManager getNDManager() {
        return model.getNDManager();
    }

    @Override
    public <I, O> Predictor<I, O> newPredictor(Translator<I, O> translator, Device device) {
        return parallel == null
                ? model.newPredictor(translator, device)
                : new ParallelPredictor<>(this, translator, parallel);
    }

    @Override
    public <I, O> Predictor<I, O> newPredictor(Translator<I, O> translator) {
        return parallel == null
                ? model.newPredictor(translator)
                : new ParallelPredictor<>(this, translator, parallel);
    }

    @Override
    public PairList<String, Shape> describeInput() {
        return parallel == null ? model.describeInput() : new PairList<>();
    }

    @Override
    public PairList<String, Shape> describeOutput() {
        return parallel == null ? model.describeOutput() : new PairList<>();
    }

    @Override
    public String[] getArtifactNames() {
        return model.getArtifactNames();
    }

    @Override
    public <T> T getArtifact(String name, Function<InputStream, T> function) throws IOException {
        return model.getArtifact(name, function);
    }

    @Override
    public URL getArtifact(String name) throws IOException {
        return model.getArtifact(name);
    }

    @Override
    public InputStream getArtifactAsStream(String name) throws IOException {
        return model.getArtifactAsStream(name);
    }

    @Override
    public void setDataType(DataType dataType) {
        model.setDataType(dataType);
    }

    @Override
    public DataType getDataType() {
        return model.getDataType();
    }

    @Override
    public void cast(DataType dataType) {
        model.cast(dataType);
    }

    @Override
    public void quantize() {
        model.quantize();
    }

    @Override
    public void close() {
        ParallelModel divided = parallel;
        if (divided != null) {
            divided.close();
        }
        model.close();
    }

    @Override
    public String toString() {
        return model.toString();
    }
}

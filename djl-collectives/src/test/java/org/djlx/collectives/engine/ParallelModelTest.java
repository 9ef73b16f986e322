// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.engine;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.engine.EngineException;
import ai.djl.inference.Predictor;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.translate.TranslateException;
import java.io.EOFException;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.djlx.collectives.CollectiveException;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Models that a loader found by ServiceLoader has loaded. */
class ParallelModelTest {

    private static final String MARK = "a.test.of.loaders";
    @TempDir private Path directory;

    /** Loads directories with a certain file only, so that it is in no other test's way. */
    public static final class Loader implements ParallelModelLoader {

        private static Loaded last;
        private static Exception failure; // of the next load

        @Override
        public boolean canLoad(Path directory) {
            return Files.exists(directory.resolve(MARK));
        }

        @Override
        public ParallelModel load(
                String name, Path directory, Device device, Map<String, ?> options)
                throws IOException {
            Exception thrown = failure;
            failure = null;
            if (thrown instanceof IOException e) {
                throw e;
            } else if (thrown instanceof RuntimeException e) {
                throw e;
            }
            last = new Loaded(device, options);
            return last;
        }
    }

    /** Answers with what it was asked. */
    private static final class Loaded implements ParallelModel {

        final Device device;
        final Map<String, ?> options;
        final List<ClassLoader> contexts = new ArrayList<>();
        String lost;
        final Map<String, String> properties = new HashMap<>();
        boolean closed;

        Loaded(Device device, Map<String, ?> options) {
            this.device = device;
            this.options = options;
            contexts.add(Thread.currentThread().getContextClassLoader());
        }

        @Override
        public Output predict(Input input) {
            contexts.add(Thread.currentThread().getContextClassLoader());
            if (lost != null) {
                return new Output(503, lost);
            }
            Output output = new Output();
            output.add(input.getData());
            return output;
        }

        @Override
        public void setProperty(String key, String value) {
            properties.put(key, value);
        }

        @Override
        public Optional<String> unavailabilityCause() {
            return Optional.ofNullable(lost);
        }

        @Override
        public void close() {
            closed = true;
        }
    }

    @BeforeEach
    void mark() throws IOException {
        Files.writeString(directory.resolve(MARK), "");
        Files.writeString(
                directory.resolve("serving.properties"), "engine=PyTorch-P2P\noption.answer=42\n");
    }

    @Test
    void isLoadedAndServedByDjl() throws Exception {
        Criteria<Input, Output> criteria =
                Criteria.builder()
                        .setTypes(Input.class, Output.class)
                        .optModelPath(directory)
                        .build();
        Loaded loaded;
        try (ZooModel<Input, Output> model = criteria.loadModel();
                Predictor<Input, Output> predictor = model.newPredictor()) {
            loaded = Loader.last;
            assertEquals("42", loaded.options.get("answer"));
            assertEquals(Device.cpu(), loaded.device);
            Input input = new Input();
            input.add("hello");
            assertEquals("hello", predictor.predict(input).getData().getAsString());
            assertTrue(model.describeInput().isEmpty());
            assertNull(model.getProperty("failed"));
            loaded.lost = "a rank is gone";
            assertTrue(Integer.parseInt(model.getProperty("failed", "0")) > 0);
        }
        assertTrue(loaded.closed);
    }

    /** As DJL Serving loads a model, and names it afterwards. */
    @Test
    void comesFromTheDirectoryOfAnOption(@TempDir Path own) throws Exception {
        Path file = own.resolve("serving.properties");
        Files.writeString(file, "engine=PyTorch-P2P\noption.model_id= " + directory + " \n");
        Criteria<Input, Output> criteria =
                Criteria.builder().setTypes(Input.class, Output.class).optModelPath(own).build();
        try (ZooModel<Input, Output> model = criteria.loadModel()) {
            assertEquals(Map.of(), Loader.last.options);
            // DJL Serving deletes this path with the model, if it lies in DJL's cache.
            assertEquals(own.toAbsolutePath(), model.getModelPath());
            model.setProperty("metric_dimension", "registered");
            assertEquals(Map.of("metric_dimension", "registered"), Loader.last.properties);
        }
        Files.writeString(file, "engine=PyTorch-P2P\noption.model_id=Llama-3.1-8B\n");
        Exception e = assertThrows(IllegalArgumentException.class, criteria::loadModel);
        assertTrue(e.getMessage().contains("there is no directory "), e.getMessage());
    }

    @Test
    void goesWhereTheDirectorySaysUnlessTheUserDoes() throws Exception {
        Device two = Device.fromName("gpu2+gpu3");
        Files.writeString(
                directory.resolve("serving.properties"),
                "engine=PyTorch-P2P\nload_on_devices=gpu2+gpu3\n");
        // Devices that are not there, where the engine's own part of a model cannot go.
        P2pModel model = new P2pModel(Model.newInstance("m", Device.cpu(), "PyTorch"), null);
        model.load(directory, null, Map.of());
        assertEquals(two.getDevices(), Loader.last.device.getDevices());
        model.close();
        Criteria<Input, Output> criteria =
                Criteria.builder()
                        .setTypes(Input.class, Output.class)
                        .optModelPath(directory)
                        .optDevice(Device.cpu())
                        .build();
        criteria.loadModel().close();
        assertEquals(Device.cpu(), Loader.last.device);
        Files.writeString(
                directory.resolve("serving.properties"),
                "engine=PyTorch-P2P\nload_on_devices=gpu0;gpu1\n");
        P2pModel other = new P2pModel(Model.newInstance("m", Device.cpu(), "PyTorch"), null);
        other.load(directory, null, Map.of());
        assertEquals(Engine.getEngine(P2pEngine.NAME).defaultDevice(), Loader.last.device);
        other.close();
    }

    /** DJL Serving's clients see the message of the last cause only. */
    @Test
    void loadErrorsHaveNoCauseAndSayEverything() {
        Exception cause = new IllegalStateException("line 3", new NoSuchFileException("/a/b"));
        fails(
                new IllegalArgumentException("config.json: wrong", cause),
                IllegalArgumentException.class,
                "config.json: wrong: line 3: java.nio.file.NoSuchFileException: /a/b");
        fails(new IOException("no c", new EOFException()), IOException.class, "no c: java.io.EOF");
        fails(
                new CollectiveException("rank 1: out of memory", new EngineException("memory")),
                CollectiveException.class,
                "rank 1: out of memory");
        fails(new UncheckedIOException(new IOException("full")), EngineException.class, "full");
        fails(new NullPointerException(), EngineException.class, "NullPointerException");
    }

    private void fails(Exception failure, Class<? extends Exception> type, String message) {
        Loader.failure = failure;
        try (Model model = Model.newInstance("test", "PyTorch-P2P")) {
            Exception e = assertThrows(type, () -> model.load(directory));
            assertNull(e.getCause());
            assertTrue(e.getMessage().contains(message), e.getMessage());
            assertSame(failure, e.getSuppressed()[0]);
            assertDoesNotThrow(() -> model.load(directory));
        }
    }

    /** Such a thread sees neither the loaders nor DJL's engines by its context class loader. */
    @Test
    void isLoadedAndServesOnAThreadOfAServer() throws Exception {
        Thread thread = Thread.currentThread();
        ClassLoader before = thread.getContextClassLoader();
        thread.setContextClassLoader(ClassLoader.getPlatformClassLoader());
        try (Model model = Model.newInstance("test", "PyTorch-P2P")) {
            model.load(directory);
            try (Predictor<Input, Output> predictor = model.newPredictor(null)) {
                Input input = new Input();
                input.add("hello");
                predictor.predict(input);
            }
        } finally {
            thread.setContextClassLoader(before);
        }
        ClassLoader own = Loaded.class.getClassLoader();
        assertEquals(List.of(own, own), Loader.last.contexts);
    }

    @Test
    void predictorPassesArraysAndTellsWhyARankIsLost() throws Exception {
        Criteria<NDList, NDList> criteria =
                Criteria.builder()
                        .setTypes(NDList.class, NDList.class)
                        .optModelPath(directory)
                        .build();
        try (ZooModel<NDList, NDList> model = criteria.loadModel();
                Predictor<NDList, NDList> predictor = model.newPredictor();
                NDManager manager = NDManager.newBaseManager()) {
            NDList list = new NDList(manager.create(1));
            assertSame(list, predictor.predict(list));
            Loader.last.lost = "a rank is gone";
            String message =
                    assertThrows(TranslateException.class, () -> predictor.predict(list))
                            .getMessage();
            assertEquals("a rank is gone", message);
        }
    }

    @Test
    void takesInputsAndArraysOnly() throws Exception {
        try (Model model = Model.newInstance("test", "PyTorch-P2P")) {
            model.load(directory);
            assertThrows(IllegalStateException.class, () -> model.load(directory));
            try (Predictor<String, String> predictor = model.newPredictor(null)) {
                String message =
                        assertThrows(TranslateException.class, () -> predictor.predict("a"))
                                .getMessage();
                assertTrue(message.contains("java.lang.String"), message);
            }
        }
    }

    @Test
    void isNotAskedForWhatPyTorchLoads() throws IOException {
        Files.delete(directory.resolve(MARK));
        Loader.last = null;
        try (Model model = Model.newInstance("test", "PyTorch-P2P")) {
            assertThrows(FileNotFoundException.class, () -> model.load(directory));
        }
        assertNull(Loader.last);
        assertFalse(Files.exists(directory.resolve("test.pt")));
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.engine;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.SequentialBlock;
import ai.djl.repository.Repository;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelZoo;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.training.Trainer;
import ai.djl.translate.NoopTranslator;
import java.nio.file.Path;
import java.util.Map;
import java.util.Set;
import org.djlx.collectives.launch.LaunchEnvironment;
import org.djlx.training.DataParallelConfig;
import org.djlx.training.Training;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class P2pEngineTest {

    /** DJL chooses its default when its engines are loaded: before a test names one. */
    @BeforeAll
    static void loadEngines() {
        Engine.getDefaultEngineName();
    }

    @Test
    void isFoundButNeverTheDefault() {
        assertTrue(Engine.hasEngine("PyTorch-P2P"));
        assertEquals("PyTorch", Engine.getDefaultEngineName());
        Engine engine = Engine.getEngine("PyTorch-P2P");
        assertEquals("PyTorch-P2P", engine.getEngineName());
        String version = engine.getVersion();
        assertTrue(version.startsWith("libtorch 2.7.1"), version);
        assertTrue(version.contains("shm"), version);
    }

    @Test
    void isTheDefaultWhereItIsNamed() {
        System.setProperty("ai.djl.default_engine", P2pEngine.NAME);
        try (Model model = Model.newInstance("any");
                NDManager manager = NDManager.newBaseManager()) {
            assertEquals(P2pEngine.NAME, Engine.getInstance().getEngineName());
            assertArrayEquals(new float[] {1, 1}, manager.ones(new Shape(2)).toFloatArray());
            assertTrue(model instanceof P2pModel);
        } finally {
            System.clearProperty("ai.djl.default_engine");
        }
    }

    @Test
    void criteriaLoadWhatItSaved(@TempDir Path directory) throws Exception {
        float[] x = {1, 2, 3, 4, 5, 6};
        float[] expected;
        try (Model model = Model.newInstance("saved", P2pEngine.NAME)) {
            model.setBlock(Training.block());
            DataParallelConfig config = new DataParallelConfig(Training.loss()).optRanks(2);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, Training.FEATURES));
                NDArray input = trainer.getManager().create(x, new Shape(1, Training.FEATURES));
                expected = trainer.evaluate(new NDList(input)).head().toFloatArray();
            }
            model.save(directory, "saved");
        }
        Criteria<NDList, NDList> criteria =
                Criteria.builder()
                        .setTypes(NDList.class, NDList.class)
                        .optEngine(P2pEngine.NAME)
                        .optModelPath(directory)
                        .optModelName("saved")
                        .optBlock(Training.block())
                        .optTranslator(new NoopTranslator())
                        .build();
        try (ZooModel<NDList, NDList> model = criteria.loadModel();
                Predictor<NDList, NDList> predictor = model.newPredictor();
                NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray input = manager.create(x, new Shape(1, Training.FEATURES));
            float[] actual = predictor.predict(new NDList(input)).head().toFloatArray();
            assertArrayEquals(expected, actual, 1e-6f);
        }
    }

    /** A zoo that names PyTorch only, with one model in a directory. */
    private static final class Zoo extends ModelZoo {

        Zoo(Path directory) {
            addModel(Repository.newInstance("local", directory).getResources().get(0));
        }

        @Override
        public String getGroupId() {
            return "org.djlx.test";
        }

        @Override
        public Set<String> getSupportedEngines() {
            return Set.of("PyTorch");
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "ai.djl.pytorch-p2p"})
    void criteriaFindModelsOfPyTorchsZoos(String groupId, @TempDir Path directory)
            throws Exception {
        Path files = directory.resolve("ofzoo");
        try (Model model = Model.newInstance("ofzoo", "PyTorch")) {
            model.setBlock(Training.block());
            Shape shape = new Shape(1, Training.FEATURES);
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, shape);
            model.save(files, "ofzoo");
        }
        ModelZoo.registerModelZoo(() -> new Zoo(files));
        Criteria<NDList, NDList> criteria =
                Criteria.builder()
                        .setTypes(NDList.class, NDList.class)
                        .optEngine(P2pEngine.NAME)
                        .optGroupId(groupId.isEmpty() ? null : groupId)
                        .optArtifactId("ofzoo")
                        .optModelName("ofzoo")
                        .optBlock(Training.block())
                        .optTranslator(new NoopTranslator())
                        .build();
        try (ZooModel<NDList, NDList> model = criteria.loadModel()) {
            assertTrue(model.getWrappedModel() instanceof P2pModel);
        }
    }

    @Test
    void aDeviceThatIsNotThereIsNamed() {
        Device absent = Device.gpu(1000);
        IllegalArgumentException e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> Model.newInstance("far", absent, P2pEngine.NAME));
        assertTrue(
                e.getMessage().contains("gpu(1000) of the model 'far' is out of range"),
                e.getMessage());
    }

    @Test
    void theLocalRankChoosesTheGpuAndGarbageInItIsNamed() {
        assertEquals(Device.gpu(3), gpu("3", 8));
        assertEquals(Device.gpu(0), gpu("3", 1));
        assertEquals(Device.gpu(2), gpu(" ", 8));
        IllegalArgumentException e =
                assertThrows(IllegalArgumentException.class, () -> gpu("first", 8));
        assertEquals(
                "the environment variable LOCAL_RANK must be an integer, but is 'first'",
                e.getMessage());
    }

    private static Device gpu(String localRank, int count) {
        LaunchEnvironment launcher = LaunchEnvironment.of(Map.of("LOCAL_RANK", localRank));
        return P2pEngine.gpu(launcher, Device.gpu(2), count);
    }

    @Test
    void wrongSettingsAreNamed() {
        try (Model model = Model.newInstance("wrong", P2pEngine.NAME)) {
            DataParallelConfig config = new DataParallelConfig(Training.loss());
            IllegalStateException none =
                    assertThrows(IllegalStateException.class, () -> model.newTrainer(config));
            assertTrue(none.getMessage().contains("has no block"), none.getMessage());
            model.setBlock(new SequentialBlock());
            IllegalArgumentException ranks =
                    assertThrows(
                            IllegalArgumentException.class,
                            () -> model.newTrainer(config.optRanks(0)));
            assertTrue(ranks.getMessage().contains("0 is out of range"), ranks.getMessage());
        }
    }

    @ParameterizedTest
    @CsvSource({
        "ranks, two, is not a number: two",
        "bucketBytes, 25MB, is not a number: 25MB",
        "gradientReduction, max, 'must be one of [SUM, MEAN], not max'",
        "gradientCompression, float16, 'must be one of [NONE, BFLOAT16], not float16'"
    })
    void wrongPropertiesAreNamed(String name, String value, String cause) {
        System.setProperty("org.djlx." + name, value);
        try {
            String message =
                    assertThrows(
                                    IllegalArgumentException.class,
                                    () -> new DataParallelConfig(Training.loss()))
                            .getMessage();
            assertEquals("the system property org.djlx." + name + " " + cause, message);
        } finally {
            System.clearProperty("org.djlx." + name);
        }
    }
}

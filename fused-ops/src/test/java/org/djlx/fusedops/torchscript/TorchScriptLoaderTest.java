// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.torchscript;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.inference.Predictor;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.translate.TranslateException;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.RankProcesses;
import org.djlx.collectives.engine.ParallelModel;
import org.djlx.nativeops.host.CHeap;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** TorchScript models on several CPU ranks, loaded and called through DJL. */
@Timeout(120)
class TorchScriptLoaderTest {

    private static final String NDLIST = "tensor/ndlist";

    @TempDir private Path directory;

    private static <T> ZooModel<T, T> arrays(Class<T> type, Path directory) throws Exception {
        return Criteria.builder()
                .setTypes(type, type)
                .optEngine("PyTorch-P2P")
                .optModelPath(directory)
                .build()
                .loadModel();
    }

    private static ZooModel<NDList, NDList> load(int worldSize) throws Exception {
        return arrays(NDList.class, ScriptedMlp.directory(worldSize));
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 4})
    void answersArraysWithThoseOfTheWholeModel(int worldSize) throws Exception {
        try (ZooModel<NDList, NDList> model = load(worldSize);
                Predictor<NDList, NDList> predictor = model.newPredictor();
                NDManager manager = NDManager.newBaseManager()) {
            NDArray x = ScriptedMlp.input(manager);
            for (int i = 0; i < 3; i++) {
                NDList outputs = predictor.predict(new NDList(x));
                ScriptedMlp.check(outputs);
                assertSame(manager, outputs.getManager());
            }
            assertArrayEquals(ScriptedMlp.input(), x.toFloatArray());
            assertNull(model.getProperty("failed"));
        }
    }

    @Test
    void refusesInstalledTorch() {
        var e =
                assertThrows(
                        IllegalStateException.class, () -> TorchScriptLoader.checkLibtorch(true));
        assertTrue(e.getMessage().contains("unset PYTORCH_LIBRARY_PATH"), e.getMessage());
        TorchScriptLoader.checkLibtorch(false);
    }

    @Test
    void answersBytes() throws Exception {
        // As DJL Serving looks it up.
        copy(2, directory);
        Files.writeString(
                directory.resolve("serving.properties"),
                "engine=PyTorch-P2P\noption.tensor_parallel_degree=2\n");
        Criteria<Input, Output> criteria =
                Criteria.builder()
                        .setTypes(Input.class, Output.class)
                        .optModelPath(directory)
                        .build();
        try (ZooModel<Input, Output> model = criteria.loadModel();
                Predictor<Input, Output> predictor = model.newPredictor();
                NDManager manager = NDManager.newBaseManager()) {
            NDList list = new NDList(ScriptedMlp.input(manager));
            String json = Arrays.deepToString(rows());
            for (Map.Entry<String, byte[]> body :
                    Map.of(
                                    NDLIST,
                                    list.encode(),
                                    "tensor/npz",
                                    list.encode(NDList.Encoding.NPZ),
                                    "application/json",
                                    ("{\"inputs\": " + json + "}").getBytes(StandardCharsets.UTF_8))
                            .entrySet()) {
                Output output = predictor.predict(request(body.getKey(), body.getValue()));
                assertEquals(200, output.getCode(), output.getMessage());
                ScriptedMlp.check(NDList.decode(manager, output.getData().getAsBytes()));
            }
            for (byte[] wrong :
                    new byte[][] {
                        {}, {1, 2, 3}, "no arrays at all".getBytes(StandardCharsets.UTF_8)
                    }) {
                assertEquals(400, predictor.predict(request(NDLIST, wrong)).getCode());
            }
            assertEquals(
                    400,
                    predictor
                            .predict(
                                    request(
                                            "application/json",
                                            "{\"inputs\": 3}".getBytes(StandardCharsets.UTF_8)))
                            .getCode());
            assertEquals(400, predictor.predict(new Input()).getCode());
            Output refused =
                    predictor.predict(
                            request(NDLIST, new NDList(manager.ones(new Shape(8, 7))).encode()));
            assertEquals(400, refused.getCode());
            assertTrue(
                    refused.getData().getAsString().contains("cuda_p2p::all_gather_matmul"),
                    refused.getMessage());
        }
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "application/json; charset=utf-8 | | application/json",
                "application/json | */* | application/json",
                "application/json | application/json | application/json",
                "application/json | tensor/npz | tensor/npz",
                "application/json | Tensor/NPZ;q=0.5 , text/html | tensor/npz",
                "application/json | tensor/ndlist;q=0.1,application/json;Q=0.9 | application/json",
                "application/json | application/json;q=0, */*;q=0.1 | tensor/ndlist",
                "application/json | tensor/* | tensor/ndlist",
                "tensor/npz | application/json | application/json",
                "tensor/npz | application/json, text/plain, */* | application/json",
                "tensor/npz | tensor/* | tensor/npz",
                "tensor/npz | | tensor/npz",
                "tensor/safetensors | */* | tensor/safetensors",
                "tensor/ndlist | text/html, tensor/safetensors | tensor/safetensors",
                "text/plain | | tensor/ndlist",
            })
    void theResponseHasTheFormThatIsAccepted(String type, String accept, String form) {
        String header = accept == null ? "" : accept;
        String media = type.split(";")[0];
        assertEquals(form, RequestTranslator.responseForm(header, media));
    }

    @Test
    void responsesNameTheirForm() throws Exception {
        copy(2, directory);
        Files.writeString(directory.resolve("serving.properties"), "engine=PyTorch-P2P\n");
        Criteria<Input, Output> criteria =
                Criteria.builder()
                        .setTypes(Input.class, Output.class)
                        .optModelPath(directory)
                        .build();
        byte[] json = Arrays.deepToString(rows()).getBytes(StandardCharsets.UTF_8);
        try (ZooModel<Input, Output> model = criteria.loadModel();
                Predictor<Input, Output> predictor = model.newPredictor();
                NDManager manager = NDManager.newBaseManager()) {
            for (String accept :
                    List.of(
                            "*/*",
                            "application/json",
                            "tensor/npz",
                            NDLIST,
                            "tensor/safetensors",
                            "text/html, application/xml;q=0.9",
                            "text/csv")) {
                Input input = new Input();
                input.addProperty("Content-Type", "application/json");
                input.addProperty("Accept", accept);
                input.add(json);
                Output output = predictor.predict(input);
                String text = output.getData().getAsString();
                if (accept.startsWith("text/")) {
                    assertEquals(406, output.getCode());
                    assertTrue(text.contains("application/json: name one of these"), text);
                    continue;
                }
                String form = accept.equals("*/*") ? "application/json" : accept;
                assertEquals(form, output.getProperty("Content-Type", null));
                if (form.equals("application/json")) {
                    JsonObject answer = JsonParser.parseString(text).getAsJsonObject();
                    assertEquals(2, answer.getAsJsonArray("predictions").size());
                } else {
                    ScriptedMlp.check(NDList.decode(manager, output.getData().getAsBytes()));
                }
            }
        }
    }

    @Test
    void refusesWrongJson() throws Exception {
        copy(2, directory);
        Files.writeString(directory.resolve("serving.properties"), "engine=PyTorch-P2P\n");
        Criteria<Input, Output> criteria =
                Criteria.builder()
                        .setTypes(Input.class, Output.class)
                        .optModelPath(directory)
                        .build();
        try (ZooModel<Input, Output> model = criteria.loadModel();
                Predictor<Input, Output> predictor = model.newPredictor();
                NDManager manager = NDManager.newBaseManager()) {
            for (String[] wrong :
                    new String[][] {
                        {"[[1,2],[3]]", "different sizes, 2 and 1, in dimension 1 of (2, 2)"},
                        {"[[1],[2,3]]", "different sizes, 1 and 2"},
                        {"[[[1,2]],[[1,2],[1,2]]]", "different sizes, 1 and 2, in dimension 1"},
                        {"[1,[2]]", "must have a number instead of [2]"},
                        {"[[1],2]", "must have another array instead of 2"},
                        {"[1,\"2\"]", "must have a number instead of \"2\""},
                        {"[null]", "must have a number instead of null"},
                        {"[1,1e39]", "1e39 is out of the range of float32"},
                        {"[]", "is empty"},
                        {"[[1],[]]", "different sizes"},
                        {"{\"data\":[1]}", "'inputs' or 'instances'"},
                        {"{\"inputs\":{\"x\":[1]}}", "'inputs' or 'instances'"},
                        {"3", "'inputs' or 'instances'"},
                        {"null", "'inputs' or 'instances'"},
                        {"", "not JSON that can be read"},
                        {"[1", "not JSON that can be read"},
                        {"[NaN]", "not JSON that can be read"},
                        {"[1] [2]", "not JSON that can be read"},
                        {"[[[[[[[[[[1]]]]]]]]]]", "not JSON that can be read"},
                    }) {
                byte[] body = wrong[0].getBytes(StandardCharsets.UTF_8);
                refused(predictor.predict(request("application/json", body)), wrong[1]);
            }
            // The request is valid, but the model multiplies matrices.
            byte[] cube = Arrays.deepToString(new float[2][4][8]).getBytes(StandardCharsets.UTF_8);
            refused(predictor.predict(request("application/json", cube)), "must be a matrix");
            byte[] none = new NDList().encode(NDList.Encoding.NPZ);
            refused(predictor.predict(request("tensor/npz", none)), "no arrays");
            byte[] two =
                    new NDList(ScriptedMlp.input(manager), ScriptedMlp.input(manager)).encode();
            refused(predictor.predict(request(NDLIST, two)), "argument");
            byte[] right = Arrays.deepToString(rows()).getBytes(StandardCharsets.UTF_8);
            Output output = predictor.predict(request("application/json; charset=utf-8", right));
            assertEquals(200, output.getCode(), output.getMessage());
        }
    }

    private static void refused(Output output, String why) {
        assertEquals(400, output.getCode());
        String message = output.getData().getAsString();
        assertTrue(message.contains(why), why + ": " + message);
        assertEquals(1, output.getMessage().lines().count(), output.getMessage());
    }

    private static Input request(String contentType, byte[] body) {
        Input input = new Input();
        input.addProperty("Content-Type", contentType);
        if (contentType.equals("application/json")) {
            input.addProperty("Accept", "tensor/npz");
        }
        input.add(body);
        return input;
    }

    private static float[][] rows() {
        float[] values = ScriptedMlp.input();
        float[][] rows = new float[ScriptedMlp.ROWS][];
        for (int i = 0; i < rows.length; i++) {
            rows[i] = Arrays.copyOfRange(values, i * ScriptedMlp.IN, (i + 1) * ScriptedMlp.IN);
        }
        return rows;
    }

    private static void copy(int worldSize, Path to) throws IOException {
        for (int rank = 0; rank < worldSize; rank++) {
            String name = "model_rank" + rank + ".pt";
            Files.copy(ScriptedMlp.directory(worldSize).resolve(name), to.resolve(name));
        }
    }

    /** Wrong shapes are refused by an operator, or by libtorch after operators have run. */
    @Test
    void requestsThatAllRanksRefuseLeaveTheModel() throws Exception {
        try (ZooModel<NDList, NDList> model = load(4);
                Predictor<NDList, NDList> predictor = model.newPredictor();
                NDManager manager = NDManager.newBaseManager()) {
            for (int i = 0; i < 10; i++) {
                String message = refusal(predictor, new NDList(manager.ones(new Shape(8, 7))));
                assertTrue(message.contains("cuda_p2p::all_gather_matmul"), message);
                assertTrue(message.contains("(2, 7), (8, 4)"), message);
                refusal(
                        predictor,
                        ScriptedMlp.inputs(
                                "multiply",
                                manager.ones(new Shape(2, 3)),
                                manager.ones(new Shape(3, 5))));
                assertTrue(refusal(predictor, new NDList()).contains("no arrays"));
                refusal(predictor, ScriptedMlp.inputs("no_method", manager.ones(new Shape(1))));
                ScriptedMlp.check(predictor.predict(new NDList(ScriptedMlp.input(manager))));
            }
            assertNull(model.getProperty("failed"));
        }
    }

    @Test
    void refusedRequestsKeepNothing() throws Exception {
        try (ZooModel<NDList, NDList> model = load(2);
                Predictor<NDList, NDList> predictor = model.newPredictor();
                NDManager manager = NDManager.newBaseManager()) {
            NDArray large = manager.ones(new Shape(8, 64 << 10)); // 2 MiB
            refusal(predictor, new NDList(large));
            long before = CHeap.bytesInUse();
            for (int i = 0; i < 50; i++) {
                refusal(predictor, new NDList(large));
            }
            long grown = CHeap.bytesInUse() - before;
            assertTrue(grown < 50 << 20, "grown by " + grown);
        }
    }

    @Test
    void aLostModelKeepsNothingOfRequests() throws Exception {
        try (ZooModel<NDList, NDList> model = load(2);
                Predictor<NDList, NDList> predictor = model.newPredictor();
                NDManager manager = NDManager.newBaseManager()) {
            NDArray x = manager.ones(new Shape(4, 4));
            String lost = refusal(predictor, ScriptedMlp.inputs("fail_alone", x));
            long before = CHeap.bytesInUse();
            for (int i = 0; i < 50; i++) {
                try (NDArray large = manager.ones(new Shape(8, 64 << 10))) { // 2 MiB
                    assertEquals(lost, refusal(predictor, new NDList(large)));
                }
            }
            long grown = CHeap.bytesInUse() - before;
            assertTrue(grown < 50 << 20, "grown by " + grown);
        }
    }

    private static String refusal(Predictor<NDList, NDList> predictor, NDList inputs) {
        return assertThrows(TranslateException.class, () -> predictor.predict(inputs)).getMessage();
    }

    @ParameterizedTest
    @ValueSource(strings = {"fail_alone", "fail_afterwards", "differ"})
    void aModelIsLostOnceOneRankFails(String method) throws Exception {
        try (ZooModel<NDList, NDList> model = load(2);
                Predictor<NDList, NDList> predictor = model.newPredictor();
                NDManager manager = NDManager.newBaseManager()) {
            NDArray x = manager.ones(new Shape(4, 4));
            String message = refusal(predictor, ScriptedMlp.inputs(method, x));
            if (method.equals("differ")) {
                assertTrue(message.contains("not the same on all ranks"), message);
            } else {
                assertTrue(message.contains("the model failed on rank 1"), message);
                assertTrue(message.contains("the last rank fails"), message);
            }
            assertTrue(Integer.parseInt(model.getProperty("failed", "0")) > 0);
            assertEquals(message, refusal(predictor, new NDList(x)));
        }
    }

    @Test
    @Tag("slow")
    void isRefusedInOneOfSeveralProcesses() throws Exception {
        String files = ScriptedMlp.directory(2).toString();
        try (RankProcesses ranks = new RankProcesses(2, TorchScriptLoadMain.class, files)) {
            assertEquals(List.of(1, 1), ranks.await());
            String output = ranks.output(1);
            assertTrue(output.contains("but a launcher says RANK=1"), output);
        }
        try (RankProcesses one = new RankProcesses(1, TorchScriptLoadMain.class, files)) {
            one.awaitSuccess();
        }
    }

    @Test
    void servesManyThreads() throws Exception {
        int threads = 16;
        ExecutorService executor = Executors.newFixedThreadPool(threads);
        try (ZooModel<NDList, NDList> model = load(2);
                Predictor<NDList, NDList> predictor = model.newPredictor()) {
            List<Future<Void>> futures = new ArrayList<>();
            for (int i = 0; i < threads; i++) {
                int number = i;
                Callable<Void> client =
                        () -> {
                            try (NDManager manager = NDManager.newBaseManager()) {
                                for (int j = 0; j < 10; j++) {
                                    client(predictor, manager, number);
                                }
                            }
                            return null;
                        };
                futures.add(executor.submit(client));
            }
            for (Future<Void> future : futures) {
                future.get();
            }
        } finally {
            executor.shutdownNow();
        }
    }

    /** Sums over two ranks, each of which adds its number to all elements. */
    private static void client(Predictor<NDList, NDList> predictor, NDManager manager, int number)
            throws TranslateException {
        NDArray x = manager.full(new Shape(100), number, DataType.FLOAT32);
        NDList sums = predictor.predict(ScriptedMlp.inputs("reduce", x, manager.create(0)));
        double[] expected = new double[100];
        Arrays.fill(expected, 2 * number + 1);
        ScriptedMlp.check(expected, sums.head());
    }

    @Test
    void aClosedModelRefusesRequests() throws Exception {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray x = ScriptedMlp.input(manager);
            ZooModel<NDList, NDList> model = load(2);
            Predictor<NDList, NDList> predictor = model.newPredictor();
            model.close();
            assertTrue(refusal(predictor, new NDList(x)).contains("closed"));
            predictor.close();

            Path files = ScriptedMlp.directory(2);
            ParallelModel bytes = new TorchScriptLoader().load("m", files, Device.cpu(), Map.of());
            assertTrue(bytes.unavailabilityCause().isEmpty());
            bytes.close();
            bytes.close();
            byte[] body = new NDList(x).encode();
            assertEquals(503, bytes.predict(request(NDLIST, body)).getCode());
            try (ZooModel<NDList, NDList> other = load(1);
                    Predictor<NDList, NDList> open = other.newPredictor()) {
                x.close();
                assertTrue(refusal(open, new NDList(x)).contains("closed"));
            }
        }
    }

    @Test
    void refusesFilesAndOptions() throws Exception {
        TorchScriptLoader loader = new TorchScriptLoader();
        assertTrue(!loader.canLoad(directory));
        copy(4, directory);
        assertTrue(loader.canLoad(directory));
        String message =
                assertThrows(
                                IllegalArgumentException.class,
                                () -> loader.load("m", directory, Device.cpu(), degree("2")))
                        .getMessage();
        assertTrue(message.contains("tensor_parallel_degree is 2"), message);
        Files.delete(directory.resolve("model_rank1.pt"));
        message =
                assertThrows(
                                IllegalArgumentException.class,
                                () -> loader.load("m", directory, Device.cpu(), Map.of()))
                        .getMessage();
        assertTrue(message.contains("model_rank1.pt is missing"), message);
        Files.delete(directory.resolve("model_rank0.pt"));
        assertTrue(loader.canLoad(directory)); // And not DJL's PyTorch engine.
        Files.copy(
                ScriptedMlp.directory(4).resolve("model_rank0.pt"),
                directory.resolve("model_rank0.pt"));
        Files.writeString(directory.resolve("model_rank1.pt"), "no model");
        message =
                assertThrows(
                                CollectiveException.class,
                                () -> loader.load("m", directory, Device.cpu(), degree("4")))
                        .getMessage();
        assertTrue(message.contains("m: rank 1 of 4 failed"), message);
    }

    private static Map<String, String> degree(String value) {
        return Map.of("tensor_parallel_degree", value);
    }

    @Test
    void placesRanksOnDevices() {
        Device cpu = Device.cpu();
        Device one = Device.gpu(1);
        assertEquals(List.of(cpu, cpu), TorchScriptLoader.devices(List.of(cpu), 2));
        assertEquals(List.of(one, Device.gpu(2)), TorchScriptLoader.devices(List.of(one), 2));
        List<Device> two = List.of(Device.gpu(3), Device.gpu(0));
        assertEquals(two, TorchScriptLoader.devices(two, 2));
        assertThrows(IllegalArgumentException.class, () -> TorchScriptLoader.devices(two, 4));
    }
}

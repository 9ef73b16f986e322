// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.safetensors;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.function.Function;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.NullArguments;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

@Timeout(120)
class SafetensorsTest {

    private final NDManager manager = NDManager.newBaseManager("PyTorch");
    @TempDir private Path folder;

    @AfterEach
    void closeManager() {
        manager.close();
    }

    /** Writes a file byte by byte, as the format says, whatever it says. */
    private Path file(String header, byte[] data) throws IOException {
        byte[] json = header.getBytes(StandardCharsets.UTF_8);
        Path file = folder.resolve("written.safetensors");
        Files.write(
                file,
                ByteBuffer.allocate(8 + json.length + data.length)
                        .order(ByteOrder.LITTLE_ENDIAN)
                        .putLong(json.length)
                        .put(json)
                        .put(data)
                        .array());
        return file;
    }

    private static byte[] floats(float... values) {
        ByteBuffer bytes = ByteBuffer.allocate(values.length * 4).order(ByteOrder.LITTLE_ENDIAN);
        for (float value : values) {
            bytes.putFloat(value);
        }
        return bytes.array();
    }

    private NDArray zeros(long... shape) {
        return manager.zeros(new Shape(shape));
    }

    @Test
    void filesTakeNoMemoryAfterReading() throws IOException {
        int count = 4 << 20;
        String header =
                "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,%d],\"data_offsets\":[0,%d]}}"
                        .formatted(count / 2, 4 * count);
        Path file = file(header, new byte[4 * count]);
        try (Safetensors tensors = Safetensors.open(file)) {
            tensors.read("a", zeros(2, count / 2));
            tensors.read("a", 1, 5, 1000, zeros(2, 995));
            assertTrue(residentKilobytes(file) < 200, () -> "resident: " + file);
        }
    }

    /** Returns the memory of this process's mappings of a file. */
    private static long residentKilobytes(Path file) throws IOException {
        long kilobytes = 0;
        boolean inside = false;
        for (String line : Files.readAllLines(Path.of("/proc/self/smaps"))) {
            if (line.matches("[0-9a-f]+-[0-9a-f]+ .*")) {
                inside = line.endsWith(file.toRealPath().toString());
            } else if (inside && line.startsWith("Rss:")) {
                kilobytes += Long.parseLong(line.replaceAll("[^0-9]", ""));
            }
        }
        return kilobytes;
    }

    @Test
    void readsFilesOfTheSpecification() throws IOException {
        Path file =
                file(
                        "{\"__metadata__\":{\"format\":\"pt\",\"by\":\"hand\"},"
                                + "\"späte\":{\"dtype\":\"F32\",\"shape\":[],"
                                + "\"data_offsets\":[28,32]},"
                                + "\"bf\":{\"shape\":[2],\"dtype\":\"BF16\","
                                + "\"data_offsets\":[24,28]},"
                                + "\"none\":{\"dtype\":\"I64\",\"shape\":[3,0],"
                                + "\"data_offsets\":[24,24]},"
                                + "\"w\":{\"dtype\":\"F32\",\"shape\":[3,2],"
                                + "\"data_offsets\":[0,24]}} ",
                        ByteBuffer.allocate(32)
                                .put(floats(0, 1, 2, 3, 4, 5))
                                .put(new byte[] {(byte) 0x80, 0x3f, 0x20, (byte) 0xc0})
                                .put(floats(7))
                                .array());
        try (Safetensors tensors = Safetensors.open(file)) {
            assertEquals(
                    List.of("w", "none", "bf", "späte"),
                    tensors.specs().stream().map(TensorSpec::name).toList());
            assertEquals("hand", tensors.metadata().get("by"));
            assertEquals(ScalarType.BFLOAT16, tensors.spec("bf").type());
            assertTrue(tensors.contains("bf") && !tensors.contains("__metadata__"));
            NDArray w = zeros(3, 2);
            tensors.read("w", w);
            assertArrayEquals(new float[] {0, 1, 2, 3, 4, 5}, w.toFloatArray());
            NDArray columns = zeros(3, 1);
            tensors.read("w", 1, 1, 2, columns);
            assertArrayEquals(new float[] {1, 3, 5}, columns.toFloatArray());
            NDArray rows = zeros(2, 2);
            tensors.read("w", 0, 1, 3, rows);
            assertArrayEquals(new float[] {2, 3, 4, 5}, rows.toFloatArray());
            NDArray bf = zeros(2);
            tensors.read("bf", bf);
            assertArrayEquals(new float[] {1, -2.5f}, bf.toFloatArray());
            NDArray scalar = zeros();
            tensors.read("späte", scalar);
            assertEquals(7, scalar.getFloat());
            NDArray none = manager.create(new Shape(3, 0), DataType.INT64);
            tensors.read("none", none);
            NDArray nothing = zeros(0, 2);
            tensors.read("w", 0, 2, 2, nothing);
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "FLOAT16", "BFLOAT16", "INT64", "UINT8", "BOOL"})
    void slicesEqualThoseOfTheWhole(ScalarType type) throws IOException {
        Random random = new Random(5);
        // An odd header and odd sizes: elements lie at any address.
        TensorSpec first = TensorSpec.of("a", ScalarType.UINT8, new Shape(3));
        TensorSpec spec = TensorSpec.of("t", type, new Shape(5, 7, 3));
        byte[] data = new byte[3 + (int) spec.byteSize()];
        for (int i = 0; i < data.length; i++) {
            data[i] = (byte) random.nextInt(type == ScalarType.BOOL ? 2 : 60);
        }
        String header =
                String.format(
                        "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                                + "\"t\":{\"dtype\":\"%s\",\"shape\":[5,7,3],"
                                + "\"data_offsets\":[3,%d]}}",
                        spec.dtype(), data.length);
        assertEquals("U8", first.dtype());
        int views = 0;
        int headers = 8;
        for (int spaces = 0; spaces < headers; spaces++) {
            String padded = header + " ".repeat(spaces);
            try (Safetensors tensors = Safetensors.open(file(padded, data))) {
                NDArray whole = Torch.empty(manager, spec.shape(), type);
                tensors.read("t", whole);
                NDArray wide = Torch.cast(whole, ScalarType.FLOAT64);
                for (int dimension = 0; dimension < 3; dimension++) {
                    long size = spec.shape().get(dimension);
                    long[] sizes = spec.shape().getShape().clone();
                    sizes[dimension] = size - 2;
                    NDArray part = Torch.empty(manager, new Shape(sizes), type);
                    tensors.read("t", dimension, 1, size - 1, part);
                    NDArray expected =
                            wide.swapAxes(0, dimension)
                                    .get("1:" + (size - 1))
                                    .swapAxes(0, dimension);
                    assertArrayEquals(
                            expected.toDoubleArray(),
                            Torch.cast(part, ScalarType.FLOAT64).toDoubleArray());
                    Optional<NDArray> view = tensors.view("t", dimension, 1, size - 1, manager);
                    views += view.isPresent() ? 1 : 0;
                    if (view.isPresent()) {
                        assertArrayEquals(
                                expected.toDoubleArray(),
                                Torch.cast(view.get(), ScalarType.FLOAT64).toDoubleArray());
                        view.get().close();
                    }
                }
            }
        }
        assertEquals(3 * headers / type.itemSize(), views);
    }

    @Test
    void viewsOutliveTheFiles() throws IOException {
        String header = "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
        Path file = file(header + " ".repeat(-header.length() & 7), floats(1, 2));
        Safetensors tensors = Safetensors.open(file);
        tensors.populate();
        NDArray view = tensors.view("w", 0, 0, 2, manager).get();
        tensors.close();
        Files.delete(file);
        assertArrayEquals(new float[] {1, 2}, view.toFloatArray());
        assertFails("closed", () -> tensors.view("w", 0, 0, 2, manager));
        assertTrue(Files.readString(Path.of("/proc/self/maps")).contains(file.toString()));
        view.close();
        assertFalse(Files.readString(Path.of("/proc/self/maps")).contains(file.toString()));
    }

    @Test
    void convertsToTheTypeOfTheDestination() throws IOException {
        Path file =
                file(
                        "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
                        floats(1.00390625f, -3));
        try (Safetensors tensors = Safetensors.open(file)) {
            NDArray bfloat16 = Torch.empty(manager, new Shape(2), ScalarType.BFLOAT16);
            tensors.read("w", bfloat16);
            assertArrayEquals(
                    new float[] {1, -3}, // to nearest even
                    Torch.cast(bfloat16, ScalarType.FLOAT32).toFloatArray());
        }
    }

    @Test
    void readsFilesOfMoreThanTwoGigabytes() throws IOException {
        long before = (3L << 30) + 6;
        String header =
                String.format(
                        "{\"x\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[0,%d]},"
                                + "\"w\":{\"dtype\":\"F32\",\"shape\":[2],"
                                + "\"data_offsets\":[%d,%d]}}",
                        before, before, before, before + 8);
        Path file = file(header, new byte[0]);
        try (RandomAccessFile sparse = new RandomAccessFile(file.toFile(), "rw")) {
            sparse.seek(sparse.length() + before);
            sparse.write(floats(1, 2));
        }
        try (Safetensors tensors = Safetensors.open(file)) {
            NDArray w = zeros(2);
            tensors.read("w", w);
            assertArrayEquals(new float[] {1, 2}, w.toFloatArray());
            NDArray bytes = manager.ones(new Shape(2), DataType.UINT8);
            tensors.read("x", 0, before - 2, before, bytes);
            assertArrayEquals(new byte[2], bytes.toByteArray());
        }
    }

    @Test
    void ranksReadAtOnceAndCloseUnmaps() throws IOException {
        byte[] data =
                floats(
                        IntStream.range(0, 4096)
                                .boxed()
                                .reduce(
                                        new float[4096],
                                        (a, i) -> {
                                            a[i] = i;
                                            return a;
                                        },
                                        (a, b) -> a));
        Path file =
                file(
                        "{\"w\":{\"dtype\":\"F32\",\"shape\":[64,64],\"data_offsets\":[0,16384]}}",
                        data);
        Safetensors tensors = Safetensors.open(file);
        assertTrue(maps().contains(file.toString()));
        IntStream.range(0, 64)
                .parallel()
                .forEach(
                        row -> {
                            try (NDManager own = NDManager.newBaseManager("PyTorch")) {
                                NDArray array = own.zeros(new Shape(1, 64));
                                tensors.read("w", 0, row, row + 1, array);
                                assertEquals(row * 64 + 63, array.toFloatArray()[63]);
                            }
                        });
        tensors.close();
        tensors.close();
        assertFalse(maps().contains(file.toString()));
        assertThrows(
                IllegalArgumentException.class, () -> tensors.read("w", zeros(64, 64)), "closed");
    }

    private static String maps() throws IOException {
        return Files.readString(Path.of("/proc/self/maps"));
    }

    private static String tensor(String dtype, String shape, String offsets) {
        return String.format(
                "\"w\":{\"dtype\":%s,\"shape\":%s,\"data_offsets\":%s}", dtype, shape, offsets);
    }

    private record Bad(String header, String message) {}

    static Stream<Bad> badHeaders() {
        String ok = tensor("\"F32\"", "[2]", "[0,8]");
        String other = ok.replace("\"w\"", "\"v\"");
        return Stream.of(
                new Bad("{" + ok + "," + ok + "}", "'w' occurs twice"),
                new Bad(
                        "{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],"
                                + "\"data_offsets\":[0,8]}}",
                        "'dtype' occurs twice"),
                new Bad("{" + ok + "," + other + "}", "starts at byte 0 of the data, not at 8"),
                new Bad(
                        "{" + tensor("\"F32\"", "[1]", "[4,8]") + "}",
                        "starts at byte 4 of the data, not at 0"),
                new Bad("{" + tensor("\"F32\"", "[1]", "[0,4]") + "}", "take 4 bytes, but 8"),
                new Bad("{" + tensor("\"F32\"", "[3]", "[0,12]") + "}", "cut off"),
                new Bad("{" + tensor("\"F32\"", "[3]", "[0,8]") + "}", "needs 12 bytes, but has 8"),
                new Bad("{" + tensor("\"F32\"", "[2]", "[8,0]") + "}", "before its start"),
                new Bad("{" + tensor("\"F32\"", "[-2]", "[0,8]") + "}", "-2 at "),
                new Bad("{" + tensor("\"F32\"", "[2e0]", "[0,8]") + "}", "2e0 at "),
                new Bad("{" + tensor("\"F32\"", "[2.0]", "[0,8]") + "}", "2.0 at "),
                new Bad("{" + tensor("\"F32\"", "[\"2\"]", "[0,8]") + "}", "no number at"),
                new Bad("{" + tensor("\"F32\"", "2", "[0,8]") + "}", "BEGIN_ARRAY"),
                new Bad("{" + tensor("\"F32\"", "[2]", "[0]") + "}", "two data_offsets"),
                new Bad("{" + tensor("\"F32\"", "[2]", "[0,8,9]") + "}", "more than 2"),
                new Bad("{" + tensor("7", "[2]", "[0,8]") + "}", "no string at"),
                new Bad("{" + tensor("null", "[2]", "[0,8]") + "}", "no string at"),
                new Bad(
                        "{" + tensor("\"F32\"", "[4611686018427387904,4]", "[0,8]") + "}",
                        "more than 2^63 bytes"),
                new Bad(
                        "{" + tensor("\"F32\"", "[4611686018427387904,4,0]", "[0,0]") + "}",
                        "more than 2^63 bytes"),
                new Bad(
                        "{" + tensor("\"F32\"", "[0,4611686018427387904,4]", "[0,0]") + "}",
                        "more than 2^63 bytes"),
                new Bad(
                        "{" + tensor("\"F32\"", "[9223372036854775808]", "[0,8]") + "}",
                        "too large"),
                new Bad(
                        "{" + tensor("\"F32\"", "[" + "1,".repeat(64) + "2]", "[0,8]") + "}",
                        "more than 64"),
                new Bad("{\"w\":{\"dtype\":\"F32\",\"shape\":[2]}}", "lacks its"),
                new Bad("{\"w\":[1]}", "BEGIN_OBJECT"),
                new Bad("{\"__metadata__\":{\"a\":1}," + ok + "}", "no string at"),
                new Bad("{" + ok + "} {}", "not JSON: at line 1"),
                new Bad("{" + ok, "not JSON"),
                new Bad("[]", "BEGIN_OBJECT"),
                new Bad("{'w':1}", "not JSON"),
                new Bad("{" + ok + ",\"deep\":" + "[".repeat(100_000), "BEGIN_OBJECT"),
                new Bad(
                        "{\"w\":{\"x\":" + "[".repeat(100_000) + "]".repeat(100_000) + "}}",
                        "esting"));
    }

    @ParameterizedTest
    @MethodSource("badHeaders")
    void badHeadersAreNamed(Bad bad) throws IOException {
        Path file = file(bad.header, new byte[8]);
        IOException e = assertThrows(IOException.class, () -> Safetensors.open(file));
        assertTrue(e.getMessage().contains(bad.message), e.getMessage());
        assertTrue(e.getMessage().contains(file.toString()), e.getMessage());
        assertFalse(maps().contains(file.toString()), "nothing stays mapped");
    }

    @Test
    void nonSafetensorsFilesAreNamed() throws IOException {
        Path file = folder.resolve("bad.safetensors");
        for (byte[] bytes :
                List.of(
                        new byte[0],
                        new byte[] {2, 0, 0},
                        new byte[] {2, 0, 0, 0, 0, 0, 0, 0},
                        new byte[] {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'},
                        new byte[] {2, 0, 0, 0, 0, 0, 0, 1, '{', '}'},
                        new byte[] {2, 0, 0, 0, 0, 0, 0, -1, '{', '}'},
                        new byte[] {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'},
                        new byte[] {3, 0, 0, 0, 0, 0, 0, 0, '{', -1, '}'})) {
            Files.write(file, bytes);
            IOException e = assertThrows(IOException.class, () -> Safetensors.open(file));
            assertTrue(e.getMessage().contains(file.toString()), e.getMessage());
        }
        Files.delete(file);
        assertThrows(IOException.class, () -> Safetensors.open(file));
        Files.createDirectory(file);
        IOException e = assertThrows(IOException.class, () -> Safetensors.open(file));
        assertTrue(e.getMessage().contains("has neither model.safetensors.index.json"), "" + e);
    }

    @Test
    void wrongCallsAreNamed() throws IOException {
        Path file =
                file(
                        "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                            + "\"f4\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[8,10]}}",
                        new byte[10]);
        try (Safetensors tensors = Safetensors.open(file)) {
            assertFails("no tensor 'v'", () -> tensors.read("v", zeros(2)));
            assertFails("cannot be read into", () -> tensors.read("w", zeros(3)));
            assertFails("cannot be read into", () -> tensors.read("w", null));
            assertFails("no dimension 1", () -> tensors.read("w", 1, 0, 1, zeros(2)));
            assertFails("no indices 1 to 3", () -> tensors.read("w", 0, 1, 3, zeros(2)));
            assertFails("no indices 1 to 3", () -> tensors.view("w", 0, 1, 3, manager));
            assertFails("no indices 1 to 0", () -> tensors.read("w", 0, 1, 0, zeros(0)));
            assertFails("of type F4", () -> tensors.read("f4", zeros(4)));
            assertEquals("F4", tensors.spec("f4").dtype());
        }
        assertFails("null", () -> Safetensors.open(null));
    }

    private static void assertFails(
            String message, org.junit.jupiter.api.function.Executable code) {
        Exception e = assertThrows(IllegalArgumentException.class, code);
        assertTrue(e.getMessage().contains(message), e.getMessage());
    }

    private List<TensorSpec> model() {
        return List.of(
                TensorSpec.of("odd", ScalarType.UINT8, new Shape(3)),
                TensorSpec.of("a", ScalarType.BFLOAT16, new Shape(4, 5)),
                TensorSpec.of("empty", ScalarType.FLOAT32, new Shape(0, 5)),
                TensorSpec.of("\"quoted\" é", ScalarType.FLOAT32, new Shape(2, 3)),
                TensorSpec.of("scalar", ScalarType.FLOAT16, new Shape()));
    }

    private NDArray values(TensorSpec spec) {
        return manager.arange(spec.shape().size()).add(spec.name().length()).reshape(spec.shape());
    }

    private void assertWritten(Path path) throws IOException {
        try (Safetensors tensors = Safetensors.open(path)) {
            assertEquals(5, tensors.specs().size());
            for (TensorSpec spec : model()) {
                assertEquals(spec, tensors.spec(spec.name()));
                NDArray read = manager.zeros(spec.shape());
                tensors.read(spec.name(), read);
                assertArrayEquals(values(spec).toFloatArray(), read.toFloatArray());
            }
        }
    }

    @Test
    void roundTripKeepsTensors() throws IOException {
        SafetensorsWriter.writeModel(folder, model(), 1 << 20, this::values);
        assertEquals(List.of("model.safetensors"), names(folder));
        assertWritten(folder);
        assertWritten(folder.resolve("model.safetensors"));
        byte[] bytes = Files.readAllBytes(folder.resolve("model.safetensors"));
        assertEquals(0, bytes[0] % 8, "the data begins at a multiple of 8");
        SafetensorsWriter.writeModel(folder, model(), 40, this::values);
        assertWritten(folder.resolve("model.safetensors.index.json"));
        assertEquals(
                List.of(
                        "model-00001-of-00003.safetensors",
                        "model-00002-of-00003.safetensors",
                        "model-00003-of-00003.safetensors",
                        "model.safetensors.index.json"),
                names(folder));
    }

    private static List<String> names(Path folder) throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            return files.map(file -> file.getFileName().toString()).sorted().toList();
        }
    }

    /** A loader must not take what an earlier model has left for the weights of this one. */
    @Test
    void saveRemovesShardsOfAnEarlierModel() throws IOException {
        List<String> others =
                List.of("model-1-of-2.safetensors", "model-x.safetensors", "vision.safetensors");
        for (String other : others) {
            Files.writeString(folder.resolve(other), "somebody else's");
        }
        for (int maxFileBytes : new int[] {1 << 20, 40, 60, 1 << 20}) {
            SafetensorsWriter.writeModel(folder, model(), maxFileBytes, this::values);
            assertWritten(folder);
        }
        assertEquals(
                Stream.concat(others.stream(), Stream.of("model.safetensors")).sorted().toList(),
                names(folder));
    }

    @Test
    void failedWriteLeavesNoFile() throws IOException {
        Path file = folder.resolve("w.safetensors");
        Files.writeString(file, "before");
        assertFails(
                "have the shape",
                () -> SafetensorsWriter.write(file, model(), spec -> zeros(1, 1, 1)));
        assertEquals("before", Files.readString(file));
        TensorSpec twice = model().get(0);
        assertFails(
                "twice", () -> SafetensorsWriter.write(file, List.of(twice, twice), this::values));
        assertFails("COMPLEX128", () -> TensorSpec.of("c", ScalarType.COMPLEX128, new Shape(1)));
        assertFails("__metadata__", () -> new TensorSpec("__metadata__", "F32", new Shape(1)));
        assertFails("negative", () -> new TensorSpec("n", "F32", new Shape(-1)));
        assertEquals(List.of("w.safetensors"), names(folder));
    }

    @Test
    void indexRefusesFilesOutsideItsDirectory() throws IOException {
        SafetensorsWriter.writeModel(folder, model(), 40, this::values);
        Path index = folder.resolve("model.safetensors.index.json");
        String good = Files.readString(index);
        Path elsewhere = folder.resolve("elsewhere");
        Files.createDirectory(elsewhere);
        SafetensorsWriter.write(elsewhere.resolve("x.safetensors"), model(), this::values);
        for (String name :
                List.of(
                        "elsewhere/x.safetensors",
                        "../" + folder.getFileName() + "/elsewhere/x.safetensors",
                        elsewhere.resolve("x.safetensors").toString(),
                        "..",
                        "",
                        "serving.properties")) {
            Files.writeString(index, good.replace("model-00002-of-00003.safetensors", name));
            IOException e = assertThrows(IOException.class, () -> Safetensors.open(folder));
            assertTrue(e.getMessage().contains("'" + name + "' is not the name"), "" + e);
        }
        Files.writeString(index, good.replace("-00002-of", "-00009-of"));
        assertThrows(java.nio.file.NoSuchFileException.class, () -> Safetensors.open(folder));
        Files.writeString(index, good.replace("\"odd\"", "\"odder\""));
        IOException e = assertThrows(IOException.class, () -> Safetensors.open(folder));
        assertTrue(e.getMessage().contains("no tensor 'odder'"), "" + e);
        for (String bad : List.of("{}", "{\"weight_map\":{\"a\":1}}", "no JSON", "")) {
            Files.writeString(index, bad);
            e = assertThrows(IOException.class, () -> Safetensors.open(folder));
            assertTrue(e.getMessage().contains(index.toString()), "" + e);
        }
        // Hugging Face's cache has links to files elsewhere.
        Files.writeString(index, good);
        Path part = folder.resolve("model-00002-of-00003.safetensors");
        Files.move(part, elsewhere.resolve("blob"));
        Files.createSymbolicLink(part, elsewhere.resolve("blob"));
        assertWritten(folder);
    }

    @Test
    void nullsAreRefusedByName() throws IOException {
        SafetensorsWriter.writeModel(folder, model(), 1 << 20, this::values);
        try (Safetensors tensors = Safetensors.open(folder)) {
            Function<TensorSpec, NDArray> values = this::values;
            var stored = new SafetensorsHeader.Stored(model().get(0), 0);
            var header = new SafetensorsHeader(Map.of("w", stored), Map.of());
            NullArguments nulls =
                    new NullArguments()
                            .sample(Safetensors.class, () -> tensors)
                            .sample(TensorFiles.class, () -> tensors)
                            .sample(TensorSpec.class, () -> model().get(0))
                            .sample(NDArray.class, () -> zeros(1))
                            .sample(NDManager.class, () -> manager)
                            .sample(Path.class, () -> folder.resolve("file"))
                            .sample("directory", () -> folder)
                            .sample("tensors", this::model)
                            .sample("values", () -> values)
                            .sample(Shape.class, () -> new Shape(1))
                            .sample(SafetensorsHeader.Stored.class, () -> stored)
                            .sample(SafetensorsHeader.class, () -> header)
                            .sample("stored", () -> header.stored())
                            .sample("metadata", () -> header.metadata())
                            .sample(Object.class, Object::new);
            assertEquals("", String.join("\n", nulls.check(Safetensors.class)));
            assertTrue(nulls.calls() > 10, "" + nulls.calls());
        }
    }

    /** A symbolic link in the directory must not make the job write to another file. */
    @Test
    void temporaryFilesDoNotFollowSymbolicLinks() throws IOException {
        Path victim = Files.writeString(folder.resolve("victim"), "untouched");
        Path file = folder.resolve("model.safetensors");
        Files.createSymbolicLink(folder.resolve("model.safetensors.tmp"), victim);
        SafetensorsWriter.write(file, model(), this::values);
        assertEquals("untouched", Files.readString(victim));
        assertTrue(Files.size(file) > 0);
    }

    @Test
    void twoWritersOfOneFileOrModelAreFound() throws IOException {
        Path file = folder.resolve("model.safetensors");
        SafetensorsWriter.write(
                file,
                model(),
                spec -> {
                    assertWritten(() -> SafetensorsWriter.write(file, model(), this::values));
                    return values(spec);
                });
        SafetensorsWriter.writeModel(
                folder,
                model(),
                40,
                spec -> {
                    assertWritten(
                            () ->
                                    SafetensorsWriter.writeModel(
                                            folder, model(), 1 << 20, this::values));
                    return values(spec);
                });
        try (Stream<Path> files = Files.list(folder)) {
            assertTrue(files.noneMatch(left -> left.toString().endsWith(".incomplete")));
        }
    }

    private static void assertWritten(Executable second) {
        String message = assertThrows(IOException.class, second).getMessage();
        assertTrue(message.contains("another job is writing"), message);
    }
}

// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.checkpoint;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.nativeops.torch.ArrayBytes;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class CheckpointFileTest {

    @TempDir private Path directory;

    private static Map<String, NDArray> arrays(NDManager manager) {
        Map<String, NDArray> arrays = new LinkedHashMap<>();
        NDArray matrix = manager.arange(6f).reshape(2, 3);
        arrays.put("float32", matrix);
        arrays.put("transposed", matrix.transpose());
        arrays.put("float64", manager.create(new double[] {Math.PI, -0.0}));
        arrays.put("bfloat16", Torch.cast(matrix.add(0.5f), ScalarType.BFLOAT16));
        arrays.put("float16", matrix.toType(DataType.FLOAT16, true));
        arrays.put("int64", manager.create(new long[] {Long.MIN_VALUE, 7}));
        arrays.put("bool \"quoted\"", manager.create(new boolean[] {true, false, true}));
        arrays.put("scalar", manager.create(3f));
        arrays.put("empty", manager.create(new Shape(0, 4)));
        return arrays;
    }

    private Path write(NDManager manager) throws IOException {
        Path path = directory.resolve("arrays.safetensors");
        CheckpointFile.write(path, Map.of("k", "Füße"), arrays(manager), manager);
        return path;
    }

    @Test
    void readsArraysOfAllTypes() throws IOException {
        try (NDManager manager = NDManager.newBaseManager()) {
            Map<String, NDArray> arrays = arrays(manager);
            try (CheckpointFile file = CheckpointFile.open(write(manager))) {
                assertEquals("Füße", file.metadata().get("k"));
                assertEquals(List.copyOf(arrays.keySet()), List.copyOf(file.tensors().keySet()));
                arrays.forEach(
                        (name, array) -> {
                            NDArray read = like(manager, array);
                            try {
                                file.read(name, 0, read);
                            } catch (IOException e) {
                                throw new AssertionError(e);
                            }
                            assertArrayEquals(bytes(manager, array), bytes(manager, read), name);
                        });
            }
            // Only the file is there.
            try (var files = Files.list(directory)) {
                assertEquals(1, files.count());
            }
        }
    }

    /** Makes an array of the same type, shape and strides, for one that is transposed. */
    private static NDArray like(NDManager manager, NDArray array) {
        Shape shape = array.getShape();
        ScalarType type = Torch.scalarType(array);
        return Torch.isContiguous(array)
                ? Torch.empty(manager, shape, type)
                : Torch.empty(manager, new Shape(shape.get(1), shape.get(0)), type).transpose();
    }

    private static byte[] bytes(NDManager manager, NDArray array) {
        byte[] all = new byte[Math.toIntExact(Torch.info(array).byteSize())];
        ByteBuffer buffer = ByteBuffer.wrap(all);
        try {
            ArrayBytes.read(manager, array, buffer::put);
        } catch (IOException e) {
            throw new AssertionError(e);
        }
        return all;
    }

    /** What a reader of the format expects: its own description, read without our code. */
    @Test
    void formatIsSafetensors() throws IOException {
        try (NDManager manager = NDManager.newBaseManager()) {
            byte[] file = Files.readAllBytes(write(manager));
            ByteBuffer buffer = ByteBuffer.wrap(file).order(ByteOrder.LITTLE_ENDIAN);
            int length = Math.toIntExact(buffer.getLong(0));
            assertEquals(0, length % 8);
            JsonObject header =
                    JsonParser.parseString(new String(file, 8, length, StandardCharsets.UTF_8))
                            .getAsJsonObject();
            JsonObject matrix = header.getAsJsonObject("transposed");
            assertEquals("F32", matrix.get("dtype").getAsString());
            assertEquals("[3,2]", matrix.get("shape").toString());
            int begin = matrix.getAsJsonArray("data_offsets").get(0).getAsInt();
            float[] values = new float[6];
            buffer.position(8 + length + begin)
                    .slice()
                    .order(ByteOrder.LITTLE_ENDIAN)
                    .asFloatBuffer()
                    .get(values);
            assertArrayEquals(new float[] {0, 3, 1, 4, 2, 5}, values);
            assertEquals("BF16", header.getAsJsonObject("bfloat16").get("dtype").getAsString());
            assertEquals("[]", header.getAsJsonObject("scalar").get("shape").toString());
            // The arrays fill the file, one after the other.
            header.remove("__metadata__");
            int at = 0;
            for (String name : header.keySet()) {
                var offsets = header.getAsJsonObject(name).getAsJsonArray("data_offsets");
                assertEquals(at, offsets.get(0).getAsInt(), name);
                at = offsets.get(1).getAsInt();
            }
            assertEquals(file.length, 8 + length + at);
        }
    }

    @Test
    void openDetectsEveryDamage() throws IOException {
        try (NDManager manager = NDManager.newBaseManager()) {
            byte[] whole = Files.readAllBytes(write(manager));
            int data = 8 + (int) ByteBuffer.wrap(whole).order(ByteOrder.LITTLE_ENDIAN).getLong(0);
            Path path = directory.resolve("other");
            for (int i = 0; i < whole.length; i++) {
                byte[] flipped = whole.clone();
                flipped[i] ^= 4;
                for (byte[] bytes : List.of(flipped, Arrays.copyOf(whole, i))) {
                    Files.write(path, bytes);
                    IOException e =
                            assertThrows(
                                    IOException.class,
                                    () -> CheckpointFile.open(path),
                                    "byte " + i);
                    String message = e.getMessage();
                    boolean foreign = message.contains("is not a checkpoint");
                    assertTrue(
                            message.contains("is truncated or damaged") || foreign && i < data,
                            message);
                }
            }
            Files.write(path, Arrays.copyOf(whole, whole.length + 1));
            assertThrows(IOException.class, () -> CheckpointFile.open(path));
        }
    }

    @Test
    void openRejectsOtherFiles() throws IOException {
        byte[] othersHeader = "{\"__metadata__\":{\"format\":\"pt\"}}".getBytes();
        ByteBuffer others =
                ByteBuffer.allocate(8 + othersHeader.length)
                        .order(ByteOrder.LITTLE_ENDIAN)
                        .putLong(othersHeader.length)
                        .put(othersHeader);
        for (byte[] content :
                List.of(
                        new byte[0],
                        "PK\3\4 a checkpoint of PyTorch".getBytes(),
                        new byte[100],
                        others.array())) {
            Path file = directory.resolve("other");
            Files.write(file, content);
            IOException e = assertThrows(IOException.class, () -> CheckpointFile.open(file));
            assertTrue(e.getMessage().contains("is not a checkpoint"), e.getMessage());
        }
    }

    @Test
    void failedWriteLeavesNoFile() {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray complex = Torch.empty(manager, new Shape(2), ScalarType.COMPLEX128);
            Path path = directory.resolve("complex");
            IOException e =
                    assertThrows(
                            IOException.class,
                            () ->
                                    CheckpointFile.write(
                                            path, Map.of(), Map.of("z", complex), manager));
            assertTrue(e.getMessage().contains("COMPLEX128"), e.getMessage());
            assertEquals(0, directory.toFile().list().length);
            assertFalse(Files.exists(path));
        }
    }
}

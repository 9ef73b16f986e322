// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Random;
import java.util.stream.Stream;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Timeout(60)
class MappedFileTest {

    @TempDir private Path folder;

    @Test
    void viewsKeepTheMapping() throws IOException {
        Path path = folder.resolve("file");
        Files.write(path, new byte[] {1, 2, 3, 4, 5});
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            MappedFile file = MappedFile.open(path);
            byte[] bytes = new byte[2];
            file.read(3, bytes);
            assertArrayEquals(new byte[] {4, 5}, bytes);
            NDArray view = Torch.view(manager, file.memory(), 1, new Shape(3), ScalarType.UINT8);
            file.close();
            file.close();
            assertArrayEquals(new byte[] {2, 3, 4}, view.toByteArray());
            assertTrue(maps().contains(path.toString()));
            view.close();
            assertFalse(maps().contains(path.toString()));
            assertThrows(IllegalArgumentException.class, () -> file.read(0, bytes));
        }
    }

    @Test
    void readsToMemoryWhileItIsMapped() throws IOException {
        Path path = folder.resolve("file");
        byte[] bytes = new byte[100_000];
        new Random(1).nextBytes(bytes);
        Files.write(path, bytes);
        try (Memory target = new Memory(bytes.length)) {
            long address = Pointer.nativeValue(target);
            MappedFile file = MappedFile.open(path);
            file.read(12_345, 50_000, address);
            assertArrayEquals(
                    Arrays.copyOfRange(bytes, 12_345, 62_345), target.getByteArray(0, 50_000));
            assertThrows(IllegalArgumentException.class, () -> file.read(1, 100_000, address));
            file.memory().share();
            file.close();
            file.read(0, 100_000, address);
            assertArrayEquals(bytes, target.getByteArray(0, bytes.length));
            Files.write(path, Arrays.copyOf(bytes, 70_000)); // the same file, shorter
            UncheckedIOException e =
                    assertThrows(
                            UncheckedIOException.class, () -> file.read(60_000, 20_000, address));
            assertTrue(e.getMessage().contains(path.toString()), e.getMessage());
            assertTrue(e.getMessage().contains("truncated"), e.getMessage());
            file.memory().release();
            assertThrows(IllegalStateException.class, () -> file.read(0, 1, address));
        }
    }

    private static String maps() throws IOException {
        return Files.readString(Path.of("/proc/self/maps"));
    }

    @Test
    void populatesAndEvicts() throws IOException {
        Path path = folder.resolve("large");
        Files.write(path, new byte[3 << 20]);
        try (MappedFile file = MappedFile.open(path)) {
            assertEquals(0, residentKilobytes(path));
            file.populate(0, 3 << 20);
            assertEquals(3 << 10, residentKilobytes(path));
            file.evict(0, 3 << 20);
            assertEquals(0, residentKilobytes(path));
        }
    }

    /** Returns the resident size of the mapping of a file. */
    private static long residentKilobytes(Path path) throws IOException {
        String[] mappings =
                Files.readString(Path.of("/proc/self/smaps")).split("(?m)^(?=[0-9a-f]+-)");
        String own =
                Stream.of(mappings)
                        .filter(text -> text.contains(path.toString()))
                        .findFirst()
                        .get();
        String line = own.lines().filter(text -> text.startsWith("Rss:")).findFirst().get();
        return Long.parseLong(line.replaceAll("\\D", ""));
    }

    @Test
    void emptyFilesAndWrongRanges() throws IOException {
        Path path = folder.resolve("empty");
        Files.createFile(path);
        try (MappedFile file = MappedFile.open(path)) {
            assertEquals(0, file.memory().byteSize());
            file.read(0, new byte[0]);
            assertThrows(IllegalArgumentException.class, () -> file.read(0, new byte[1]));
            assertThrows(IllegalArgumentException.class, () -> file.read(-1, new byte[1]));
            assertThrows(IllegalArgumentException.class, () -> file.read(0, null));
            // Pages beyond the mapping may be others' memory, which evict would clear.
            assertThrows(IllegalArgumentException.class, () -> file.populate(0, 1));
            assertThrows(IllegalArgumentException.class, () -> file.evict(-1, 1));
            assertThrows(IllegalArgumentException.class, () -> file.evict(0, -1));
        }
    }

    @Test
    void openRefusesAllButRegularFiles() {
        assertThrows(IllegalArgumentException.class, () -> MappedFile.open(null));
        for (Path path : new Path[] {folder, folder.resolve("none"), Path.of("/dev/null")}) {
            IOException e = assertThrows(IOException.class, () -> MappedFile.open(path));
            assertTrue(e.getMessage().contains(path.toString()), e.getMessage());
        }
    }
}

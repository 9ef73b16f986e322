// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import com.sun.jna.LastErrorException;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Timeout(60)
class SharedMemoryTest {

    @Test
    void twoMappingsShareTheirBytes() {
        try (SharedMemory one = SharedMemory.create("test", 8192);
                SharedMemory two = SharedMemory.open(one.path(), 8192)) {
            AtomicBuffer first = new AtomicBuffer(one.memory(), 4096, 64);
            AtomicBuffer second = new AtomicBuffer(two.memory(), 4096, 64);
            assertEquals(0, first.getLong(8));
            first.putLong(8, -7);
            first.putIntVolatile(16, 41);
            assertEquals(-7, second.getLong(8));
            assertEquals(41, second.getAndAddInt(16, 1));
            assertEquals(42, first.getIntVolatile(16));
            first.putLongs(40, new long[] {Long.MIN_VALUE, 5});
            long[] longs = new long[3];
            second.getLongs(40, longs);
            assertArrayEquals(new long[] {Long.MIN_VALUE, 5, 0}, longs);
            assertThrows(IndexOutOfBoundsException.class, () -> first.getLongs(44, longs));
            assertThrows(IndexOutOfBoundsException.class, () -> first.getLongs(48, longs));
            assertThrows(IndexOutOfBoundsException.class, () -> first.putLongs(-8, longs));
            second.putBytes(32, new byte[] {1, 2, 3}, 2);
            byte[] bytes = new byte[3];
            first.getBytes(32, bytes);
            assertEquals(2, bytes[1]);
            assertEquals(0, bytes[2]);
            SharedMemory.copy(one.memory().address(), one.memory().address() + 4096 + 8, 8);
            assertEquals(-7, new AtomicBuffer(two.memory(), 0, 8).getLong(0));
        }
    }

    @Test
    void hasNoNameThatOtherProcessesFind() throws IOException {
        try (SharedMemory memory = SharedMemory.create("no-name-of-mine", 4096)) {
            try (var files = Files.list(Path.of("/dev/shm"))) {
                assertFalse(files.anyMatch(file -> file.toString().contains("no-name-of-mine")));
            }
            assertTrue(maps().contains("no-name-of-mine"));
            assertTrue(memory.path().startsWith("/proc/"));
        }
        assertFalse(maps().contains("no-name-of-mine"));
    }

    private static String maps() throws IOException {
        return Files.readString(Path.of("/proc/self/maps"));
    }

    @Test
    void viewKeepsTheMapping() throws IOException {
        SharedMemory memory = SharedMemory.create("kept-by-view", 4096);
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray view =
                    Torch.view(manager, memory.memory(), 0, new Shape(4), ScalarType.FLOAT32);
            memory.close();
            assertTrue(maps().contains("kept-by-view"));
            assertEquals(0, view.sum().getFloat());
        }
        assertFalse(maps().contains("kept-by-view"));
    }

    @Test
    void sealedMemoryCannotBeOpened() {
        try (SharedMemory memory = SharedMemory.create("sealed", 4096)) {
            String path = memory.path();
            memory.seal();
            memory.seal();
            assertThrows(IllegalStateException.class, memory::path);
            String message =
                    assertThrows(EngineException.class, () -> SharedMemory.open(path, 4096))
                            .getMessage();
            assertTrue(message.contains(path), message);
        }
        assertThrows(IllegalArgumentException.class, () -> SharedMemory.create("empty", 0));
        assertThrows(EngineException.class, () -> SharedMemory.create("too much", 1L << 62));
    }

    /** The path is what somebody wrote into a store. */
    @Test
    void opensNothingButSharedMemoryOfTheRightSize(@TempDir Path directory) throws Exception {
        byte[] text = "of the user, and not to be changed".getBytes(StandardCharsets.US_ASCII);
        Path file = Files.write(directory.resolve("file"), text);
        assertRefused(file.toString(), text.length, "not of the form /proc/<pid>/fd/<number>");
        assertRefused("/proc/self/../self/fd/0", 1, "not of the form /proc/<pid>/fd/<number>");
        assertRefused("", 1, "not of the form");
        try (FileChannel open =
                FileChannel.open(file, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            String path = descriptorOf(file);
            assertRefused(path, text.length, "which is not shared memory");
            assertTrue(open.isOpen());
        }
        assertArrayEquals(text, Files.readAllBytes(file));
        try (SharedMemory memory = SharedMemory.create("of 8192 bytes", 8192)) {
            assertRefused(memory.path(), 4096, "has 8192 bytes, not 4096");
            assertRefused(memory.path(), 16384, "has 8192 bytes, not 16384");
        }
        int unsealed = LibC.memfd_create("unsealed", LibC.MFD_CLOEXEC | LibC.MFD_ALLOW_SEALING);
        try {
            LibC.ftruncate(unsealed, 4096);
            String path = "/proc/" + ProcessHandle.current().pid() + "/fd/" + unsealed;
            assertRefused(path, 4096, "seals");
        } finally {
            LibC.close(unsealed);
        }
    }

    @Test
    void sizeIsFixed() {
        try (SharedMemory memory = SharedMemory.create("fixed", 8192)) {
            int fd = Integer.parseInt(memory.path().replaceAll(".*/", ""));
            assertThrows(LastErrorException.class, () -> LibC.ftruncate(fd, 4096));
            assertThrows(LastErrorException.class, () -> LibC.ftruncate(fd, 16384));
        }
    }

    private static void assertRefused(String path, long byteSize, String text) {
        String message =
                assertThrows(EngineException.class, () -> SharedMemory.open(path, byteSize))
                        .getMessage();
        assertTrue(message.contains(text), message);
    }

    /** The path of a descriptor of this process that leads to a file. */
    private static String descriptorOf(Path file) throws IOException {
        String own = "/proc/" + ProcessHandle.current().pid() + "/fd";
        try (var all = Files.list(Path.of(own))) {
            return all.filter(fd -> leadsTo(fd, file)).findFirst().orElseThrow().toString();
        }
    }

    private static boolean leadsTo(Path descriptor, Path file) {
        try {
            return Files.isSameFile(descriptor, file);
        } catch (IOException e) {
            return false; // Closed meanwhile.
        }
    }

    @Test
    void sleeperIsWoken() throws InterruptedException {
        try (SharedMemory memory = SharedMemory.create("futex", 4096);
                SharedMemory other = SharedMemory.open(memory.path(), 4096)) {
            AtomicBuffer words = new AtomicBuffer(memory.memory(), 0, 64);
            AtomicBuffer others = new AtomicBuffer(other.memory(), 0, 64);
            Thread sleeper =
                    new Thread(
                            () -> {
                                while (words.getIntVolatile(4) == 0) {
                                    words.sleepWhile(4, 0, 60_000_000_000L);
                                }
                            });
            sleeper.start();
            others.putIntVolatile(4, 1);
            while (sleeper.isAlive()) {
                others.wake(4);
                sleeper.join(10);
            }
            // A value that differs already, and a timeout, end the sleep.
            words.sleepWhile(4, 0, 60_000_000_000L);
            words.sleepWhile(4, 1, 1_000);
        }
    }

    @Test
    void rejectsOffsetsOutside() {
        try (SharedMemory memory = SharedMemory.create("bounds", 4096)) {
            NativeMemory native_ = memory.memory();
            assertThrows(IllegalArgumentException.class, () -> new AtomicBuffer(native_, 4090, 8));
            assertThrows(IllegalArgumentException.class, () -> new AtomicBuffer(native_, -8, 8));
            assertThrows(IllegalArgumentException.class, () -> new AtomicBuffer(native_, 4, 8));
            AtomicBuffer words = new AtomicBuffer(native_, 0, 64);
            assertThrows(IndexOutOfBoundsException.class, () -> words.getIntVolatile(64));
            assertThrows(IndexOutOfBoundsException.class, () -> words.putLong(60, 1));
            assertThrows(IndexOutOfBoundsException.class, () -> words.wake(62));
            assertThrows(IndexOutOfBoundsException.class, () -> words.sleepWhile(-4, 0, 1));
        }
        assertThrows(
                IllegalArgumentException.class,
                () -> new AtomicBuffer(new NativeMemory(4096, 8, Device.cpu(), () -> {}), 8, 8));
    }

    /** Twice so much is more than there are addresses. */
    @Test
    void saysThatThereIsNoRoom() {
        long size = 1L << 46;
        try (SharedMemory created = SharedMemory.create("large", size)) {
            String message =
                    assertThrows(
                                    EngineException.class,
                                    () -> SharedMemory.open(created.path(), size))
                            .getMessage();
            assertTrue(message.contains("no room for " + size), message);
        }
    }
}

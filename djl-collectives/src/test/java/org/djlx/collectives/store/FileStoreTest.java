// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class FileStoreTest extends StoreContractTest {

    @TempDir Path directory;

    @Override
    Store open() {
        return new FileStore(directory.resolve("store"), 2);
    }

    @Test
    void theLastHandleDeletesTheFile() {
        Path path = directory.resolve("counted");
        List<FileStore> handles = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            handles.add(new FileStore(path, 3));
        }
        handles.get(0).close();
        handles.get(0).close();
        handles.get(1).close();
        assertTrue(Files.exists(path));
        handles.get(2).close();
        assertFalse(Files.exists(path));
        try (FileStore next = new FileStore(path, 1)) {
            assertEquals(0, next.numKeys(), "the next job starts with an empty store");
        }
    }

    @Test
    void successiveHandlesSeeTheSameStore() {
        Path path = directory.resolve("serial");
        try (FileStore first = new FileStore(path, 2)) {
            first.set("k", bytes("1"));
        }
        try (FileStore second = new FileStore(path, 2)) {
            assertEquals("1", text(second.get("k", SHORT)));
        }
        assertFalse(Files.exists(path));
    }

    @Test
    @Tag("slow")
    void processesShareTheStore() throws Exception {
        Path path = directory.resolve("processes");
        int processes = 3;
        List<Process> children = new ArrayList<>();
        try (FileStore mine = new FileStore(path, processes + 1)) {
            for (int i = 0; i < processes; i++) {
                children.add(FileStoreProcess.start(path, processes + 1, 100));
            }
            for (Process child : children) {
                assertEquals(0, child.waitFor());
            }
            assertEquals(processes * 100, mine.add("sum", 0));
            assertEquals(processes * 100, mine.get("log").length);
        }
        assertFalse(Files.exists(path));
    }

    @Test
    @Tag("slow")
    void killedProcessLeavesTheStoreUsable() throws Exception {
        Path path = directory.resolve("killed");
        try (FileStore mine = new FileStore(path, 1)) {
            Process child = FileStoreProcess.start(path, 2, 1_000_000);
            try {
                mine.waitFor(List.of("log"), LONG);
            } finally {
                child.destroyForcibly().waitFor();
            }
            long sum = mine.add("sum", 0);
            assertEquals(sum + 1, mine.add("sum", 1));
        }
    }

    @Test
    void incompleteRecordIsTruncated() throws IOException {
        Path path = directory.resolve("torn");
        try (FileStore first = new FileStore(path, 2)) {
            first.set("whole", bytes("1"));
        }
        try (RandomAccessFile file = new RandomAccessFile(path.toFile(), "rw")) {
            file.seek(file.length());
            file.write(new byte[] {1, 100, 0, 0, 0, 0, 0, 0, 0, '/'}); // SET, a key of 100 bytes
        }
        try (FileStore second = new FileStore(path, 2)) {
            assertEquals("1", text(second.get("whole", SHORT)));
            second.set("next", bytes("2"));
            assertEquals("2", text(second.get("next", SHORT)));
        }
        assertFalse(Files.exists(path));
    }

    @Test
    void errorSaysWhatIsWrongWithTheFile() throws IOException {
        Path path = directory.resolve("damaged");
        new FileStore(path, 2).close();
        byte[] header = Arrays.copyOf(Files.readAllBytes(path), 5);
        byte[] keyWithoutPrefix = Arrays.copyOf(header, header.length + 17);
        keyWithoutPrefix[header.length] = 1; // SET
        Files.write(path, keyWithoutPrefix);
        assertFails(path, "open: after byte 5: key \"\" does not begin with /");
        try (RandomAccessFile file = new RandomAccessFile(path.toFile(), "rw")) {
            file.setLength(3L << 30);
        }
        assertFails(path, "open: 3221225467 bytes to read; a handle reads at most 2147483639");
    }

    private static void assertFails(Path path, String message) {
        CollectiveException e =
                assertThrows(CollectiveException.class, () -> new FileStore(path, 2));
        assertTrue(e.getMessage().contains(message), e.getMessage());
    }

    @Test
    void otherFilesAreLeftAlone() throws IOException {
        Path path = directory.resolve("precious");
        Files.writeString(path, "not a store");
        CollectiveException e =
                assertThrows(CollectiveException.class, () -> new FileStore(path, 1));
        assertTrue(e.getMessage().contains("precious"), e.getMessage());
        assertEquals("not a store", Files.readString(path));
    }

    @Test
    void aFileDeletedInUseIsReported() throws IOException {
        Files.delete(directory.resolve("store"));
        CollectiveException e = assertThrows(CollectiveException.class, () -> store.get("k", LONG));
        assertTrue(e.getMessage().contains("deleted"), e.getMessage());
    }

    @Test
    void theDirectoryMustExist() {
        Path path = directory.resolve("nowhere/store");
        CollectiveException e =
                assertThrows(CollectiveException.class, () -> new FileStore(path, 1));
        assertTrue(e.getMessage().contains("directory"), e.getMessage());
        assertThrows(
                IllegalArgumentException.class, () -> new FileStore(directory.resolve("s"), 0));
    }
}

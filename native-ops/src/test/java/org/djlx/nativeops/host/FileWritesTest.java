// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;

class FileWritesTest {

    /** Linux has a device that is always full. */
    @Test
    void fullDiskNamesTheFile() {
        Path full = Path.of("/dev/full");
        IOException e =
                assertThrows(
                        IOException.class,
                        () -> FileWrites.naming(full, () -> Files.writeString(full, "text")));
        assertEquals("cannot write /dev/full: No space left on device", e.getMessage());
    }

    @Test
    void missingDirectoryIsNamedOnce() {
        Path file = Path.of("/no/such/directory");
        IOException e =
                assertThrows(
                        IOException.class,
                        () -> FileWrites.naming(file, () -> Files.writeString(file, "text")));
        assertTrue(e.getMessage().equals(file.toString()), e.getMessage());
    }
}

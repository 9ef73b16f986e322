// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import java.io.IOException;
import java.nio.file.FileSystemException;
import java.nio.file.Path;

/** Writes files so that an error names the file; that of a full disk does not by itself. */
public final class FileWrites {

    private FileWrites() {}

    @FunctionalInterface
    public interface Body {

        void run() throws IOException;
    }

    /** Runs code that writes to a file. */
    public static void naming(Path file, Body body) throws IOException {
        try {
            body.run();
        } catch (FileSystemException e) {
            throw e; // It names its file.
        } catch (IOException e) {
            throw new IOException("cannot write " + file + ": " + e.getMessage(), e);
        }
    }
}

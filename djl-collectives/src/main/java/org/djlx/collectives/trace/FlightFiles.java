// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.UUID;

/** Names the files of flight records. */
final class FlightFiles {

    // File names have at most 255 bytes, so long group names are shortened.
    private static final int MAX_NAME = 100;

    private FlightFiles() {}

    /** Returns the file of a rank of a group. */
    static Path file(String group, int rank) {
        String directory = System.getProperty(FlightRecorder.DIRECTORY_PROPERTY);
        if (directory == null) {
            directory = System.getenv(FlightRecorder.DIRECTORY_VARIABLE);
        }
        if (directory == null) {
            directory = System.getProperty("java.io.tmpdir");
        }
        String name = group.replaceAll("[^A-Za-z0-9._-]", "_");
        if (!name.equals(group) || name.length() > MAX_NAME) {
            UUID hash = UUID.nameUUIDFromBytes(group.getBytes(StandardCharsets.UTF_8));
            name = name.substring(0, Math.min(name.length(), MAX_NAME)) + "-" + hash;
        }
        long pid = ProcessHandle.current().pid();
        return Path.of(directory, "flight-" + name + "-rank" + rank + "-pid" + pid + ".json");
    }
}
